package httpapi

import (
	"encoding/json"

	"github.com/interlock-dev/interlock/internal/failure"
)

// RedactOrder is the input of a saga of this service as it may be shown: its addresses
// without user information, query and fragment. Any other text stays as it is.
func RedactOrder(input json.RawMessage) json.RawMessage {
	var o order
	if json.Unmarshal(input, &o) != nil || len(o.Steps) == 0 {
		return input
	}
	redactSteps(o.Steps)
	if o.OnEnd != "" {
		o.OnEnd = failure.RedactURL(o.OnEnd)
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
				*address = failure.RedactURL(*address)
			}
		}
		redactSteps(steps[i].Parallel)
	}
}
