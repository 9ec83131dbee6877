package twopc

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/internal/virtual"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
)

// TestHeuristic: if an operator rolled back a branch of a commit, the outcome is HEURISTIC.
// It is reported repeatedly, until an operator acknowledges it.
func TestHeuristic(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		hooks, log := listening()
		p := w.start(t, nil, &Options{Hooks: hooks, Scan: time.Hour, Remind: time.Hour})
		ok(t, p.Run(t.Context(), "1", p.add(transfer)))
		o, err := p.Look(t.Context(), "1")
		ok(t, err)
		ok(t, w.banks["south"].Rollback(t.Context(), driver.XID{Transaction: o.Transaction, Branch: "south"}))
		defer p.serve(t, 1)()
		bounded, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		wantKind(t, txntest.Second(p.Wait(bounded, "1")), interlock.Definite, driver.ErrHeuristic)
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
			t.Errorf("reported %d times: %v", n, log.all())
		}
		for o, err := range p.Operator().List(t.Context(), Filter{Unfinished: true}) {
			if ok(t, err); o.State != Heuristic {
				t.Errorf("%+v", o)
			}
		}
		wantKind(t, p.Operator().Resolve(t.Context(), "1", By{Actor: "", Reason: "paid by hand"}), interlock.Bug, nil)
		ok(t, p.Operator().Resolve(t.Context(), "1", By{Actor: "ann", Reason: "paid by hand"}))
		wantKind(t, p.Operator().Resolve(t.Context(), "1", By{Actor: "ann", Reason: "paid by hand"}), interlock.Definite, nil)
		o, err = p.Look(t.Context(), "1")
		ok(t, err)
		if o.State != Resolved || o.Resolved != (By{Actor: "ann", Reason: "paid by hand"}) {
			t.Errorf("%+v", o)
		}
		txntest.Unscheduled(t, w.store)
	})
}

// TestHeuristicAbort: a branch that an operator committed before its rollback is reported,
// and kept.
func TestHeuristicAbort(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
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
		ok(t, p.Operator().Resolve(t.Context(), "1", By{Actor: "ann", Reason: "moved back"}))
		wantSums(t, w, 0, 10)
	})
}

// TestHeuristicAbortOfTwo: all branches of an abort that an operator committed before are in the journal.
func TestHeuristicAbortOfTwo(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		p := w.start(t, nil, nil)
		p.network.meet = func(at string) error {
			for _, name := range []string{"north", "south"} {
				if at != name+" prepare 1 "+returning {
					continue
				}
				doubts, err := w.banks[name].InDoubt(context.Background())
				ok(t, err)
				ok(t, w.banks[name].Commit(context.Background(), doubts[0].XID))
				return errNetwork
			}
			return nil
		}
		wantKind(t, p.Run(t.Context(), "1", p.add(transfer)), interlock.Definite, ErrAborted)
		o, err := p.Look(t.Context(), "1")
		if ok(t, err); o.State != Heuristic || len(o.Dead) != 2 {
			t.Errorf("%+v", o)
		}
		ok(t, p.Operator().Resolve(t.Context(), "1", By{Actor: "ann", Reason: "moved back"}))
	})
}

// TestDownParticipant: the commit of a participant that is down for hours is retried, and
// the others do not wait for it.
func TestDownParticipant(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		hooks, log := listening()
		var down atomic.Bool
		down.Store(true)
		p := w.start(t, losingWhile(&down, "south commit"), &Options{Hooks: hooks, Scan: time.Hour})
		defer p.serve(t, 1)()
		ok(t, p.Run(t.Context(), "1", p.add(transfer)))
		time.Sleep(6 * time.Hour)
		synctest.Wait()
		if south, _ := w.banks["south"].InDoubt(t.Context()); len(south) != 1 || w.sums()["north"] != -10 {
			t.Errorf("%v, sums %v", south, w.sums())
		}
		if n := log.count("tried commit south"); n < 6*60*2 || n > 6*60*60 {
			t.Errorf("reported %d times", n)
		}
		if log.count("tried commit north") != 0 {
			t.Error("north was called again")
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

// TestHandOvers: owners that end cleanly while a participant is called do not count as crashed.
func TestHandOvers(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		p := w.start(t, nil, &Options{Scan: time.Hour})
		var up atomic.Bool
		p.participants["south"] = hanging{p.participants["south"], &up}
		ok(t, p.Run(t.Context(), "1", p.add(transfer)))
		for n := int64(1); n < 17; n++ {
			p.serve(t, n)()
		}
		up.Store(true)
		defer p.serve(t, 17)()
		ok(t, txntest.Second(p.Wait(t.Context(), "1")))
		wantSums(t, w, -10, 10)
	})
}

