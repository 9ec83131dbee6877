// Package electtest tests whether candidates of package elect campaign again after outages
// of a lock system. It does not test the system's locks, which package drivertest does,
// nor what two simultaneous leaders do.
package electtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/elect"
	"github.com/interlock-dev/interlock/driver"
)

// ElectedWithin bounds how long a candidate waits for its turn after an outage, if each
// leader before it leads for a moment. Two leases of leaders that did not return, and the longest
// pause between requests, take a fifth of it; the rest is for a busy machine.
const ElectedWithin = time.Minute

// A World is one lock system with faults.
type World struct {
	// Open opens it like another process, through a connection that Faults can
	// break. The test closes the results after the candidates.
	Open func(t *testing.T) (driver.Fenced, driver.Values)
	// Accept is Options.Accept of the candidates.
	Accept interlock.Faults
	// Faults are outages by name; an outage ends when its function returns.
	Faults map[string]func()
}

// Outages lets five candidates campaign repeatedly, and runs the faults. No campaign
// may end with an error because of them. After each outage each candidate must be
// elected within [ElectedWithin].
func Outages(t *testing.T, w World) {
	t.Helper()
	r := &rounds{elected: map[string]int{}}
	for i := range 5 {
		r.join(t, w, fmt.Sprint("candidate ", i))
	}
	for fault, strike := range w.Faults {
		r.all(t, "before "+fault)
		strike()
		r.all(t, "after "+fault)
	}
}

// rounds counts how often each candidate was elected.
type rounds struct {
	mu         sync.Mutex
	candidates int
	elected    map[string]int
}

// join runs a candidate that campaigns until the test ends, and leads for a moment each time.
func (r *rounds) join(t *testing.T, w World, identity string) {
	t.Helper()
	d, v := w.Open(t)
	e, err := elect.New(d, &elect.Options{Identity: identity, Values: v, Accept: w.Accept})
	if err != nil {
		t.Fatal(err)
	}
	r.candidates++
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var campaigning sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		campaigning.Wait()
		closing, cancel := context.WithTimeout(context.Background(), ElectedWithin)
		defer cancel()
		if err := e.Close(closing); err != nil {
			t.Error(err)
		}
	})
	campaigning.Go(func() {
		for ctx.Err() == nil {
			err := e.Run(ctx, "leader", func(leading context.Context, _ *elect.Term) error {
				r.lead(leading, identity)
				return nil
			})
			if err != nil && ctx.Err() == nil && !lostOffice(err) {
				t.Errorf("%s gave up: %v", identity, err)
				return
			}
		}
	})
}

func (r *rounds) lead(ctx context.Context, identity string) {
	r.mu.Lock()
	r.elected[identity]++
	r.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-time.After(20 * time.Millisecond): // of work
	}
}

func lostOffice(err error) bool {
	return errors.Is(err, interlock.ErrExpired) || errors.Is(err, interlock.ErrLost) || errors.Is(err, interlock.ErrSessionEnded)
}

// all waits until each candidate is elected again.
func (r *rounds) all(t *testing.T, when string) {
	t.Helper()
	r.mu.Lock()
	clear(r.elected)
	r.mu.Unlock()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); ; <-tick.C {
		r.mu.Lock()
		done, seen := len(r.elected) == r.candidates, fmt.Sprint(r.elected)
		r.mu.Unlock()
		switch {
		case done:
			t.Logf("%s: each was elected within %v", when, time.Since(began))
			return
		case time.Since(began) > ElectedWithin:
			t.Fatalf("%s: within %v only these were elected: %s", when, ElectedWithin, seen)
		}
	}
}
