package twopc

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
)

// clerk is a participant that takes down what each call says of itself, and answers to
// the first one of a kind that it is lost.
type clerk struct {
	driver.Preparer[*memory.Branch]
	calls []branch.Call
	waits []time.Duration // how long for their answers
	lost  map[branch.Operation]bool
}

func (c *clerk) note(ctx context.Context) error {
	call := branch.From(ctx)
	c.calls, c.waits = append(c.calls, call), append(c.waits, time.Until(call.Deadline))
	if c.lost[call.Operation] {
		c.lost[call.Operation] = false
		return errNetwork
	}
	return nil
}

func (c *clerk) Begin(ctx context.Context, x driver.XID) (*memory.Branch, driver.Preparing, error) {
	tx, b, err := c.Preparer.Begin(ctx, x)
	return tx, noted{b, c}, err
}

func (c *clerk) Commit(ctx context.Context, x driver.XID) error {
	if err := c.note(ctx); err != nil {
		return err
	}
	return c.Preparer.Commit(ctx, x)
}

func (c *clerk) Rollback(ctx context.Context, x driver.XID) error {
	if err := c.note(ctx); err != nil {
		return err
	}
	return c.Preparer.Rollback(ctx, x)
}

type noted struct {
	driver.Preparing
	clerk *clerk
}

func (n noted) Prepare(ctx context.Context) (driver.Vote, error) {
	if err := n.clerk.note(ctx); err != nil {
		return driver.VoteNo, err
	}
	return n.Preparing.Prepare(ctx)
}

// TestCallsSayWhatTheyAre: a participant, wherever it is, can tell from each call which
// transaction it is for, what is asked, how often it was asked, and until when somebody
// waits for the answer. Of the call that the caller itself serves it hears nothing.
func TestCallsSayWhatTheyAre(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld()
		p := w.start(t, func(at string) error {
			if at == "south prepare 2 "+leaving {
				return errNetwork
			}
			return nil
		}, nil)
		c := &clerk{Preparer: p.at["north"].preparer, lost: map[branch.Operation]bool{branch.Commit: true, branch.Rollback: true}}
		p.participants["north"], p.at["north"] = c, Define("north", c)
		serving := branch.With(t.Context(), branch.Call{Transaction: "saga", Branch: "pay", Step: "3", Attempt: 7, Epoch: 5, Deadline: time.Now().Add(time.Hour)})
		asked := func(id string, want ...string) {
			t.Helper()
			var got []string
			for i, call := range c.calls {
				got = append(got, fmt.Sprint(call.Operation, " ", call.Attempt))
				r, err := parse(call.Transaction)
				if ok(t, err); r.key != id || call.Branch != "north" || call.Step != "" || call.Epoch == 5 || !call.Begun.Equal(r.began) || c.waits[i] <= 0 || c.waits[i] > 10*time.Second {
					t.Errorf("%+v, waits %v", call, c.waits[i])
				}
			}
			same(t, id, got, want...)
			c.calls, c.waits = nil, nil
		}
		ok(t, p.Run(serving, "1", p.add(transfer)))
		stop := p.serve(t, 1)
		ok(t, txntest.Second(p.Wait(t.Context(), "1")))
		stop()
		asked("1", "prepare 1", "commit 1", "commit 2")
		wantKind(t, p.Run(serving, "2", p.add(transfer)), interlock.Definite, ErrAborted)
		asked("2", "prepare 1", "rollback 1", "rollback 2")
		w.prepare(t, "north", begin("3", time.Now(), 9).xid("north"))
		time.Sleep(patience)
		p.Scan(serving)
		asked("3", "rollback 1")
	})
}