// TestYields: an owner that gives its shard away while a participant is called, whose call then fails, does
// not count as crashed.
func TestYields(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		p := w.start(t, nil, &Options{Timeout: time.Minute})
		var up atomic.Bool
		p.participants["south"] = hanging{p.participants["south"], &up}
		ok(t, p.Run(t.Context(), "1", p.add(transfer)))
		p.serve(t, 1)()
		txntest.Yields(t, p.coordinator.Serve, func(id string) error {
			return txntest.Second(p.coordinator.Journal().Begin(t.Context(), id, "foreign:x", time.Now(), journal.Entry{Kind: "begin"}))
		})
		up.Store(true)
		txntest.Serve(t, p.coordinator.Serve, 17)
		ok(t, txntest.Second(p.Wait(t.Context(), "1")))
	})
}

// hanging is a participant whose commits fail after 15 s, or with their context, until it is up.
type hanging struct {
	driver.Participant
	up *atomic.Bool
}

func (h hanging) Commit(ctx context.Context, x driver.XID) error {
	if h.up.Load() {
		return h.Participant.Commit(ctx, x)
	}
	select {
	case <-ctx.Done():
	case <-time.After(15 * time.Second):
	}
	return errNetwork
}

// unreachable is a participant that receives no commit until it is up.
type unreachable struct {
	*memory.Participant
	up *atomic.Bool
}

func (u unreachable) Commit(ctx context.Context, x driver.XID) error {
	if !u.up.Load() {
		return errNetwork
	}
	return u.Participant.Commit(ctx, x)
}

// TestManyParticipants: failures and heuristic outcomes of more branches than one append has records are
// recorded.
func TestManyParticipants(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var up atomic.Bool
		var shards []Definition[*memory.Branch]
		var all []Defined
		var last unreachable
		for i := range driver.MaxRecords + 8 {
			last = unreachable{memory.NewParticipant(), &up}
			shards = append(shards, Define(fmt.Sprint("shard", i), last))
			all = append(all, shards[i])
		}
		j, err := journal.New(memory.NewJournal(), &journal.Options{Shards: 1})
		ok(t, err)
		t.Cleanup(func() { ok(t, j.Close()) })
		c, err := coordinator.New(j, nil)
		ok(t, err)
		m, err := New(c, &Options{Scan: time.Hour}, all...)
		ok(t, err)
		txntest.Serve(t, c.Serve, 1)
		ok(t, m.Run(t.Context(), "1", func(ctx context.Context, t *T) error {
			for _, s := range shards {
				tx, err := s.Join(ctx, t)
				if err == nil {
					_, err = tx.Add("sum", 1)
				}
				if err != nil {
					return err
				}
			}
			return nil
		}))
		time.Sleep(10 * time.Second)
		o, err := m.Look(t.Context(), "1")
		if ok(t, err); len(o.Failing) != len(shards) {
			t.Errorf("%d of %d branches fail", len(o.Failing), len(shards))
		}
		ok(t, last.Rollback(t.Context(), driver.XID{Transaction: o.Transaction, Branch: shards[len(shards)-1].name}))
		up.Store(true)
		bounded, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		wantKind(t, txntest.Second(m.Wait(bounded, "1")), interlock.Definite, driver.ErrHeuristic)
	})
}

// TestBusyParticipant is not called again before the time for which it asks, up to the longest pause. A
// participant that asks for none does not wait for it.
func TestBusyParticipant(t *testing.T) {
	for also, want := range map[string]time.Duration{"": 20 * time.Second, "north commit 1 " + leaving: 50 * time.Millisecond} {
		bubble(t, func(t *testing.T) {
			var first time.Duration
			w := newWorld()
			p := w.start(t, func(at string) error {
				switch at {
				case "south commit 1 " + leaving:
					return txntest.Busy(20 * time.Second)
				case also:
					return errNetwork
				}
				return nil
			}, &Options{Scan: time.Hour, Hooks: &observe.TwoPC{Tried: func(o observe.TwoPCTried) { first = o.Again }}})
			defer p.serve(t, 1)()
			ok(t, p.Run(t.Context(), "1", p.add(transfer)))
			ok(t, txntest.Second(p.Wait(t.Context(), "1")))
			if took := time.Since(virtual.Began); first != want || took < want || took > want+time.Second {
				t.Errorf("%q: again after %v, committed after %v", also, first, took)
			}
		})
	}
}

