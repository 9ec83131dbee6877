package twopc

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
)

// door is a participant as one resource sees it, that counts who comes and goes.
type door struct {
	driver.Preparer[*memory.Branch]
	opens        func() error // before a branch is begun there
	closes       error        // what it says to who leaves
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

// wantText says that a call was wrong, and how.
func wantText(t *testing.T, err error, want string) {
	t.Helper()
	if wantKind(t, err, interlock.Bug, nil); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want: %s", err, want)
	}
}

// TestJoinOnce: a branch that could not be begun may be joined again; one that was may
// not, nor may any once the function has returned: the participant is not asked then.
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
			wantText(t, err, "keep what the first call returned")
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

// TestJoinMeanwhile: a branch that comes when the function has returned is abandoned, and
// is no part of the transaction.
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
