package twopc

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
)

// TestMisuseOfNew: New reports all faults of options and participants.
func TestMisuseOfNew(t *testing.T) {
	wantKind(t, txntest.Second(New(nil, nil)), interlock.Bug, nil)
	j, err := journal.New(memory.NewJournal(), nil)
	ok(t, err)
	defer func() { ok(t, j.Close()) }()
	bank := memory.NewParticipant()
	for name, c := range map[string]struct {
		o   *Options
		all []Defined
	}{
		"negative":   {&Options{Patience: -1}, nil},
		"impatience": {&Options{Patience: time.Hour, Retention: time.Hour}, nil},
		"long name":  {&Options{Name: strings.Repeat("x", 201)}, nil},
		"nil":        {nil, []Defined{nil}},
		"none":       {nil, []Defined{Define[*memory.Branch]("north", nil)}},
		"twice":      {nil, []Defined{Define("north", bank), Define("north", bank)}},
		"empty name": {nil, []Defined{Define("", bank)}},
		"bad name":   {nil, []Defined{Define("nor/th", bank)}},
		"longest":    {nil, []Defined{Define(strings.Repeat("n", driver.MaxXIDBranch+1), bank)}},
	} {
		co, err := coordinator.New(j, nil)
		ok(t, err)
		if _, err := New(co, c.o, c.all...); err == nil || interlock.Kind(err) != interlock.Bug {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, c := range map[string]struct {
		keep, set, want time.Duration // want is 0 for a Bug
	}{
		"default":  {0, 0, 7 * 24 * time.Hour},
		"for ever": {-1, 0, 7 * 24 * time.Hour},
		"short":    {8 * time.Hour, 0, 7 * time.Hour},
		"equal":    {8 * time.Hour, 8 * time.Hour, 8 * time.Hour},
		"too long": {8 * time.Hour, 9 * time.Hour, 0},
	} {
		co, err := coordinator.New(j, &coordinator.Options{Retention: coordinator.Retention{Keep: c.keep}})
		ok(t, err)
		m, err := New(co, &Options{Retention: c.set})
		if (err != nil) != (c.want == 0) || err != nil && interlock.Kind(err) != interlock.Bug || err == nil && m.options.Retention != c.want {
			t.Errorf("a Retention of %s: %v", name, err)
		}
	}
	co, err := coordinator.New(j, nil)
	ok(t, err)
	ok(t, txntest.Second(New(co, nil, Define("north", bank))))
	_, err = New(co, nil)
	wantKind(t, err, interlock.Bug, nil)
}

// TestMisuseOfRun: bad input ends in a clear error, and leaves nothing.
func TestMisuseOfRun(t *testing.T) {
	served(t, nil, func(t *testing.T, p *process) {
		work := p.add(transfer)
		wantKind(t, p.Run(t.Context(), "", work), interlock.Bug, nil)
		wantKind(t, p.Run(t.Context(), strings.Repeat("x", 201), work), interlock.Bug, nil)
		wantKind(t, p.Run(t.Context(), "1", nil), interlock.Bug, nil)

		wantKind(t, p.Run(t.Context(), "1", func(ctx context.Context, x *T) error {
			ok(t, txntest.Second(p.at["north"].Join(ctx, x)))
			_, err := Define("east", p.world.banks["north"]).Join(ctx, x)
			wantKind(t, err, interlock.Bug, nil)
			return err
		}), interlock.Definite, ErrAborted)

		for _, w := range []func(context.Context, *T) error{work, p.add(map[string]int64{"north": 1})} {
			ended, end := context.WithCancel(t.Context())
			wantKind(t, p.Run(ended, "1", func(ctx context.Context, x *T) error {
				defer end()
				return w(ctx, x)
			}), interlock.Definite, context.Canceled)
		}
		same(t, "messages", p.network.sent())
		wantSums(t, p.world, 0, 0)
		ok(t, p.Run(t.Context(), "1", work)) // nothing was left locked

		// A panic frees joined branches, and propagates.
		func() {
			defer func() {
				if r := recover(); r != "no" {
					t.Errorf("%v", r)
				}
			}()
			ok(t, txntest.Second(p.Wait(t.Context(), "1")))
			_ = p.Run(t.Context(), "2", func(ctx context.Context, x *T) error {
				ok(t, work(ctx, x))
				panic("no")
			})
		}()
		ok(t, p.Run(t.Context(), "2", work))
		ok(t, txntest.Second(p.Wait(t.Context(), "2")))
		wantSums(t, p.world, -20, 20)
		txntest.Equal(t, "runs in progress", len(p.running), 0)
	})
}

// TestOtherTransaction: an id of another protocol, or of another id's key, is not touched.
func TestOtherTransaction(t *testing.T) {
	served(t, nil, func(t *testing.T, p *process) {
		ok(t, txntest.Second(p.coordinator.Journal().Begin(t.Context(), "saga", "saga:order", time.Now().Add(time.Hour), journal.Entry{Kind: "begin"})))
		work := p.add(transfer)
		wantKind(t, p.Run(t.Context(), "saga", work), interlock.Bug, ErrMismatch)
		_, err := p.Look(t.Context(), "saga")
		wantKind(t, err, interlock.Bug, ErrMismatch)
		wantKind(t, p.Operator().Resolve(t.Context(), "saga", By{Actor: "ann", Reason: "x"}), interlock.Bug, ErrMismatch)

		long := strings.Repeat("long/", 20)
		ok(t, p.Run(t.Context(), long, work))
		ok(t, txntest.Second(p.Wait(t.Context(), Key(long))))
		o, err := p.Look(t.Context(), Key(long))
		ok(t, err)
		if o.ID != long || o.Key != Key(long) || o.State != Committed {
			t.Errorf("%+v", o)
		}
		_, err = p.Look(t.Context(), "2")
		wantKind(t, err, interlock.Definite, ErrNone)
		wantKind(t, txntest.Second(p.Wait(t.Context(), "2")), interlock.Definite, ErrNone)
	})
}

// TestStrangersAreLeft: branches of others, in the same namespace or under a foreign name,
// are shown and not touched.
func TestStrangersAreLeft(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		hooks, log := listening()
		p := w.start(t, nil, &Options{Hooks: hooks})
		other := begin("1", time.Now(), 7)
		for _, x := range []driver.XID{{Transaction: "by-hand", Branch: "north"}, {Transaction: begin("2", time.Now(), 7).String(), Branch: "east"}} {
			w.prepare(t, "north", x)
		}
		w.prepare(t, "north", other.xid("south")) // two names of one database: for "south" to find
		ok(t, txntest.Second(p.coordinator.Journal().Begin(t.Context(), "1", "saga:order", time.Now().Add(time.Hour), journal.Entry{Kind: "begin"})))
		w.prepare(t, "north", other.xid("north"))
		for range 3 {
			p.Scan(t.Context())
			time.Sleep(patience)
		}
		if w.inDoubt(t) != 4 || log.count("orphan foreign north") != 9 {
			t.Errorf("%d in doubt, %v", w.inDoubt(t), log.all())
		}
	})
}

