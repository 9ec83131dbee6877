package twopc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// served runs a test against one process that is served.
func served(t *testing.T, o *Options, test func(t *testing.T, p *process)) {
	t.Helper()
	bubble(t, func(t *testing.T) {
		p := newWorld().start(t, nil, o)
		defer p.serve(t, 1)()
		test(t, p)
	})
}

func wantSums(t *testing.T, w *world, north, south int64) {
	t.Helper()
	if sums := w.sums(); sums["north"] != north || sums["south"] != south || sums["rates"] != 0 {
		t.Errorf("sums %v, want %d and %d", sums, north, south)
	}
}

// TestCosts: n prepares and one append before the answer; n commits and one append
// after it.
func TestCosts(t *testing.T) {
	for name, c := range map[string]struct {
		deltas        map[string]int64
		before, after []string
	}{
		"two write": {transfer,
			[]string{"journal append", "north prepare", "south prepare"},
			[]string{"journal append", "north commit", "south commit"}},
		"two write, one reads": {map[string]int64{"north": -10, "south": 10, "rates": 0},
			[]string{"journal append", "north prepare", "rates prepare", "south prepare"},
			[]string{"journal append", "north commit", "south commit"}},
		"two read": {map[string]int64{"north": 0, "rates": 0}, []string{"north prepare", "rates prepare"}, nil},
		"alone":    {map[string]int64{"north": 7}, []string{"north commit one"}, nil},
		"nobody":   {nil, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld()
				p := w.start(t, nil, nil)
				ok(t, p.Run(t.Context(), "1", p.add(c.deltas)))
				sent := p.network.sent()
				slices.Sort(sent)
				same(t, "before the answer", sent, c.before...)
				stop := p.serve(t, 1)
				w.rest(t)
				sent = p.network.sent()[len(c.before):]
				slices.Sort(sent)
				same(t, "after it", sent, c.after...)
				stop()
				for name, delta := range c.deltas {
					if w.banks[name].Get("sum") != delta {
						t.Errorf("%s has %d", name, w.banks[name].Get("sum"))
					}
				}
			})
		})
	}
}

// TestAbortCosts: an abort leaves no record: it costs the prepares, and a rollback
// for each that may be prepared.
func TestAbortCosts(t *testing.T) {
	no := errors.New("no money")
	served(t, nil, func(t *testing.T, p *process) {
		err := p.Run(t.Context(), "1", func(ctx context.Context, x *T) error {
			ok(t, p.add(transfer)(ctx, x))
			return no
		})
		wantKind(t, err, interlock.Definite, ErrAborted)
		wantKind(t, err, interlock.Definite, no)
		same(t, "messages", p.network.sent())
		wantSums(t, p.world, 0, 0)

		// Its branches were freed: another one comes through, under the same id.
		p.world.banks["south"].Restart()
		err = p.Run(t.Context(), "1", func(ctx context.Context, x *T) error {
			defer p.world.banks["south"].Restart() // the session ends before the vote
			return p.add(transfer)(ctx, x)
		})
		wantKind(t, err, interlock.Definite, ErrAborted)
		sent := p.network.sent()
		slices.Sort(sent)
		same(t, "messages", sent, "north prepare", "north rollback", "south prepare")
		ok(t, p.Run(t.Context(), "1", p.add(transfer)))
		ok(t, p.Settle(t.Context(), "1"))
		wantSums(t, p.world, -10, 10)
	})
}

// TestCommittedOnce: an id that is committed is not run again, in any process.
func TestCommittedOnce(t *testing.T) {
	served(t, nil, func(t *testing.T, p *process) {
		ok(t, p.Run(t.Context(), "1", p.add(transfer)))
		other := p.world.start(t, nil, nil)
		for _, again := range []*process{p, other} {
			ok(t, again.Run(t.Context(), "1", func(context.Context, *T) error {
				t.Error("it was run again")
				return nil
			}))
		}
		ok(t, p.Settle(t.Context(), "1"))
		wantSums(t, p.world, -10, 10)
	})
}

