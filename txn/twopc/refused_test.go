package twopc

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
)

// refusing is a participant that lets no branch come through.
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

// TestRefusedCommit: what a participant says when it does not let a branch come through
// is what may be concluded from the abort: a deadlock that another run may come
// through, anything else that is known that it will not. Only what is not known is
// Uncertain.
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
		{interlock.Uncertain, interlock.Definite, false}, // it was never told to commit
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

// TestRetryableWork: that others were in the way of the work is a reason to run it
// again; an abort that stands in the journal is none.
func TestRetryableWork(t *testing.T) {
	served(t, nil, func(t *testing.T, p *process) {
		held := &interlock.HeldError{Name: "sum"}
		wantKind(t, p.Run(t.Context(), "1", func(context.Context, *T) error { return held }), interlock.Retryable, ErrAborted)
		wantKind(t, &AbortedError{ID: "1", Reason: held, Recorded: true}, interlock.Definite, interlock.ErrHeld)
	})
}

// TestBranchThatAPersonMissed: a branch that was not in doubt yet when a person decided
// to commit its run is committed too.
func TestBranchThatAPersonMissed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld()
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