// TestJournalGone: while the journal does not answer, branches that voted yes are blocked
// and reported with their times, and none decides alone. When it is back, all finish.
func TestJournalGone(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
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
		defer p.serve(t, 1)()
		wantKind(t, p.Run(t.Context(), "1", p.add(transfer)), interlock.Uncertain, nil)
		time.Sleep(time.Hour)
		synctest.Wait()
		txntest.Equal(t, "in doubt", w.inDoubt(t), 2)
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

// TestJournalAskedOnce: a scan does not wait for a silent journal at each of many
// branches.
func TestJournalAskedOnce(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
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

// TestSecondDecision: a process that appends an abort after a commit that it had not seen
// follows the commit.
func TestSecondDecision(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		deciding, decide, done := make(chan struct{}), make(chan struct{}), make(chan error)
		p := w.start(t, func(at string) error {
			if at == "journal append 1 "+leaving {
				close(deciding)
				<-decide
			}
			return nil
		}, nil)
		names := make(chan string, 1)
		go func() {
			done <- p.Run(context.Background(), "1", func(ctx context.Context, x *T) error {
				names <- x.XID("north").Transaction
				return p.add(transfer)(ctx, x)
			})
		}()
		<-deciding
		second := w.start(t, func(at string) error {
			if at == "journal append 1 "+leaving { // it has read the journal, and found nothing
				close(decide)
				ok(t, <-done)
			}
			return nil
		}, nil)
		name := <-names
		if d, err := second.Decide(t.Context(), name); d != Commit || err != nil {
			t.Errorf("%v, %v", d, err)
		}
		wantKind(t, second.Settle(t.Context(), name, Abort, By{Actor: "ann", Reason: "x"}), interlock.Definite, ErrDecided)
		got, _ := w.records(t, "1")
		same(t, "records", got, "decide:commit")
	})
}

// TestHalfIsSeen shows a limit of two-phase commit: at a pause before and after each message
// of a process, a reader reads both databases and the journal. No reader sees the transfer
// before the decision is in the journal. Between the first and the last commit a reader sees
// half of it, unless it locks the rows that it reads.
func TestHalfIsSeen(t *testing.T) {
	t.Parallel()
	b := build(t, testbed.Postgres(t), testbed.MariaDB(t))
	w := crash.Lead(t, "teller in turn", b.north.URL, b.south.URL, b.namespace())
	var seen []string
	for w.Next() {
		w.Pause()
		seen = append(seen, b.seen(t))
		w.Resume()
	}
	b.judge(t, []string{"1"})
	same(t, "seen", seen,
		"undecided, nothing moved", "undecided, nothing moved", // around the first prepare
		"undecided, nothing moved", "undecided, nothing moved", // around the second
		"undecided, nothing moved", "decided, nothing moved", // around the append of the decision
		"decided, nothing moved", "decided, half moved", // around the first commit
		"decided, half moved", "decided, all moved", // around the second
		"decided, all moved", "decided, all moved") // around the append of the end
}

// seen returns what a reader of both databases and the journal finds.
func (b branches) seen(tb testing.TB) string {
	tb.Helper()
	_, records, err := journal.NewTable(b.north, "").Read(tb.Context(), Key("1"), 0)
	ok(tb, err)
	decision := "undecided"
	if slices.ContainsFunc(records, func(r driver.Record) bool { return r.Kind == recordDecide && Decision(r.Step) == Commit }) {
		decision = "decided"
	}
	moved := []string{"nothing", "half", "all"}[b.moved(tb, b.north, 990, "for share nowait")+b.moved(tb, b.south, 1010, "lock in share mode nowait")]
	return fmt.Sprintf("%s, %s moved", decision, moved)
}