// TestTwoRunsOfOneID: of two runs at once one commits, and the other's work is taken
// back, and not mixed with it.
func TestTwoRunsOfOneID(t *testing.T) {
	served(t, nil, func(t *testing.T, p *process) {
		inside, outside := make(chan struct{}), make(chan error)
		go func() {
			outside <- p.Run(t.Context(), "1", func(ctx context.Context, x *T) error {
				inside <- struct{}{}
				<-inside
				return p.add(transfer)(ctx, x)
			})
		}()
		<-inside
		ok(t, p.Run(t.Context(), "1", p.add(map[string]int64{"north": -5, "south": 5})))
		ok(t, p.Settle(t.Context(), "1"))
		inside <- struct{}{}
		ok(t, <-outside)
		p.world.rest(t)
		wantSums(t, p.world, -5, 5)
	})
}

// TestAnyProcessFinishes: the commits are sent by who owns the shard, whoever has
// decided.
func TestAnyProcessFinishes(t *testing.T) {
	served(t, nil, func(t *testing.T, p *process) {
		other := p.world.start(t, nil, nil)
		ok(t, other.Run(t.Context(), "1", other.add(transfer)))
		ok(t, other.Settle(t.Context(), "1"))
		wantSums(t, p.world, -10, 10)
		sent := other.network.sent()
		slices.Sort(sent)
		same(t, "what the other one did", sent, "journal append", "north prepare", "south prepare")
	})
}

// TestSlowCommitter: a process that is stopped between the votes and the decision
// finds what a scanner has decided meanwhile, and goes by it.
func TestSlowCommitter(t *testing.T) {
	served(t, nil, func(t *testing.T, p *process) {
		w := p.world
		w.slow = true
		slow := w.start(t, nil, nil)
		held := make(chan struct{})
		slow.network.meet = func(at string) error {
			if at == "journal append 1 "+leaving {
				<-held
			}
			return nil
		}
		told := make(chan error, 1)
		go func() { told <- slow.Run(context.Background(), "1", slow.add(transfer)) }()
		time.Sleep(patience + 25*time.Second)
		synctest.Wait()
		if n := w.inDoubt(t); n != 0 {
			t.Errorf("%d in doubt", n)
		}
		got, ended := w.records(t, "1")
		same(t, "records", got, "decide:abort", "end:")
		if !ended {
			t.Error("it has not ended")
		}
		close(held)
		err := <-told
		wantKind(t, err, interlock.Definite, ErrAborted)
		var aborted *AbortedError
		if !errors.As(err, &aborted) || !aborted.Recorded {
			t.Errorf("%#v", err)
		}
		w.rest(t)
		wantSums(t, w, 0, 0)
		wantKind(t, p.Run(t.Context(), "1", p.add(transfer)), interlock.Definite, ErrAborted)
		wantKind(t, p.Settle(t.Context(), "1"), interlock.Definite, ErrAborted)
	})
}

// TestPatience: what is in doubt is left alone while a run may be at work on it, and
// for as long as it takes if it runs here.
func TestPatience(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld()
		held := make(chan struct{})
		p := w.start(t, func(at string) error {
			if at == "south prepare 1 "+leaving {
				<-held
			}
			return nil
		}, &Options{Prepare: 2 * time.Hour})
		told := make(chan error, 1)
		go func() { told <- p.Run(context.Background(), "1", p.add(transfer)) }()
		synctest.Wait()
		other := w.start(t, nil, nil)
		other.Scan(t.Context())
		time.Sleep(patience - time.Second)
		other.Scan(t.Context())
		found, err := other.InDoubt(t.Context())
		ok(t, err)
		if len(found) != 1 || found[0].Verdict != string(leave) || found[0].Age != patience-time.Second {
			t.Errorf("%+v", found)
		}
		time.Sleep(time.Hour)
		close(held)
		synctest.Wait()
		p.Scan(t.Context())
		ok(t, <-told)
		stop := p.serve(t, 1)
		ok(t, p.Settle(t.Context(), "1"))
		stop()
		wantSums(t, w, -10, 10)
	})
}

