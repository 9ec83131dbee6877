package idempotency

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/failure"
)

// MaxPoints is the maximum total size of the names and results of a request's phases, in bytes
// of JSON.
const MaxPoints = 64 << 10

// maxPhase is the maximum length of a phase's name, in bytes.
const maxPhase = 100

// points are the completed phases, in order.
type points []point

type point struct {
	Name   string          `json:"name"`
	Result json.RawMessage `json:"result"`
}

func parsePoints(text []byte) (p points, err error) {
	if len(text) == 0 {
		return nil, nil
	}
	if err := json.Unmarshal(text, &p); err != nil {
		return nil, &interlock.Error{Op: "read recovery points", Kind: interlock.Definite, Err: fmt.Errorf("the record is damaged: %w", err)}
	}
	return p, nil
}

// find returns the result of a completed phase.
func (p points) find(name string) (result json.RawMessage, done bool) {
	if i := slices.IndexFunc(p, func(q point) bool { return q.Name == name }); i >= 0 {
		return p[i].Result, true
	}
	return nil, false
}

// with returns p with another phase, and its encoded form.
func (p points) with(name string, result any) (points, []byte, error) {
	raw, err := json.Marshal(result)
	if err != nil {
		return nil, nil, failure.Bug("keep result of phase", name, "%w", err)
	}
	p = append(slices.Clone(p), point{name, raw})
	text, err := json.Marshal(p)
	if err == nil && len(text) > MaxPoints {
		err = fmt.Errorf("all results together have %d bytes, at most %d are allowed", len(text), MaxPoints)
	}
	if err != nil {
		return nil, nil, &interlock.Error{Op: "keep result of phase", Name: name, Kind: interlock.Definite, Err: err}
	}
	return p, text, nil
}

// result decodes the result of a phase.
func result[R any](name string, raw json.RawMessage) (r R, err error) {
	if err := json.Unmarshal(raw, &r); err != nil {
		return r, &interlock.Error{Op: "read result of phase", Name: name, Kind: interlock.Definite,
			Err: fmt.Errorf("it was stored with another type: %w", err)}
	}
	return r, nil
}
