package tcctest

import (
	"slices"

	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/internal/rehearsal"
)

// look looks at the world around the branch that is alone.
func (r *run) look(c branch.Call) {
	if r.Alone && c.Branch == r.Name {
		r.After = r.See()
		if c.Operation == branch.Try {
			r.seenAfter = r.visible()
		}
	}
	r.Mu.Lock()
	defer r.Mu.Unlock()
	if c.Operation == branch.Try {
		r.tries = append(r.tries, c.Branch)
	}
}

// tried reports whether these branches were.
func (r *run) tried(branches []string) bool {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	return !slices.ContainsFunc(branches, func(b string) bool { return !slices.Contains(r.tries, b) })
}

// isSwept reports whether the time of the holds is over.
func (r *run) isSwept() bool {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	return r.swept
}

// reach notes that a resource is called.
func (r *run) reach(resource string) {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	r.reached = append(r.reached, resource)
}

// unreached are the resources that were not.
func (r *run) unreached() []string {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	return slices.DeleteFunc(slices.Clone(r.stage.names), func(name string) bool { return slices.Contains(r.reached, name) })
}

// answered notes what a resource has answered, and whether the invariant holds.
func (r *run) answered(c branch.Call, err error) {
	broken := r.broken()
	r.Answered(rehearsal.Answer{Transaction: c.Transaction, Name: c.Branch, Operation: c.Operation, Err: err})
	r.Mu.Lock()
	defer r.Mu.Unlock()
	if broken != nil && r.wrong == nil {
		r.wrong, r.wronged = broken, c
	}
}

func (r *run) broken() error {
	if r.Invariant == nil {
		return nil
	}
	return r.Invariant()
}
