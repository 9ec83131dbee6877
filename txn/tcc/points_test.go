package tcc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
)

// plot is a transaction that processes must complete in spite of crashes.
type plot struct {
	capacity [2]int
	bad      func(c branch.Call) (before, after error) // of the second venue
	end      Decision                                  // if nothing crashes
	points   int                                       // of a run that does not crash
}

var plots = map[string]plot{
	// Around each try, the decision, each confirmation and the end.
	"all hold":       {capacity: [2]int{1, 1}, end: Confirm, points: 4 + 2 + 4 + 2},
	"second refuses": {capacity: [2]int{1, 0}, end: Cancel, points: -1}, // the first is cancelled at any time
	"second is never known": {capacity: [2]int{1, 1}, end: Cancel, points: 2 + 5 + 2 + 4 + 2, bad: func(c branch.Call) (before, after error) {
		if c.Operation == branch.Try {
			return nil, errNetwork
		}
		return nil, nil
	}},
	"answers are lost once": {capacity: [2]int{1, 1}, end: Confirm, points: 5 + 2 + 3 + 2 + 2 + 2, bad: func(c branch.Call) (before, after error) {
		if c.Attempt == 1 {
			return nil, errNetwork
		}
		return nil, nil
	}},
}

// scene is the state of a plot over several lives.
type scene struct {
	plot
	store  *memory.Journal
	post   *post
	venues []*venue
	told   []Decision // to its caller, in all lives
}

func (p plot) scene() *scene {
	s := &scene{plot: p, store: memory.NewJournal(), post: &post{}}
	for i, name := range []string{"hotel", "flight"} {
		v := newVenue(name, p.capacity[i])
		v.post = s.post
		s.venues = append(s.venues, v)
	}
	s.venues[1].bad = p.bad
	return s
}

// life runs one process from its start to its crash at a point, or to the end. It returns
// the number of passed points. If again is false, it does not run the transaction, but
// serves and sweeps.
func (s *scene) life(t *testing.T, epoch int64, point int, again bool) (passed int) {
	t.Helper()
	at := crashAt(point)
	s.live(t, grant(epoch), at, again)
	return at.Passed()
}

// live is life under a claim.
func (s *scene) live(t *testing.T, c *claim, at *points, again bool) {
	t.Helper()
	var venues []*venue
	for _, v := range s.venues {
		venues = append(venues, v.by(at))
	}
	r := idle(t, &watched{Journal: s.store, Points: at}, &Options{Timeout: time.Second}, nil, venues...)
	do := s.run
	if !again {
		do = s.sweep
	}
	at.Live(r.coordinator.Serve, c, func(ctx context.Context) { do(ctx, r, at) })
}

// run runs the transaction, and waits for its end.
func (s *scene) run(ctx context.Context, r *rig, at *points) {
	_, err := r.run(ctx, "1", s.venues...)
	decision := Decision("")
	switch {
	case err == nil:
		decision = Confirm
	case errors.Is(err, ErrCancelled):
		decision = Cancel
	}
	if !at.Over() && decision != "" {
		s.told = append(s.told, decision)
		_, _ = r.Wait(ctx, "1")
	}
}

// sweep waits until all holds have expired, and releases undecided ones.
func (s *scene) sweep(ctx context.Context, r *rig, at *points) {
	for range 3 {
		if !backoff.Sleep(ctx, time.Minute) {
			return
		}
		for _, v := range s.venues {
			_ = v.sweep(ctx, func(ctx context.Context, id, branch string) (Decision, error) {
				if at.Over() {
					return "", txntest.ErrCrashed
				}
				return r.Decide(ctx, id, branch)
			})
		}
	}
}

// check judges the result independently of the machine.
func (s *scene) check(t *testing.T) {
	t.Helper()
	decisions := []Decision{}
	head, records, err := s.store.Read(context.Background(), "1", 0)
	ok(t, err)
	for _, r := range records {
		if r.Kind == recordDecide {
			decisions = append(decisions, Decision(r.Step))
		}
	}
	if len(decisions) > 1 || len(decisions) == 0 && len(s.told) > 0 || head.Position > 0 && head.Ended.IsZero() {
		t.Errorf("decided %v, reported %v, head %+v", decisions, s.told, head)
	}
	for _, d := range s.told {
		if d != decisions[0] {
			t.Errorf("reported %v, decided %v", s.told, decisions)
		}
	}
	for _, v := range s.venues {
		v.rules(t)
		got := v.state("1")
		confirmed := len(decisions) == 1 && decisions[0] == Confirm
		if confirmed != (got == "confirmed") || got == "held" {
			t.Errorf("decided %v, and %s is %q", decisions, v.name, got)
		}
	}
	unscheduled(t, s.store)
}