// TestHeuristic: a branch that a person rolled back though it was to be committed
// makes the outcome HEURISTIC; it is told of again and again, until somebody has seen
// to it.
func TestHeuristic(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld()
		hooks, log := listening()
		p := w.start(t, nil, &Options{Hooks: hooks, Scan: time.Hour, Remind: time.Hour})
		ok(t, p.Run(t.Context(), "1", p.add(transfer)))
		o, err := p.Look(t.Context(), "1")
		ok(t, err)
		ok(t, w.banks["south"].Rollback(t.Context(), driver.XID{Transaction: o.Transaction, Branch: "south"}))
		stop := p.serve(t, 1)
		defer stop()
		bounded, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		wantKind(t, p.Settle(bounded, "1"), interlock.Definite, driver.ErrHeuristic)
		o, err = p.Look(t.Context(), "1")
		ok(t, err)
		if o.State != Heuristic || len(o.Branches) != 2 || !o.Branches[0].Done || o.Branches[1].Heuristic == "" {
			t.Errorf("%+v", o)
		}
		got, _ := w.records(t, "1")
		same(t, "records", got, "decide:commit", "heuristic:south", "done:north")
		time.Sleep(2*time.Hour + 5*time.Minute)
		synctest.Wait()
		got, _ = w.records(t, "1")
		same(t, "records", got, "decide:commit", "heuristic:south", "done:north", "remind:", "remind:")
		if n := log.count("heuristic south"); n != 3 {
			t.Errorf("told %d times: %v", n, log.all())
		}
		for o, err := range p.Unfinished(t.Context()) {
			if ok(t, err); o.State != Heuristic {
				t.Errorf("%+v", o)
			}
		}
		wantKind(t, p.Acknowledge(t.Context(), "1", "", "paid by hand"), interlock.Bug, nil)
		ok(t, p.Acknowledge(t.Context(), "1", "ann", "paid by hand"))
		wantKind(t, p.Acknowledge(t.Context(), "1", "ann", "paid by hand"), interlock.Definite, nil)
		o, err = p.Look(t.Context(), "1")
		ok(t, err)
		if o.State != Resolved || o.Actor != "ann" || o.Note != "paid by hand" {
			t.Errorf("%+v", o)
		}
		if n, err := w.store.Unscheduled(t.Context()); n != 0 || err != nil {
			t.Errorf("%d unscheduled, %v", n, err)
		}
	})
}

// TestHeuristicAbort: a branch that a person committed before it could be rolled back
// is told of, and kept.
func TestHeuristicAbort(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld()
		hooks, log := listening()
		p := w.start(t, nil, &Options{Hooks: hooks})
		p.network.meet = func(at string) error {
			if at == "south prepare 1 "+returning {
				doubts, err := w.banks["south"].InDoubt(context.Background())
				ok(t, err)
				ok(t, w.banks["south"].Commit(context.Background(), doubts[0].XID))
				return errNetwork
			}
			return nil
		}
		wantKind(t, p.Run(t.Context(), "1", p.add(transfer)), interlock.Definite, ErrAborted)
		o, err := p.Look(t.Context(), "1")
		ok(t, err)
		if o.State != Heuristic || o.Decision != Abort || o.Branches[0].Participant != "south" || log.count("heuristic south") != 1 {
			t.Errorf("%+v, %v", o, log.all())
		}
		ok(t, p.Acknowledge(t.Context(), "1", "ann", "moved back"))
		wantSums(t, w, 0, 10)
	})
}

// TestDownParticipant: a participant that does not answer for hours is told to commit
// again and again, and the others do not wait for it.
func TestDownParticipant(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld()
		hooks, log := listening()
		var down atomic.Bool
		down.Store(true)
		p := w.start(t, nil, &Options{Hooks: hooks, Scan: time.Hour})
		p.network.meet = func(at string) error {
			if down.Load() && strings.HasPrefix(at, "south commit") {
				return errNetwork
			}
			return nil
		}
		stop := p.serve(t, 1)
		defer stop()
		ok(t, p.Run(t.Context(), "1", p.add(transfer)))
		time.Sleep(6 * time.Hour)
		synctest.Wait()
		if south, _ := w.banks["south"].InDoubt(t.Context()); len(south) != 1 || w.sums()["north"] != -10 {
			t.Errorf("%v, sums %v", south, w.sums())
		}
		if n := log.count("tried commit south"); n < 6*60*2 || n > 6*60*60 {
			t.Errorf("told %d times", n)
		}
		if log.count("tried commit north") != 0 {
			t.Error("north was told again")
		}
		if o := log.last("scanned south"); o.age < 4*time.Hour {
			t.Errorf("the gauge shows %v", o.age)
		}
		down.Store(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		wantSums(t, w, -10, 10)
		if got, ended := w.records(t, "1"); !ended {
			t.Error(got)
		}
	})
}

