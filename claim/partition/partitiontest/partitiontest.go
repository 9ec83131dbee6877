// Package partitiontest is the conformance suite of a lock system for groups of package
// partition. It tests whether keys have one owner at a time and whether a guard rejects
// former ones. It does not test the system's locks, which package drivertest does.
package partitiontest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/partition"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/observe"
)

// World is one backend for one test.
type World struct {
	// Open opens the lock driver and the values like another process. It closes both
	// by t.Cleanup.
	Open func(t *testing.T) (driver.Fenced, driver.Values)
	// Crash disconnects d permanently, without closing it.
	Crash func(t *testing.T, d driver.Fenced)
	// Enter raises a resource's mark in a guard of the backend.
	Enter func(ctx context.Context, resource string, token interlock.Token, source string) error
	// TTL is the drivers' TTL.
	TTL time.Duration
	// Move is the maximum time without an owner for a key whose partition moves as
	// planned. 0 means no bound, for real time on a busy machine.
	Move time.Duration
}

// Run runs the suite. bubble runs one test, normally test itself if it is nil.
func Run(t *testing.T, bubble func(t *testing.T, test func(*testing.T)), start func(t *testing.T) World) {
	for name, test := range map[string]func(*scene){
		"EachKeyHasOneOwner":      testOneOwner,
		"PlannedMoves":            testPlannedMoves,
		"CrashedOwner":            testCrashedOwner,
		"FormerOwnerIsRefused":    testFormerOwner,
		"ResizeKeepsOrder":        testResize,
		"ResizeIsFinishedByThose": testAbandonedResize,
		"DrainWaits":              testDrainWaits,
		"LayoutsDiffer":           testLayoutsDiffer,
		"Work":                    testWork,
	} {
		t.Run(name, func(t *testing.T) {
			if bubble == nil {
				t.Parallel()
				test(newScene(t, start(t)))
				return
			}
			bubble(t, func(t *testing.T) { test(newScene(t, start(t))) })
		})
	}
}

// patience bounds each wait for a condition on a slow machine.
const patience = 2 * time.Minute

const (
	group      = "orders"
	partitions = 12
	keys       = 60
)

func key(i int) string { return fmt.Sprint("order/", i) }

type scene struct {
	*testing.T
	World
	ledger *ledger
}

func newScene(t *testing.T, w World) *scene {
	return &scene{T: t, World: w, ledger: &ledger{last: map[string]interlock.Token{}, busy: map[string]bool{}, done: map[string]int{}}}
}

// member is one process.
type member struct {
	*partition.Group
	d driver.Fenced
}

func (s *scene) join(name string, o partition.Options) *member {
	s.Helper()
	d, values := s.Open(s.T)
	o.Identity, o.Address = name, name+":80"
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	g, err := partition.Join(ctx, d, values, group, partition.Layout{Partitions: partitions}, &o)
	for ctx.Err() == nil && (interlock.Kind(err) == interlock.Uncertain || interlock.Kind(err) == interlock.Retryable) {
		time.Sleep(20 * time.Millisecond) // a busy backend answers late
		g, err = partition.Join(ctx, d, values, group, partition.Layout{Partitions: partitions}, &o)
	}
	if err != nil {
		s.Fatalf("%s joins: %v", name, err)
	}
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := g.Leave(ctx); err != nil {
			s.Errorf("%s leaves: %v", name, err)
		}
	})
	return &member{g, d}
}

// eventually waits for a condition.
func (s *scene) eventually(what string, done func() bool) {
	s.Helper()
	deadline := time.Now().Add(patience)
	for !done() {
		if time.Now().After(deadline) {
			s.Fatalf("not within %v: %s", patience, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// occupy works on a key, and returns when it has begun. After release, or at the end of the test,
// the work returns the result of then, and done receives it.
func (s *scene) occupy(m *member, k string, then func(context.Context, interlock.Claim) error) (release func(), done <-chan error) {
	s.Helper()
	inside, ended, ctx := make(chan struct{}), make(chan error, 1), s.Context()
	released, release := context.WithCancel(context.Background())
	s.Cleanup(release)
	go func() {
		ended <- m.Do(ctx, k, func(ctx context.Context, c interlock.Claim) error {
			close(inside)
			<-released.Done()
			return then(ctx, c)
		})
	}()
	select {
	case <-inside:
	case err := <-ended:
		s.Fatalf("work on %s: %v", k, err)
	case <-time.After(patience):
		s.Fatalf("work on %s did not begin within %v", k, patience)
	}
	return release, ended
}

// result waits for the result of a call.
func (s *scene) result(of <-chan error) error {
	s.Helper()
	select {
	case err := <-of:
		return err
	case <-time.After(patience):
		s.Fatalf("no result within %v", patience)
		return nil
	}
}

// settled waits until the members own all partitions, with loads that differ by at most
// one.
func (s *scene) settled(members ...*member) {
	s.Helper()
	s.eventually("every partition is owned, and as many by each", func() bool {
		sum, low, high := 0, partitions, 0
		for _, m := range members {
			n := len(m.Owned())
			sum, low, high = sum+n, min(low, n), max(high, n)
		}
		count := members[0].Map().Layout().Count() // 0 until the layout was seen
		return count > 0 && sum == count && high-low <= 1
	})
}

// ledger records the work on each key.
type ledger struct {
	mu   sync.Mutex
	last map[string]interlock.Token
	busy map[string]bool
	done map[string]int
	bad  []string
}

// begin records the start of work on a key under a token.
func (l *ledger) begin(key string, token interlock.Token) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy[key] {
		l.bad = append(l.bad, key+" is worked on twice at once")
	}
	if token < l.last[key] {
		l.bad = append(l.bad, fmt.Sprintf("%s under %d after %d", key, token, l.last[key]))
	}
	l.busy[key], l.last[key] = true, token
}

func (l *ledger) end(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy[key] = false
	l.done[key]++
}

func (l *ledger) count(key string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.done[key]
}

func (l *ledger) judge(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.bad {
		t.Error(b)
	}
}

// touch works on a key at a member, under the guard. It returns false if the member is
// not the owner.
func (s *scene) touch(m *member, key string) bool {
	err := m.Do(s.Context(), key, func(ctx context.Context, c interlock.Claim) error {
		if err := s.Enter(ctx, key, c.Token(), c.Owner()); err != nil {
			return err
		}
		s.ledger.begin(key, c.Token())
		defer s.ledger.end(key)
		return nil
	})
	if _, found := errors.AsType[*partition.NotOwnerError](err); err != nil && !found {
		s.Errorf("%s at %s: %v", key, m.Self().Identity, err)
	}
	return err == nil
}

// load works on all keys, at their owners, until the test calls stop.
func (s *scene) load(members func() []*member) (stop func()) {
	ctx, cancel := context.WithCancel(s.Context())
	var workers sync.WaitGroup
	for w := range 4 {
		workers.Go(func() {
			for i := w; ctx.Err() == nil; i += 4 {
				for _, m := range members() {
					s.touch(m, key(i%keys))
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	return func() { cancel(); workers.Wait() }
}

// drained receives moves of partitions.
func drained(released chan<- observe.PartitionReleased) *observe.Partition {
	return &observe.Partition{Released: func(e observe.PartitionReleased) {
		select {
		case released <- e:
		default:
		}
	}}
}