// TestCrashPoints: a process crashes before or after any append, call or answer, and its
// successor does so too. The transaction is confirmed at all venues or at none, and nothing
// remains held, whether it runs again or not.
func TestCrashPoints(t *testing.T) {
	for name, p := range plots {
		for _, again := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, run again %v", name, again), func(t *testing.T) {
				t.Parallel()
				runs := 0
				play := func(crashes ...int) (passed []int) {
					runs++
					bubble(t, func(t *testing.T) {
						s := p.scene()
						for i, point := range append(crashes, 0) {
							passed = append(passed, s.life(t, int64(i+1), point, again || i == 0))
							unscheduled(t, s.store)
						}
						s.life(t, 9, 0, false)
						if len(crashes) == 0 && !slices.Equal(s.told, []Decision{p.end}) {
							t.Errorf("reported %v, want %v", s.told, p.end)
						}
						if again && len(s.told) == 0 {
							t.Error("no outcome was returned")
						}
						if s.check(t); t.Failed() {
							t.Fatalf("crashed at %v: %v", crashes, s.post.keys)
						}
					})
					if t.Failed() {
						t.FailNow()
					}
					return passed
				}
				all := play()[0]
				if p.points >= 0 && all != p.points {
					t.Fatalf("%d points, want %d", all, p.points)
				}
				for first := 1; first <= all; first++ {
					play(first)
					for second, step := crash.Seconds(first); ; second += step {
						if passed := play(first, second); passed[1] < second {
							break // it ended before
						}
					}
				}
				t.Logf("%d points, %d runs", all, runs)
			})
		}
	}
}

// TestDelayedDuplicates: each message may arrive again, before any later one or after all
// of them, without an effect.
func TestDelayedDuplicates(t *testing.T) {
	for name, p := range plots {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			play := func(late, at int) (messages int) {
				bubble(t, func(t *testing.T) {
					s := p.scene()
					s.post.late, s.post.at = late, at
					s.life(t, 1, 0, true)
					messages = len(s.post.keys)
					if late > 0 && late <= messages && at > messages {
						_ = s.post.again[late-1]()
					}
					s.life(t, 2, 0, false)
					if s.check(t); t.Failed() || len(s.told) != 1 {
						t.Fatalf("message %d arrived again before %d: reported %v, %v", late, at, s.told, s.post.keys)
					}
				})
				if t.Failed() {
					t.FailNow()
				}
				return messages
			}
			all := play(0, 0)
			for late := 1; late <= all; late++ {
				for at := late + 1; at <= all+1; at++ {
					play(late, at)
				}
			}
		})
	}
}

// TestStoppedAnywhere: a process is paused at any point until another one has completed the
// transaction, or has released its holds. When it wakes up it appends nothing, and changes
// nothing, with an apparently valid claim or an expired one.
func TestStoppedAnywhere(t *testing.T) {
	for name, p := range plots {
		for _, again := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, run again %v", name, again), func(t *testing.T) {
				t.Parallel()
				all := p.points
				if all < 0 {
					bubble(t, func(t *testing.T) { all = p.scene().life(t, 1, 0, true) })
				}
				ended := 0
				for point := 1; point <= all; point++ {
					for _, expired := range []bool{false, true} {
						if testbed.Brief() && expired == (point%2 == 0) {
							continue // half of them without the race detector only
						}
						bubble(t, func(t *testing.T) {
							if p.stopped(t, point, again, expired) {
								ended++
							}
						})
						if t.Failed() {
							t.Fatalf("stopped at %d of %d, sees that its claim is over: %v", point, all, expired)
						}
					}
				}
				if ended < all && !testbed.Brief() { // undecided, and it stays so, before the first try
					t.Errorf("of %d that woke up, %d were after a decision", 2*all, ended)
				}
			})
		}
	}
}

// stopped pauses a process at a point, and reports whether another one has decided then.
func (p plot) stopped(t *testing.T, point int, again, expired bool) (decided bool) {
	s, at, former, done := p.scene(), stopAt(point), grant(1), make(chan struct{})
	go func() { defer close(done); s.live(t, former, at, true) }()
	select {
	case <-at.Reached:
	case <-done: // it has passed fewer points this time
		return true
	}
	s.life(t, 2, 0, again)
	records, states := txntest.Records(t, s.store, "1"), s.states()
	decided = len(records) > 0
	former.Expired.Store(expired)
	close(at.Wake)
	s.life(t, 9, 0, false) // if it is undecided, a process still may decide
	<-done
	if decided {
		same(t, "records", txntest.Records(t, s.store, "1"), records...)
		for i, got := range s.states() {
			if got != states[i] && got != "" { // a hold unknown to a successor is released after its time
				t.Errorf("%s was %q, and is %q", s.venues[i].name, states[i], got)
			}
		}
	}
	s.check(t)
	return decided
}

// states returns what is held or confirmed at each venue; empty for all else.
func (s *scene) states() (all []string) {
	for _, v := range s.venues {
		got := v.state("1")
		if got != "held" && got != "confirmed" {
			got = ""
		}
		all = append(all, got)
	}
	return all
}