// prepare leaves a branch in doubt.
func (w *world) prepare(t *testing.T, bank string, x driver.XID) {
	t.Helper()
	tx, b, err := w.banks[bank].Begin(t.Context(), x)
	ok(t, err)
	ok(t, txntest.Second(tx.Add(x.Transaction+x.Branch, 1)))
	if vote, err := b.Prepare(t.Context()); vote != driver.VoteYes {
		t.Fatal(err)
	}
}

// TestDecide: a participant that asks gets the decision in the journal. If there is none,
// Decide writes an abort before it answers. A waiter for the transaction gets the reason at once.
func TestDecide(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		p := w.start(t, nil, &Options{Patience: time.Second, Retention: time.Hour})
		var name string
		ok(t, p.Run(t.Context(), "1", func(ctx context.Context, x *T) error {
			name = x.XID("north").Transaction
			_, err := p.Decide(ctx, name)
			wantKind(t, err, interlock.Retryable, nil)
			return p.add(transfer)(ctx, x)
		}))
		d, err := p.Decide(t.Context(), name)
		if d != Commit || err != nil {
			t.Errorf("%v, %v", d, err)
		}
		another := begin("1", time.Now(), 99)
		if d, err = p.Decide(t.Context(), another.String()); d != Abort || err != nil {
			t.Errorf("another run: %v, %v", d, err)
		}
		lost := begin("2", time.Now(), 99)
		for range 2 {
			if d, err = p.Decide(t.Context(), lost.String()); d != Abort || err != nil {
				t.Errorf("%v, %v", d, err)
			}
		}
		got, _ := w.records(t, "2")
		same(t, "records", got, "decide:abort")
		bounded, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var aborted *AbortedError
		if err = txntest.Second(p.Wait(bounded, "2")); !errors.As(err, &aborted) || !aborted.Recorded || !strings.Contains(err.Error(), "there was no decision") {
			t.Errorf("%v", err)
		}
		_, err = p.Decide(t.Context(), "by-hand")
		wantKind(t, err, interlock.Bug, nil)

		old := begin("3", time.Now(), 99)
		time.Sleep(time.Hour)
		_, err = p.Decide(t.Context(), old.String())
		wantKind(t, err, interlock.Definite, ErrNone)
		if got, _ = w.records(t, "3"); len(got) != 0 {
			t.Errorf("records %v", got)
		}
	})
}

