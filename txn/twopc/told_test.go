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
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
)

// TestMachineLeavesWhatWas: applying more records does not change a copy of the machine from
// before them.
func TestMachineLeavesWhatWas(t *testing.T) {
	before, err := replay([]journal.Entry{letters['C']})
	ok(t, err)
	after, err := before.with(letters['N'], letters['s'])
	if ok(t, err); len(before.left()) != 2 || len(after.left()) != 0 {
		t.Errorf("left %v, then %v", before.left(), after.left())
	}
}

// TestFollow: a branch that must be called again is never recorded as done. A done one is
// recorded only if an operator must handle another one.
func TestFollow(t *testing.T) {
	three, err := replay([]journal.Entry{decide(Commit, decideData{Run: "r", Branches: []string{"a", "b", "c"}})})
	ok(t, err)
	refused := fmt.Errorf("%w: paid back", driver.ErrHeuristic)
	for name, c := range map[string]struct {
		errs []error
		want []string
	}{
		"all done":       {[]error{nil, nil, nil}, []string{"end:"}},
		"one again":      {[]error{nil, errWork, nil}, nil},
		"one otherwise":  {[]error{refused, nil, nil}, []string{"heuristic:a", "done:b", "done:c"}},
		"and one again":  {[]error{refused, errWork, nil}, []string{"heuristic:a", "done:c"}},
		"all otherwise":  {[]error{refused, refused, refused}, []string{"heuristic:a", "heuristic:b", "heuristic:c"}},
		"none is called": {[]error{errWork, errWork, errWork}, nil},
	} {
		var got []string
		for _, e := range three.recordsAfter(sortResults([]string{"a", "b", "c"}, c.errs)) {
			got = append(got, e.Kind+":"+e.Step)
		}
		same(t, name, got, c.want...)
	}
}

// TestHooksAreTold of each decision, with its actor and reason; of each failed call, with
// the time of the next one; and of the end.
func TestHooksAreTold(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var lines txntest.Events[string]
		say := func(format string, args ...any) { lines.Add(fmt.Sprintf(format, args...)) }
		heard := func() []string { // sorted: the decision and the commits are concurrent
			synctest.Wait()
			return slices.Sorted(slices.Values(lines.Take()))
		}
		names := map[string]string{}
		w := newWorld()
		p := w.start(t, losing("south commit 1 "+leaving), &Options{Hooks: &observe.TwoPC{
			Decided: func(o observe.TwoPCDecided) { say("%s: %s: %s", names[o.Transaction], doing(o.Commit), o.Reason) },
			Tried: func(o observe.TwoPCTried) {
				say("%s: %s %s %d: %v, again in %v", names[o.Transaction], doing(o.Commit), o.Participant, o.Attempt, o.Err, o.Again)
			},
			Ended: func(o observe.TwoPCEnded) { say("%s: %s", names[o.Transaction], o.State) },
		}})
		defer p.serve(t, 1)()
		run := func(id string, deltas map[string]int64, err error) error {
			return p.Run(t.Context(), id, func(ctx context.Context, x *T) error {
				names[x.XID("").Transaction] = id
				return errors.Join(p.add(deltas)(ctx, x), err)
			})
		}
		ok(t, run("1", transfer, nil))
		ok(t, txntest.Second(p.Wait(t.Context(), "1")))
		same(t, "committed", heard(), "1: COMMITTED", "1: commit south 1: lost on its way, again in 50ms", "1: commit: ")
		wantKind(t, run("2", transfer, errWork), interlock.Definite, errWork)
		same(t, "aborted", heard(), "2: roll back: "+errWork.Error())
		asked := begin("3", time.Now(), 99).String()
		names[asked] = "3"
		for range 2 {
			ok(t, txntest.Second(p.Decide(t.Context(), asked)))
		}
		same(t, "asked", heard(), "3: roll back: a participant asked, and there was no decision")
		o, err := p.Look(t.Context(), "1")
		if ok(t, err); len(o.Branches) != 2 || !o.Branches[0].Done || !o.Branches[1].Done {
			t.Errorf("%+v", o)
		}
	})
}

