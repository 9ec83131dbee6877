package memory

import (
	"context"
	"sync"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Lattices keeps states in memory. It is the executable specification of driver.Lattices: each
// call is one step under a mutex. Use [NewLattices]. It is safe for concurrent use.
type Lattices struct {
	mu     sync.Mutex
	fence  *Fence
	states map[string]driver.Lattice
}

var _ driver.Lattices = (*Lattices)(nil)

// NewLattices returns an empty store with its own marks.
func NewLattices() *Lattices {
	return &Lattices{fence: newFence(), states: map[string]driver.Lattice{}}
}

// Merge joins delta into a state; see driver.Lattices.
func (s *Lattices) Merge(ctx context.Context, name string, delta driver.Lattice, guard *driver.Raise) error {
	const op = "merge"
	if err := asking(ctx, op, name); err != nil {
		return err
	}
	if err := delta.Check(); err != nil {
		return fail.New(op, name, interlock.Bug, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if guard != nil {
		if err := s.fence.Enter(ctx, *guard); err != nil {
			return err
		}
	}
	state := s.states[name]
	state.Join(delta)
	s.states[name] = state
	return nil
}

// Load returns a state, which the caller owns; see driver.Lattices.
func (s *Lattices) Load(ctx context.Context, name string) (driver.Lattice, error) {
	if err := asking(ctx, "load", name); err != nil {
		return driver.Lattice{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.states[name].Clone(), nil
}