// TestJournalGone: while the journal does not answer, who voted yes is blocked, shown
// and timed, and nobody decides for himself; when it is back, all is finished.
func TestJournalGone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld()
		hooks, log := listening()
		var gone atomic.Bool
		p := w.start(t, nil, &Options{Hooks: hooks})
		p.network.meet = func(at string) error {
			if at == "south prepare 1 "+returning {
				gone.Store(true)
			}
			if gone.Load() && strings.HasPrefix(at, "journal") {
				return errNetwork
			}
			return nil
		}
		stop := p.serve(t, 1)
		defer stop()
		wantKind(t, p.Run(t.Context(), "1", p.add(transfer)), interlock.Uncertain, nil)
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := w.inDoubt(t); n != 2 {
			t.Errorf("%d in doubt", n)
		}
		if o := log.last("scanned north"); o.blocked != 1 || o.age < 59*time.Minute || o.since < 59*time.Minute {
			t.Errorf("%+v", o)
		}
		wantKind(t, p.Run(t.Context(), "2", func(context.Context, *T) error {
			t.Error("it works without the journal")
			return nil
		}), interlock.Retryable, errNetwork)
		found, err := p.InDoubt(t.Context())
		ok(t, err)
		if len(found) != 2 || found[0].Verdict != "blocked" || found[0].BlockedFor < 59*time.Minute || !errors.Is(found[0].Err, errNetwork) {
			t.Errorf("%+v", found)
		}
		gone.Store(false)
		w.rest(t)
		wantSums(t, w, 0, 0)
		if o := log.last("scanned north"); o.blocked != 0 || o.since != 0 {
			t.Errorf("%+v", o)
		}
	})
}

// TestCanceled: a caller that goes away before the decision has its transaction
// aborted, and its branches freed all the same.
func TestCanceled(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld()
		ctx, cancel := context.WithCancel(t.Context())
		p := w.start(t, func(at string) error {
			if at == "south prepare 1 "+returning {
				cancel()
			}
			return nil
		}, nil)
		wantKind(t, p.Run(ctx, "1", p.add(transfer)), interlock.Definite, context.Canceled)
		if n := w.inDoubt(t); n != 0 {
			t.Errorf("%d in doubt", n)
		}
		wantSums(t, w, 0, 0)
	})
}

// TestLostDecision: a decision that stands in the journal is found there, though no
// answer to it ever came back.
func TestLostDecision(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld()
		p := w.start(t, func(at string) error {
			if strings.HasPrefix(at, "journal append") && strings.HasSuffix(at, returning) {
				return errNetwork
			}
			return nil
		}, nil)
		ok(t, p.Run(t.Context(), "1", p.add(transfer)))
		got, _ := w.records(t, "1")
		same(t, "records", got, "decide:commit")
		defer w.start(t, nil, nil).serve(t, 1)()
		w.rest(t)
		wantSums(t, w, -10, 10)
	})
}

// TestJournalAskedOnce: a scan does not wait for a silent journal at each of many
// branches.
func TestJournalAskedOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld()
		for i := range 20 {
			w.prepare(t, "north", begin(fmt.Sprint(i), time.Now(), 1).xid("north"))
		}
		var asked atomic.Int64
		p := w.start(t, func(at string) error {
			asked.Add(1)
			return errNetwork
		}, nil)
		found, err := p.InDoubt(t.Context())
		ok(t, err)
		if len(found) != 20 || found[19].Verdict != "blocked" || asked.Load() != 1 {
			t.Errorf("asked %d times: %+v", asked.Load(), found)
		}
	})
}