// TestOneOtherwiseOneDown: of three branches one was rolled back by an operator, and one
// is unreachable: that is called again until it has committed, the third one is not.
func TestOneOtherwiseOneDown(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var down atomic.Bool
		down.Store(true)
		p := w.start(t, losingWhile(&down, "rates commit"), &Options{Scan: time.Hour})
		ok(t, p.Run(t.Context(), "1", p.add(map[string]int64{"north": -10, "south": 5, "rates": 5})))
		o, err := p.Look(t.Context(), "1")
		ok(t, err)
		ok(t, w.banks["south"].Rollback(t.Context(), driver.XID{Transaction: o.Transaction, Branch: "south"}))
		defer p.serve(t, 1)()
		time.Sleep(10 * time.Second)
		answers := func() []string {
			got, _ := w.records(t, "1")
			return slices.DeleteFunc(got, func(kind string) bool { return kind == "failing:rates" })
		}
		same(t, "records", answers(), "decide:commit", "heuristic:south", "done:north")
		wantKind(t, p.Operator().Resolve(t.Context(), "1", By{Actor: "ann", Reason: "x"}), interlock.Definite, nil)
		down.Store(false)
		err = txntest.Second(p.Wait(t.Context(), "1"))
		if wantKind(t, err, interlock.Definite, driver.ErrHeuristic); err == nil || !strings.Contains(err.Error(), "south: ") {
			t.Errorf("%v: of whom?", err)
		}
		same(t, "records", answers(), "decide:commit", "heuristic:south", "done:north", "done:rates")
		txntest.Equal(t, "sum of rates", w.banks["rates"].Get("sum"), 5)
	})
}

// TestCallerLeaves: if the caller leaves after all votes, the transaction aborts, and its
// branches are freed. A decision that was sent, and must be sent again, remains.
func TestCallerLeaves(t *testing.T) {
	for decided, want := range map[bool]error{false: context.Canceled, true: nil} {
		inWorld(t, func(t *testing.T, w *world) {
			ctx, leave := context.WithCancel(t.Context())
			var voted atomic.Int64
			p := w.start(t, func(at string) error {
				switch {
				case strings.HasSuffix(at, "prepare 1 "+returning) && voted.Add(1) == 2 && !decided:
					leave()
				case at == "journal append 1 "+leaving:
					leave()
					return errNetwork
				}
				return nil
			}, nil)
			err := p.Run(ctx, "1", p.add(transfer))
			if !errors.Is(err, want) || (err == nil) != (want == nil) {
				t.Errorf("%v, want %v", err, want)
			}
			got, _ := w.records(t, "1")
			if same(t, "records", got, map[bool][]string{true: {"decide:commit"}}[decided]...); !decided && w.inDoubt(t) != 0 {
				t.Errorf("%d in doubt", w.inDoubt(t))
			}
		})
	}
}

// TestWhatWasNotToldIsFreed: a participant that never received a prepare, or a commit,
// blocks no other transaction.
func TestWhatWasNotToldIsFreed(t *testing.T) {
	for at, deltas := range map[string]map[string]int64{"north commit one 1 " + leaving: {"north": 1}, "north prepare 1 " + leaving: transfer} {
		for _, lost := range []error{errNetwork, &interlock.Error{Op: "call", Kind: interlock.Definite, Err: errNetwork}} {
			inWorld(t, func(t *testing.T, w *world) {
				p := w.start(t, func(label string) error {
					if label == at {
						return lost
					}
					return nil
				}, nil)
				if err := p.Run(t.Context(), "1", p.add(deltas)); !errors.Is(err, errNetwork) {
					t.Errorf("%v", err)
				}
				txntest.Equal(t, "in doubt", w.inDoubt(t), 0)
				ok(t, p.Run(t.Context(), "2", p.add(deltas)))
			})
		}
	}
}

// TestAbortedMeanwhile: a run that finds another process's abort rolls its branches back
// at once.
func TestAbortedMeanwhile(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		p, other := w.start(t, nil, nil), w.start(t, nil, nil)
		err := p.Run(t.Context(), "1", func(ctx context.Context, x *T) error {
			_, err := other.Decide(ctx, x.XID("north").Transaction)
			return errors.Join(err, p.add(transfer)(ctx, x))
		})
		var aborted *AbortedError
		if !errors.As(err, &aborted) || !aborted.Recorded || w.inDoubt(t) != 0 {
			t.Errorf("%v, %d in doubt", err, w.inDoubt(t))
		}
	})
}

