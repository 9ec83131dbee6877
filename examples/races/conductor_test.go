package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// log records the steps of actors, in order.
type log struct {
	mu   sync.Mutex
	said []string
}

func (l *log) add(s string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.said = append(l.said, s)
}

func (l *log) String() string { return strings.Join(l.said, " ") }

func nobody(context.Context) (int, error) { return 0, nil }

func freely(waiting func(context.Context) (int, error)) stage {
	return stage{start: atOnce, waiting: waiting, note: func(string, string) {}}
}

// stepper records each of its steps.
func stepper(l *log, name string, steps int) actor {
	return actor{name, func(_ context.Context, pause func(string)) error {
		for i := range steps {
			if i > 0 {
				pause("")
			}
			l.add(name)
		}
		return nil
	}}
}

// TestOrderIsForced checks that the steps are made in any given order, and the others
// only after it.
func TestOrderIsForced(t *testing.T) {
	t.Parallel()
	names := []string{"A", "B", "C"}
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 3))
		var order []string
		for range 3 {
			order = append(order, names...)
		}
		r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		forced := order[:r.IntN(len(order)+1)]
		var l log
		err := freely(nobody).act(t.Context(), forced, stepper(&l, "A", 3), stepper(&l, "B", 3), stepper(&l, "C", 3))
		if err != nil || len(l.said) != 9 || !slices.Equal(l.said[:len(forced)], forced) {
			t.Fatalf("seed %d: %v, then all: %v; %v", seed, forced, &l, err)
		}
	}
}

// TestWhoEndsEarlyIsSkipped uses an order with more steps than the actor has.
func TestWhoEndsEarlyIsSkipped(t *testing.T) {
	t.Parallel()
	var l log
	err := freely(nobody).act(t.Context(), []string{"A", "A", "B", "A", "B"}, stepper(&l, "A", 1), stepper(&l, "B", 2))
	if err != nil || l.String() != "A B B" {
		t.Errorf("%v, %v", &l, err)
	}
}

// TestWhoIsMadeToWaitIsLeftWaiting: B is blocked by A's lock when it is B's turn. The
// order continues without B, which makes its step when it can.
func TestWhoIsMadeToWaitIsLeftWaiting(t *testing.T) {
	t.Parallel()
	var l log
	var lock sync.Mutex
	var blocked atomic.Int64
	holder := actor{"A", func(_ context.Context, pause func(string)) error {
		lock.Lock()
		defer lock.Unlock()
		l.add("A holds")
		pause("")
		l.add("A ends")
		return nil
	}}
	waiter := actor{"B", func(_ context.Context, pause func(string)) error {
		blocked.Add(1)
		lock.Lock()
		blocked.Add(-1)
		l.add("B holds")
		lock.Unlock()
		pause("")
		l.add("B ends")
		return nil
	}}
	waiting := func(context.Context) (int, error) { return int(blocked.Load()), nil }
	err := freely(waiting).act(t.Context(), []string{"A", "B", "B", "A"}, holder, waiter)
	if want := "A holds A ends B holds B ends"; err != nil || l.String() != want {
		t.Errorf("%v, %v; want %s", &l, err, want)
	}
}

// TestWhoRunsLongIsWaitedFor checks that, while an actor works and none is blocked, the
// next one does not start, however often the server is asked.
func TestWhoRunsLongIsWaitedFor(t *testing.T) {
	t.Parallel()
	var l log
	asked := make(chan struct{}, 100)
	waiting := func(context.Context) (int, error) { asked <- struct{}{}; return 0, nil }
	slow := actor{"A", func(ctx context.Context, _ func(string)) error {
		for range 5 {
			select {
			case <-asked:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		l.add("A")
		return nil
	}}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err := freely(waiting).act(ctx, []string{"A", "B"}, slow, stepper(&l, "B", 1))
	if err != nil || l.String() != "A B" {
		t.Errorf("%v, %v", &l, err)
	}
}

// TestErrorsOfActors checks that an act returns all errors after all actors have ended.
func TestErrorsOfActors(t *testing.T) {
	failed, blind := errors.New("failed"), errors.New("blind")
	var l log
	fails := actor{"A", func(context.Context, func(string)) error { return failed }}
	err := freely(nobody).act(t.Context(), []string{"A", "B"}, fails, stepper(&l, "B", 2))
	if !errors.Is(err, failed) || !strings.Contains(err.Error(), "A: failed") || l.String() != "B B" {
		t.Errorf("%v, %v", &l, err)
	}
	stuck := make(chan struct{})
	waits := actor{"A", func(context.Context, func(string)) error { <-stuck; return nil }}
	err = freely(func(context.Context) (int, error) { close(stuck); return 0, blind }).act(t.Context(), []string{"A"}, waits)
	if !errors.Is(err, blind) {
		t.Errorf("the server cannot be asked: %v", err)
	}
	unable := freely(nobody)
	unable.start = func(ctx context.Context, run func()) error {
		if len(l.said) > 2 {
			return failed
		}
		l.add("one begins")
		return atOnce(ctx, run)
	}
	if err := unable.act(t.Context(), []string{"A", "B"}, stepper(&l, "A", 1), stepper(&l, "B", 1)); !errors.Is(err, failed) || l.String() != "B B one begins A" {
		t.Errorf("the second one cannot begin: %v, %v", &l, err)
	}
	if err := goleak.Find(); err != nil {
		t.Error(err)
	}
}
