package cli

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/txn/saga"
)

// sagaView is the JSON form of a saga; docs/reference/cli.md promises it.
type sagaView struct {
	ID      string                     `json:"id"`
	Type    string                     `json:"type"`
	State   string                     `json:"state"`
	Reason  string                     `json:"reason,omitempty"`
	Input   json.RawMessage            `json:"input,omitempty"`
	Outputs map[string]json.RawMessage `json:"outputs,omitempty"`
	Dead    []deadSagaView             `json:"dead,omitempty"`
	Skipped []string                   `json:"skipped,omitempty"`
	Due     string                     `json:"due,omitempty"`
	Ended   string                     `json:"ended,omitempty"`
	Error   string                     `json:"error,omitempty"` // why it cannot be read

	due time.Time
}

type deadSagaView struct {
	Step  string `json:"step"`
	Error string `json:"error"`
}

func viewSaga(o saga.Outcome) sagaView {
	v := sagaView{ID: o.ID, Type: typeOf(o.Type, o.Input), State: string(o.State), Reason: o.Reason, Input: o.Input, Outputs: o.Outputs.All(),
		Skipped: o.Skipped, Due: stamp(o.Due), Ended: stamp(o.Ended), due: o.Due}
	for _, d := range o.Dead {
		v.Dead = append(v.Dead, deadSagaView{d.Step, d.Err})
	}
	return v
}

// why says what is wrong with it, in a line.
func (v sagaView) why() string {
	all := []string{}
	if v.Reason+v.Error != "" {
		all = append(all, v.Reason+v.Error)
	}
	for _, d := range v.Dead {
		all = append(all, "undo of "+d.Step+": "+d.Error)
	}
	return strings.Join(all, "; ")
}

// overHTTP is the definition of all sagas that came over HTTP; what each calls itself
// stands in its input.
const overHTTP = "http"

// typeOf is what a saga calls itself.
func typeOf(definition string, input json.RawMessage) string {
	var order struct{ Type string }
	if definition != overHTTP && definition != overHTTP+"_reported" || json.Unmarshal(input, &order) != nil || order.Type == "" {
		return definition
	}
	return order.Type
}

// stamp is a time for programs; empty if there is none.
func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}
