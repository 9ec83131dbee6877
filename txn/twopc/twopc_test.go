package twopc

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
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
		ok(t, txntest.Second(p.Wait(t.Context(), "1")))
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
		ok(t, txntest.Second(p.Wait(t.Context(), "1")))
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
		ok(t, txntest.Second(p.Wait(t.Context(), "1")))
		inside <- struct{}{}
		ok(t, <-outside)
		p.world.rest(t)
		wantSums(t, p.world, -5, 5)
	})
}

// TestAnyProcessFinishes: the commits are sent by the owner of the shard, whichever process
// decided.
func TestAnyProcessFinishes(t *testing.T) {
	served(t, nil, func(t *testing.T, p *process) {
		other := p.world.start(t, nil, nil)
		ok(t, other.Run(t.Context(), "1", other.add(transfer)))
		ok(t, txntest.Second(other.Wait(t.Context(), "1")))
		wantSums(t, p.world, -10, 10)
		sent := other.network.sent()
		slices.Sort(sent)
		same(t, "what the other one did", sent, "journal append", "north prepare", "south prepare")
	})
}

// TestSlowCommitter: a process that is stopped between the votes and the decision
// finds what a scanner has decided meanwhile, and follows it.
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
		wantKind(t, txntest.Second(p.Wait(t.Context(), "1")), interlock.Definite, ErrAborted)
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
		ok(t, txntest.Second(p.Wait(t.Context(), "1")))
		stop()
		wantSums(t, w, -10, 10)
	})
}
