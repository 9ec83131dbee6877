package idempotency

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/failure"
)

// MaxPoints is how many bytes the names and results of all phases of a request may
// have together, as JSON.
const MaxPoints = 64 << 10

// maxPhase is the longest name of a phase, in bytes.
const maxPhase = 100

// points are the phases that are done, in their order.
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

// find gives the result of a phase that is done.
func (p points) find(name string) (result json.RawMessage, done bool) {
	if i := slices.IndexFunc(p, func(q point) bool { return q.Name == name }); i >= 0 {
		return p[i].Result, true
	}
	return nil, false
}

// with adds a phase, and gives the whole as it is kept too.
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

// result reads what a phase had as its result.
func result[R any](name string, raw json.RawMessage) (r R, err error) {
	if err := json.Unmarshal(raw, &r); err != nil {
		return r, &interlock.Error{Op: "read result of phase", Name: name, Kind: interlock.Definite,
			Err: fmt.Errorf("it was stored with another type: %w", err)}
	}
	return r, nil
}
