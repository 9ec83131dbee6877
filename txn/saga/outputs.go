package saga

import (
	"encoding/json"
	"maps"
)

// All is every output as JSON, by the step's key.
func (o Outputs) All() map[string]json.RawMessage {
	all := maps.Clone(o.steps)
	if all == nil {
		all = map[string]json.RawMessage{}
	}
	return all
}
