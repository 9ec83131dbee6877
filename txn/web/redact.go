package web

import (
	"encoding/json"

	"github.com/interlock-dev/interlock/txn/branch"
)

// RedactOrder is the input of a saga of this service as it may be shown: its addresses
// as [branch.Redact] has them. Any other text stays as it is.
func RedactOrder(input json.RawMessage) json.RawMessage {
	var o order
	if json.Unmarshal(input, &o) != nil || len(o.Steps) == 0 {
		return input
	}
	redactSteps(o.Steps)
	if o.OnEnd != "" {
		o.OnEnd = branch.Redact(o.OnEnd)
	}
	text, err := json.Marshal(o)
	if err != nil {
		return input
	}
	return text
}

func redactSteps(steps []orderStep) {
	for i := range steps {
		for _, address := range []*string{&steps[i].Do, &steps[i].Undo} {
			if *address != "" {
				*address = branch.Redact(*address)
			}
		}
		redactSteps(steps[i].Parallel)
	}
}