// TestRollbackIsGivenUp: a participant that does not answer a rollback is called again
// for Timeout, and blocks the caller no longer. It is called less often if it asks for pauses.
func TestRollbackIsGivenUp(t *testing.T) {
	for fails, calls := range map[error][2]int{errNetwork: {4, 100}, txntest.Busy(2 * time.Second): {3, 3}} {
		inWorld(t, func(t *testing.T, w *world) {
			var last observe.TwoPCTried
			tried := 0
			p := w.start(t, func(at string) error {
				if strings.HasPrefix(at, "north rollback") {
					return fails
				}
				return losing("south prepare 1 " + leaving)(at)
			}, &Options{Timeout: 5 * time.Second, Hooks: &observe.TwoPC{Tried: func(o observe.TwoPCTried) {
				if o.Participant == "north" {
					last, tried = o, tried+1
				}
			}}})
			begun := time.Now()
			wantKind(t, p.Run(t.Context(), "1", p.add(transfer)), interlock.Definite, ErrAborted)
			if took := time.Since(begun); took > 5*time.Second || took < time.Second || tried < calls[0] || tried > calls[1] || last.Again != 0 || last.Attempt != tried || last.Commit {
				t.Errorf("after %v, %d calls: %+v", took, tried, last)
			}
		})
	}
}

// TestUnwrittenDecision: no caller gets a decision that is not in the journal, or that
// cannot be read.
func TestUnwrittenDecision(t *testing.T) {
	for _, what := range []string{"journal append", "journal read"} {
		bubble(t, func(t *testing.T) {
			p := newWorld().start(t, losing(what), nil)
			name := begin("1", time.Now(), 1).String()
			if d, err := p.Decide(t.Context(), name); d != "" || !errors.Is(err, errNetwork) {
				t.Errorf("no %s: %q, %v", what, d, err)
			}
			for call, err := range map[string]error{
				"resolve": p.Settle(t.Context(), name, Abort, By{Actor: "ann", Reason: "x"}), "acknowledge": p.Operator().Resolve(t.Context(), "1", By{Actor: "ann", Reason: "x"}),
			} {
				if err == nil || what == "journal read" && !errors.Is(err, errNetwork) {
					t.Errorf("no %s: %s: %v", what, call, err)
				}
			}
			_, err := p.Look(t.Context(), "1")
			if !errors.Is(err, map[string]error{"journal append": ErrNone, "journal read": errNetwork}[what]) {
				t.Errorf("no %s: look: %v", what, err)
			}
			for _, err := range p.Operator().List(t.Context(), Filter{Unfinished: true}) {
				t.Errorf("unfinished: %v", err)
			}
		})
	}
}

// forgetful is a journal that finds no transaction.
type forgetful struct{ *memory.Journal }

func (forgetful) Read(context.Context, string, int64) (driver.Head, []driver.Record, error) {
	return driver.Head{}, nil, nil
}

// on returns an engine over a store, and the error of its coordinator.
func on(t *testing.T, store driver.Journal) (p *process, failed func() error) {
	t.Helper()
	var errs txntest.Events[error]
	j, err := journal.New(store, &journal.Options{Shards: 1})
	ok(t, err)
	t.Cleanup(func() { ok(t, j.Close()) })
	c, err := coordinator.New(j, &coordinator.Options{Hooks: &observe.Coordinator{Failed: func(e observe.CoordinatorFailed) { errs.Add(e.Err) }}})
	ok(t, err)
	m, err := New(c, nil, Define("north", memory.NewParticipant()), Define("south", memory.NewParticipant()))
	ok(t, err)
	return &process{Engine: m, network: newNetwork(nil)}, func() error {
		synctest.Wait()
		return errors.Join(errs.All()...)
	}
}

// TestForgottenAtOnce: if another decision was first, and is gone when it is read, neither
// is reported.
func TestForgottenAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, _ := on(t, forgetful{memory.NewJournal()})
		name := begin("1", time.Now(), 1).String()
		ok(t, p.coordinator.Begin(t.Context(), "1", "2pc:x", letters['C']))
		_, err := p.Decide(t.Context(), name)
		if wantKind(t, err, interlock.Retryable, nil); err == nil || !strings.Contains(err.Error(), "the retention of the journal") {
			t.Errorf("%v", err)
		}
	})
}

