package tcctest

import (
	"slices"

	"github.com/interlock-dev/interlock/txn/branch"
)

// look looks at the world around the branch that is alone.
func (r *run) look(c branch.Call) {
	if r.alone && c.Branch == r.branch {
		r.after = r.see()
		if c.Operation == branch.Try {
			r.seenAfter = r.visible()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.Operation == branch.Try {
		r.tries = append(r.tries, c.Branch)
	}
}

// tried reports whether these branches were.
func (r *run) tried(branches []string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !slices.ContainsFunc(branches, func(b string) bool { return !slices.Contains(r.tries, b) })
}

// reach notes that a resource is called.
func (r *run) reach(resource string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reached = append(r.reached, resource)
}

// unreached are the resources that were not.
func (r *run) unreached() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(r.stage.names), func(name string) bool { return slices.Contains(r.reached, name) })
}

// answered notes what a resource has answered, and whether the invariant holds.
func (r *run) answered(c branch.Call, err error) {
	broken := r.broken()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers = append(r.answers, answer{c.Transaction, c.Branch, c.Operation, err})
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
