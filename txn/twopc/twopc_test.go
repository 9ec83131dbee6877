package twopc

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
)

// served runs a test against one process that serves.
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

// TestCosts: n prepares and one append before the answer; n commits and one append after
// it.
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
		runBubble(t, name, func(t *testing.T) {
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
				txntest.Equal(t, name+": sum", w.banks[name].Get("sum"), delta)
			}
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

		// Its branches were freed: another run under the same id succeeds.
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

// TestTwoRunsOfOneID: of two concurrent runs one commits, and the other's work is rolled
// back separately.
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

// TestPatience: scans skip a branch in doubt while its run may be active, and always while
// it runs in this process.
func TestPatience(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
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

// door is a participant that counts the begun and the ended branches.
type door struct {
	driver.Preparer[*memory.Branch]
	opens        func() error // before a branch is begun there
	closes       error        // error of the end of a branch
	came, leaves int
}

func (d *door) Begin(ctx context.Context, x driver.XID) (*memory.Branch, driver.Preparing, error) {
	d.came++
	if err := d.opens(); err != nil {
		return nil, nil, err
	}
	tx, b, err := d.Preparer.Begin(ctx, x)
	return tx, guest{b, d}, err
}

type guest struct {
	driver.Preparing
	door *door
}

func (g guest) Abandon(ctx context.Context) error {
	g.door.leaves++
	return errors.Join(g.Preparing.Abandon(ctx), g.door.closes)
}

// wantText requires an error with a text.
func wantText(t *testing.T, err error, want string) {
	t.Helper()
	if wantKind(t, err, interlock.Bug, nil); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want: %s", err, want)
	}
}

// TestJoinOnce: a branch that could not begin may be joined again. A begun one may not,
// nor may any after the function has returned: Join does not call the participant then.
func TestJoinOnce(t *testing.T) {
	served(t, nil, func(t *testing.T, p *process) {
		failing := errNetwork
		d := &door{Preparer: p.at["north"].preparer, opens: func() error { return failing }}
		north, kept := Define("north", d), (*T)(nil)
		ok(t, p.Run(t.Context(), "1", func(ctx context.Context, x *T) error {
			kept = x
			if _, err := north.Join(ctx, x); !errors.Is(err, errNetwork) {
				t.Errorf("%v", err)
			}
			failing = nil
			tx, err := north.Join(ctx, x)
			ok(t, err)
			_, err = north.Join(ctx, x)
			wantText(t, err, "use the branch of the first call")
			_, err = tx.Add("sum", 1)
			return err
		}))
		_, err := north.Join(t.Context(), kept)
		wantText(t, err, "the transaction's function has returned")
		if d.came != 2 || d.leaves != 0 {
			t.Errorf("asked %d times, left %d times", d.came, d.leaves)
		}
	})
}

// TestJoinMeanwhile: a branch that begins after the function has returned is abandoned, and
// not part of the transaction.
func TestJoinMeanwhile(t *testing.T) {
	for _, closes := range []error{nil, errNetwork} {
		bubble(t, func(t *testing.T) {
			p := newWorld().start(t, nil, nil)
			release, joined := make(chan struct{}), make(chan error, 1)
			d := &door{Preparer: p.at["north"].preparer, opens: func() error { <-release; return nil }, closes: closes}
			ok(t, p.Run(t.Context(), "1", func(ctx context.Context, x *T) error {
				go func() {
					_, err := Define("north", d).Join(ctx, x)
					joined <- err
				}()
				synctest.Wait()
				return nil
			}))
			close(release)
			err := <-joined
			wantText(t, err, "has returned meanwhile")
			if d.leaves != 1 || strings.Contains(err.Error(), "could not be abandoned: lost on its way") != (closes != nil) || closes == nil && !strings.HasSuffix(err.Error(), "meanwhile") {
				t.Errorf("left %d times, %v", d.leaves, err)
			}
		})
	}
}