// TestStrangeRecords: every reader reports records of a newer version, or impossible ones,
// and does not change them.
func TestStrangeRecords(t *testing.T) {
	long := strings.Repeat("long/", 20)
	for name, c := range map[string]struct {
		id      string
		entries []journal.Entry
		want    string
		drives  bool // only that fails
	}{
		"a kind of record": {"1", []journal.Entry{letters['A'], {Kind: "later"}}, "newer version", false},
		"a run":            {"1", []journal.Entry{letters['C']}, "not a branch name of this package", true},
		"another id":       {long, []journal.Entry{decide(Abort, decideData{ID: "other", Run: "r"})}, "has the same key", false},
	} {
		bubble(t, func(t *testing.T) {
			p, failed := on(t, memory.NewJournal())
			ok(t, txntest.Second(p.coordinator.Journal().Begin(t.Context(), Key(c.id), "2pc:x", time.Now().Add(time.Second), c.entries...)))
			errs := map[string]error{}
			if !c.drives {
				_, errs["look"] = p.Look(t.Context(), c.id)
				errs["settle"] = txntest.Second(p.Wait(t.Context(), c.id))
				errs["acknowledge"] = p.Operator().Resolve(t.Context(), c.id, By{Actor: "ann", Reason: "x"})
				errs["run"] = p.Run(t.Context(), c.id, func(context.Context, *T) error { t.Error("it is run"); return nil })
			}
			if !strings.HasPrefix(c.want, "has") {
				stop := p.serve(t, 1)
				time.Sleep(time.Minute)
				stop()
				errs["drive"] = failed()
			}
			for what, err := range errs {
				if err == nil || interlock.Kind(err) != interlock.Bug || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%s: %s: %v", name, what, err)
				}
			}
		})
	}
}

// TestNotForAPerson: an operator cannot decide a running or a missing transaction.
func TestNotForAPerson(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newWorld().start(t, nil, nil)
		wantKind(t, p.Operator().Resolve(t.Context(), "1", By{Actor: "ann", Reason: "x"}), interlock.Definite, ErrNone)
		ok(t, p.Run(t.Context(), "1", func(ctx context.Context, x *T) error {
			err := p.Settle(ctx, x.XID("north").Transaction, Abort, By{Actor: "ann", Reason: "x"})
			if wantKind(t, err, interlock.Bug, nil); !strings.Contains(err.Error(), "under way") {
				t.Errorf("%v", err)
			}
			return p.add(transfer)(ctx, x)
		}))
		err := p.Operator().Resolve(t.Context(), "1", By{Actor: "ann", Reason: "x"})
		if wantKind(t, err, interlock.Definite, nil); !strings.Contains(err.Error(), `open: ["north" "south"]`) {
			t.Errorf("%v", err)
		}
	})
}

// TestNotEndedBeforeItStands: no caller gets an end that is not in the journal.
func TestNotEndedBeforeItStands(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var gone atomic.Bool
		hooks, log := listening()
		p := newWorld().start(t, losingWhile(&gone, "journal append"), &Options{Hooks: hooks})
		ok(t, p.Run(t.Context(), "1", p.add(transfer)))
		gone.Store(true)
		defer p.serve(t, 1)()
		time.Sleep(30 * time.Second)
		txntest.Equal(t, "reports", log.count("ended"), 0)
		gone.Store(false)
		p.world.rest(t)
		txntest.Equal(t, "reports", log.count("ended"), 1)
	})
}

// TestHeuristicAbortIsToldOnce: the process that finds it reports it. The owner of its shard,
// in this or another process, and the next owner report it only when a reminder is due.
func TestHeuristicAbortIsToldOnce(t *testing.T) {
	for _, elsewhere := range []bool{false, true} {
		inWorld(t, func(t *testing.T, w *world) {
			hooks, log := listening()
			o := &Options{Hooks: hooks, Scan: time.Hour, Remind: 2 * time.Hour}
			p := w.start(t, nil, o)
			owner := p
			if elsewhere {
				owner = w.start(t, nil, o)
			}
			stop := owner.serve(t, 1)
			p.recordHeuristicAbort(t.Context(), begin("1", time.Now(), 1), "south", errWork)
			time.Sleep(time.Minute)
			stop()
			defer owner.serve(t, 2)()
			for told, records := range [][]string{{"decide:abort", "heuristic:south"}, {"decide:abort", "heuristic:south", "remind:"}} {
				time.Sleep(118 * time.Minute)
				txntest.Equal(t, "reports", log.count("heuristic south"), told+1)
				got, _ := w.records(t, "1")
				same(t, "records", got, records...)
			}
		})
	}
}
