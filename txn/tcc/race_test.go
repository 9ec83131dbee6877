package tcc

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/txn/branch"
)

// TestOwnersCompete: successive owners with their predecessors still running, Runs of one id
// in several processes, participants that fail, are busy, do not answer and sweep at any
// time. Each transaction is confirmed at all venues or at none, and none is oversold.
func TestOwnersCompete(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			bubble(t, func(t *testing.T) { compete(t, seed) })
		})
	}
}

// moody makes the calls of a venue slow, busy and unanswered, at random by a seed.
func moody(seed uint64) func(branch.Call) (before, after error) {
	var mu sync.Mutex
	dice := rand.New(rand.NewPCG(seed, 11))
	return func(c branch.Call) (before, after error) {
		mu.Lock()
		mood := dice.IntN(10)
		mu.Unlock()
		time.Sleep(time.Duration(mood) * 30 * time.Millisecond) // it ignores its context
		switch mood {
		case 0, 1:
			return errNetwork, nil
		case 2:
			return branch.Retry(errNetwork), nil
		case 3:
			return branch.InProgress(50 * time.Millisecond), nil
		case 4, 5:
			return nil, errNetwork // the answer is lost
		}
		return nil, nil
	}
}

func compete(t *testing.T, seed uint64) {
	const transactions, owners = 40, 5
	hotel, flight := newVenue("hotel", 25), newVenue("flight", 30)
	hotel.bad, flight.bad = moody(seed), moody(seed+100)
	store := memory.NewJournal()
	told := newTold()
	o := &Options{Hold: 4 * time.Second, Margin: time.Second, Timeout: time.Second, Retry: Policy{Attempts: 4}}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var work, sweepers sync.WaitGroup
	for n := range owners {
		r := idle(t, &watched{Journal: store}, o, nil, hotel, flight)
		work.Go(func() {
			time.Sleep(time.Duration(n) * 500 * time.Millisecond)
			c := grant(int64(n + 1))
			served := make(chan error, 1)
			go func() { served <- r.coordinator.Serve(ctx, c, 0) }()
			for i := range transactions / owners * 2 { // two owners run each
				id := fmt.Sprint((n*transactions/owners + i) % transactions)
				work.Go(func() {
					time.Sleep(time.Duration(i) * 40 * time.Millisecond)
					_, err := r.run(context.Background(), id, hotel, flight)
					told.hear(id, err)
				})
			}
			if n == owners-1 {
				over(t, store, hotel, flight)
				stop()
			}
			<-served // the others notice by themselves
			c.End(interlock.ErrReleased)
		})
		for _, v := range []*venue{hotel, flight} {
			sweepers.Go(func() {
				for backoff.Sleep(ctx, time.Second) {
					_ = v.sweep(ctx, r.Decide)
				}
			})
		}
	}
	work.Wait()
	sweepers.Wait()
	judgeRace(t, store, told, hotel, flight)
}

// over waits until all have ended, and nothing is held.
func over(t *testing.T, store *memory.Journal, venues ...*venue) {
	for range 1000 {
		time.Sleep(time.Second)
		heads, err := store.Heads(context.Background(), "", 1000)
		ok(t, err)
		open := slices.ContainsFunc(heads, func(h driver.Head) bool { return h.Ended.IsZero() })
		for _, v := range venues {
			v.mu.Lock()
			for _, h := range v.holds {
				open = open || h.state == "held"
			}
			v.mu.Unlock()
		}
		if !open && time.Since(began) > time.Minute {
			return
		}
	}
	t.Error("it never ends")
}

// told has the results of each transaction's Runs.
type told struct {
	mu    sync.Mutex
	heard map[string][]Decision
}

func newTold() *told { return &told{heard: map[string][]Decision{}} }

func (l *told) hear(id string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		l.heard[id] = append(l.heard[id], Confirm)
	case errors.Is(err, ErrCancelled):
		l.heard[id] = append(l.heard[id], Cancel)
	}
}

func judgeRace(t *testing.T, store *memory.Journal, l *told, venues ...*venue) {
	t.Helper()
	ends := map[Decision]int{}
	heads, err := store.Heads(context.Background(), "", 1000)
	ok(t, err)
	for _, h := range heads {
		_, records, err := store.Read(context.Background(), h.Transaction, 0)
		ok(t, err)
		var decisions []Decision
		for _, r := range records {
			if r.Kind == recordDecide {
				decisions = append(decisions, Decision(r.Step))
			}
		}
		if len(decisions) != 1 {
			t.Errorf("%s: decided %v", h.Transaction, decisions)
			continue
		}
		ends[decisions[0]]++
		for _, d := range l.heard[h.Transaction] {
			if d != decisions[0] {
				t.Errorf("%s: reported %s, decided %s", h.Transaction, d, decisions[0])
			}
		}
		for _, v := range venues {
			if is := v.state(h.Transaction); (is == "confirmed") != (decisions[0] == Confirm) {
				t.Errorf("%s: decided %s, and %s is %s", h.Transaction, decisions[0], v.name, is)
			}
		}
	}
	if ends[Confirm] == 0 || ends[Cancel] == 0 {
		t.Errorf("%v", ends)
	}
	for _, v := range venues {
		v.rules(t)
	}
	unscheduled(t, store)
}