// moved returns 1 if a reader sees the transfer's result in one database, and 0 if it sees
// the state before. A locking reader sees the result, or waits; it never sees the state
// before.
func (b branches) moved(tb testing.TB, db *databases.DB, want int64, lock string) int {
	tb.Helper()
	const balance = `select balance from account where id = 1`
	got, locked := databases.One[int64](tb, db, balance), int64(0)
	err := db.Try(tb.Context(), func(ctx context.Context, tx driver.SQL) (err error) {
		locked, err = databases.Value[int64](ctx, tx, balance+" "+lock)
		return err
	})
	if got != 1000 && got != want || (err == nil) != (got == want) || err == nil && locked != want {
		tb.Errorf("seen %d; locked %d, %v", got, locked, err)
	}
	if got == want {
		return 1
	}
	return 0
}

// refusing is a participant that refuses every branch.
type refusing struct {
	driver.Preparer[*memory.Branch]
	err error
}

func (r refusing) Begin(ctx context.Context, x driver.XID) (*memory.Branch, driver.Preparing, error) {
	tx, b, err := r.Preparer.Begin(ctx, x)
	return tx, refused{b, r.err}, err
}

type refused struct {
	driver.Preparing
	err error
}

func (r refused) Prepare(ctx context.Context) (driver.Vote, error) {
	return driver.VoteNo, errors.Join(r.err, r.Abandon(ctx))
}

func (r refused) CommitOne(ctx context.Context) error { return errors.Join(r.err, r.Abandon(ctx)) }

// TestRefusedCommit: the kind of a participant's refusal is that of the abort: Retryable
// for a deadlock, Definite for another known reason, Uncertain only if the outcome is
// unknown.
func TestRefusedCommit(t *testing.T) {
	said := func(kind interlock.ErrorKind) error {
		return &interlock.Error{Op: "commit", Kind: kind, Err: errWork}
	}
	for _, c := range []struct {
		said, want interlock.ErrorKind
		alone      bool
	}{
		{interlock.Retryable, interlock.Retryable, true},
		{interlock.Retryable, interlock.Retryable, false},
		{interlock.Definite, interlock.Definite, true},
		{interlock.Definite, interlock.Definite, false},
		{interlock.Bug, interlock.Definite, true},
		{interlock.Bug, interlock.Definite, false},
		{interlock.Uncertain, interlock.Uncertain, true},
		{interlock.Uncertain, interlock.Definite, false}, // it never received a commit
	} {
		t.Run(fmt.Sprintf("%v, alone %v", c.said, c.alone), func(t *testing.T) {
			served(t, nil, func(t *testing.T, p *process) {
				err := p.Run(t.Context(), "1", func(ctx context.Context, x *T) error {
					if !c.alone {
						ok(t, p.add(map[string]int64{"south": 10})(ctx, x))
					}
					tx, err := Define("north", refusing{p.at["north"].preparer, said(c.said)}).Join(ctx, x)
					ok(t, err)
					_, err = tx.Add("sum", -10)
					return err
				})
				wantKind(t, err, c.want, errWork)
				if c.want != interlock.Uncertain {
					wantKind(t, err, c.want, ErrAborted)
					wantSums(t, p.world, 0, 0)
					ok(t, p.Run(t.Context(), "1", p.add(transfer)))
				}
			})
		})
	}
}

// panicking is a participant whose calls panic, except that to prepare, which is vote.
type panicking struct {
	driver.Preparer[*memory.Branch]
	vote func()
}

func (p panicking) Begin(ctx context.Context, x driver.XID) (*memory.Branch, driver.Preparing, error) {
	tx, _, err := p.Preparer.Begin(ctx, x)
	return tx, p, err
}

func (p panicking) Prepare(context.Context) (driver.Vote, error) {
	p.vote()
	return driver.VoteYes, nil
}
func (panicking) CommitOne(context.Context) error                   { panic("commit one") }
func (panicking) Abandon(context.Context) error                     { panic("abandon") }
func (panicking) Rollback(context.Context, driver.XID) error        { panic("rollback") }
func (panicking) InDoubt(context.Context) ([]driver.InDoubt, error) { panic("in doubt") }

// TestPanicOfAParticipant: it is an unknown outcome of that call alone.
func TestPanicOfAParticipant(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newWorld().start(t, nil, nil)
		north := panicking{p.at["north"].preparer, func() { panic("prepare") }}
		p.participants["north"] = north
		defer p.serve(t, 1)()
		join := func(ctx context.Context, x *T) error {
			_, err := Define("north", north).Join(ctx, x)
			return err
		}
		wantKind(t, p.Run(t.Context(), "1", join), interlock.Uncertain, nil)
		for range 2 {
			wantKind(t, p.Run(t.Context(), "2", func(ctx context.Context, x *T) error {
				return errors.Join(p.add(map[string]int64{"south": 10})(ctx, x), join(ctx, x))
			}), interlock.Definite, ErrAborted)
			north.vote = runtime.Goexit
		}
		_, err := p.InDoubt(t.Context())
		if wantKind(t, err, interlock.Uncertain, nil); !strings.Contains(err.Error(), "in doubt") {
			t.Error(err)
		}
		ok(t, p.Run(t.Context(), "3", p.add(map[string]int64{"south": 10})))
		wantSums(t, p.world, 0, 10)
	})
}