// TestTooOld: a branch whose records may be deleted is left to an operator, who can decide
// it once.
func TestTooOld(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		hooks, log := listening()
		p := w.start(t, nil, &Options{Hooks: hooks, Retention: time.Hour})
		forgotten, other := begin("1", time.Now(), 1), begin("2", time.Now(), 2)
		for _, bank := range []string{"north", "south"} {
			w.prepare(t, bank, forgotten.xid(bank))
		}
		w.prepare(t, "north", other.xid("north"))
		time.Sleep(time.Hour)
		defer p.serve(t, 1)()
		time.Sleep(time.Minute)
		if w.inDoubt(t) != 3 || log.count("orphan too old") < 9 || log.count("decided") != 0 {
			t.Errorf("%d in doubt, %v", w.inDoubt(t), log.all())
		}
		for _, c := range []struct{ transaction, decision, actor, reason string }{
			{"by-hand", "commit", "ann", "the log says so"},
			{forgotten.String(), "perhaps", "ann", "the log says so"},
			{forgotten.String(), "commit", "", "the log says so"},
			{forgotten.String(), "commit", "ann", ""},
		} {
			wantKind(t, p.Settle(t.Context(), c.transaction, Decision(c.decision), By{Actor: c.actor, Reason: c.reason}), interlock.Bug, nil)
		}
		none := begin("3", time.Now(), 3)
		wantKind(t, p.Settle(t.Context(), none.String(), Commit, By{Actor: "ann", Reason: "x"}), interlock.Definite, nil)
		ok(t, p.Settle(t.Context(), forgotten.String(), Commit, By{Actor: "ann", Reason: "the log says so"}))
		ok(t, p.Settle(t.Context(), forgotten.String(), Commit, By{Actor: "bob", Reason: "so do I"}))
		wantKind(t, p.Settle(t.Context(), forgotten.String(), Abort, By{Actor: "bob", Reason: "no"}), interlock.Definite, ErrDecided)
		ok(t, p.Settle(t.Context(), other.String(), Abort, By{Actor: "ann", Reason: "nobody misses it"}))
		w.rest(t)
		o, err := p.Look(t.Context(), "1")
		ok(t, err)
		if o.State != Committed || o.DecidedBy != "ann" || len(o.Branches) != 2 {
			t.Errorf("%+v", o)
		}
		for _, bank := range []string{"north", "south"} {
			if w.banks[bank].Get(forgotten.String()+bank) != 1 {
				t.Errorf("%s was not committed", bank)
			}
		}
		if w.banks["north"].Get(other.String()+"north") != 0 {
			t.Error("what was to be aborted is there")
		}
	})
}

// TestResolveAsksAll: an operator's commit is refused while a participant cannot list its
// branches.
func TestResolveAsksAll(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		p := w.start(t, nil, nil)
		r := begin("1", time.Now(), 1)
		w.prepare(t, "north", r.xid("north"))
		p.participants["south"] = deaf{p.participants["south"]}
		if err := p.Settle(t.Context(), r.String(), Commit, By{Actor: "ann", Reason: "x"}); !errors.Is(err, errNetwork) {
			t.Error(err)
		}
		found, err := p.InDoubt(t.Context())
		if len(found) != 1 || !errors.Is(err, errNetwork) {
			t.Errorf("%+v, %v", found, err)
		}
	})
}

// deaf is a participant without a list.
type deaf struct{ driver.Participant }

func (deaf) InDoubt(context.Context) ([]driver.InDoubt, error) { return nil, errNetwork }

// TestMissingParticipant: a process that lacks a participant commits the others, and reports
// the missing one.
func TestMissingParticipant(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		hooks, log := listening()
		p := w.start(t, nil, nil)
		ok(t, p.Run(t.Context(), "1", p.add(transfer)))
		tried := hooks.Tried
		hooks.Tried = func(o observe.TwoPCTried) {
			if tried(o); !strings.Contains(o.Err.Error(), "has no participant of this name") {
				t.Errorf("%v", o.Err)
			}
		}
		poor := w.start(t, nil, &Options{Hooks: hooks})
		delete(poor.participants, "south")
		stop := poor.serve(t, 1)
		time.Sleep(time.Minute)
		stop()
		if log.count("tried commit south") == 0 || log.count("tried commit north") != 0 {
			t.Errorf("%v", log.all())
		}
		wantSums(t, w, -10, 0)
		defer p.serve(t, 2)()
		ok(t, txntest.Second(p.Wait(t.Context(), "1")))
		wantSums(t, w, -10, 10)
	})
}