// TestRetryableWork: a conflict of the work with others is Retryable; an abort in the
// journal is not.
func TestRetryableWork(t *testing.T) {
	served(t, nil, func(t *testing.T, p *process) {
		held := &interlock.HeldError{Name: "sum"}
		wantKind(t, p.Run(t.Context(), "1", func(context.Context, *T) error { return held }), interlock.Retryable, ErrAborted)
		wantKind(t, &AbortedError{ID: "1", Reason: held, Recorded: true}, interlock.Definite, interlock.ErrHeld)
	})
}

// TestBranchThatAPersonMissed: a branch that was not yet in doubt when an operator decided
// to commit its run is committed too.
func TestBranchThatAPersonMissed(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		p := w.start(t, nil, nil)
		r := begin("1", time.Now(), 1)
		w.prepare(t, "north", r.xid("north"))
		ok(t, p.Settle(t.Context(), r.String(), Commit, By{Actor: "ann", Reason: "the log says so"}))
		stop := p.serve(t, 1)
		w.rest(t)
		w.prepare(t, "south", r.xid("south"))
		w.rest(t)
		stop()
		for _, bank := range []string{"north", "south"} {
			if w.banks[bank].Get(r.String()+bank) != 1 {
				t.Errorf("%s was not committed", bank)
			}
		}
	})
}

// TestCrashLoop: if the commit of a participant crashes every process, the transaction waits
// for an operator: it stays decided, and its branches prepared.
func TestCrashLoop(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, gate := newWorld(), make(chan struct{})
		var crash atomic.Bool
		var halted []observe.TwoPCHalted
		crash.Store(true)
		meet := func(at string) error {
			if crash.Load() && strings.HasPrefix(at, "south commit") && strings.HasSuffix(at, leaving) {
				<-gate
				return errCrashed
			}
			return nil
		}
		o := &Options{Scan: time.Minute, Hooks: &observe.TwoPC{Halted: func(e observe.TwoPCHalted) { halted = append(halted, e) }}}
		p := w.start(t, meet, o)
		ok(t, p.Run(t.Context(), "1", p.add(map[string]int64{"north": -5, "south": 5})))
		var stops []func()
		for n := int64(1); n <= 20; n++ {
			stops = append(stops, p.serve(t, n))
			synctest.Wait()
			p = w.start(t, meet, o)
		}
		stops = append(stops, p.serve(t, 21))
		wantKind(t, txntest.Second(p.Wait(t.Context(), "1")), interlock.Uncertain, ErrHalted)
		out, err := p.Look(t.Context(), "1")
		if ok(t, err); out.State != Committing || out.Decision != Commit || !strings.Contains(out.Halted, "taken over 10 times") {
			t.Errorf("%+v", out)
		}
		if len(halted) != 1 || len(halted[0].Participants) != 2 || halted[0].Reason != out.Halted {
			t.Errorf("reported %+v", halted)
		}
		p.Scan(t.Context())
		txntest.Equal(t, "committed by the scan", w.banks["south"].Get("sum"), 0)
		crash.Store(false)
		wantKind(t, p.Operator().Retry(t.Context(), "2", By{Actor: "ann", Reason: "x"}), interlock.Definite, ErrNone)
		ok(t, p.Operator().Retry(t.Context(), "1", By{Actor: "ann", Reason: "the client has a fix"}))
		ok(t, txntest.Second(p.Wait(t.Context(), "1")))
		if north, south := w.banks["north"].Get("sum"), w.banks["south"].Get("sum"); north != -5 || south != 5 {
			t.Errorf("north has %d, south %d", north, south)
		}
		wantKind(t, p.Operator().Retry(t.Context(), "1", By{Actor: "ann", Reason: "once more"}), interlock.Definite, nil)
		close(gate)
		for _, stop := range stops {
			stop()
		}
	})
}
