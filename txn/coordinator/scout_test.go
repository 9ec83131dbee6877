package coordinator

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/journal"
)

// counted counts, and can fail, the requests of owners for due transactions.
type counted struct {
	driver.Journal
	memory      *memory.Journal
	due, claims atomic.Int64
	broken      atomic.Pointer[error]
}

func away(t *testing.T) *counted {
	t.Helper()
	store := memory.NewJournal()
	return &counted{Journal: store, memory: store}
}

// fail makes later requests fail with an error of a kind; 0 means none.
func (c *counted) fail(kind interlock.ErrorKind) {
	if kind == 0 {
		c.broken.Store(nil)
		return
	}
	err := error(&interlock.Error{Op: "ask", Kind: kind, Err: errDown})
	c.broken.Store(&err)
}

func (c *counted) DueShards(ctx context.Context, shards []int, by time.Time) ([]int, error) {
	c.due.Add(1)
	if err := c.broken.Load(); err != nil {
		return nil, *err
	}
	return c.Journal.DueShards(ctx, shards, by)
}

func (c *counted) Due(ctx context.Context, shard int, behind driver.Head, limit int) ([]driver.Head, error) {
	if err := c.broken.Load(); err != nil {
		return nil, *err
	}
	return c.Journal.Due(ctx, shard, behind, limit)
}

func (c *counted) Claim(ctx context.Context, shard int, epoch interlock.Token, by, until time.Time, limit int) ([]driver.Head, error) {
	c.claims.Add(1)
	return c.Journal.Claim(ctx, shard, epoch, by, until, limit)
}

// scouts returns a coordinator of the protocol "call" that runs on 64 shards, and the
// result of Run.
func scouts(t *testing.T, hooks *observe.Coordinator) (*Coordinator, *counted, *calls, chan error) {
	t.Helper()
	store := away(t)
	j, err := journal.New(store, &journal.Options{Shards: 64})
	ok(t, err)
	t.Cleanup(func() { ok(t, j.Close()) })
	c, err := New(j, &Options{Hooks: hooks})
	ok(t, err)
	p := &calls{do: func(context.Context, string) error { return nil }, drives: map[string]int{}}
	ok(t, c.Handle("call", p))
	claim, ran := grant(1), make(chan error, 1)
	go func() { ran <- c.Run(context.Background(), claim) }()
	synctest.Wait()
	t.Cleanup(func() { claim.End(interlock.ErrReleased); synctest.Wait() })
	return c, store, p, ran
}

// TestIdle: a process sends one request in a poll for all of its shards, and none for an
// idle shard. It finds transactions of other processes within a poll, even if the clock is
// set back.
func TestIdle(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, store, p, _ := scouts(t, nil)
		time.Sleep(time.Minute)
		if due, claims := store.due.Load(), store.claims.Load(); due < 55 || due > 61 || claims != 0 {
			t.Errorf("an idle minute costs %d and %d requests", due, claims)
		}
		other, err := New(c.Journal(), nil)
		ok(t, err)
		for i := range 20 {
			id := fmt.Sprint(i)
			ok(t, other.Begin(t.Context(), id, "call:x", journal.Entry{Kind: "begin"}))
			time.Sleep(time.Second + time.Millisecond)
			if synctest.Wait(); p.driven(id) != 1 {
				t.Fatalf("%s was driven %d times", id, p.driven(id))
			}
		}
		if claims := store.claims.Load(); claims > 20 {
			t.Errorf("%d claims for 20 transactions", claims)
		}
	})
}

// TestClockSetBack: polls do not wait until the clock reaches its former time.
func TestClockSetBack(t *testing.T) {
	c := &Coordinator{options: Options{Poll: time.Second}, servers: map[int]*server{7: nil}}
	for _, step := range []struct {
		at   time.Duration
		asks bool
	}{{0, true}, {999 * time.Millisecond, false}, {time.Second, true}, {-time.Hour, true}, {-time.Hour + 999*time.Millisecond, false}} {
		if asks := c.shardsToPoll(began.Add(step.at)) != nil; asks != step.asks {
			t.Errorf("at %v it asks: %v", step.at, asks)
		}
	}
}

// TestStoreAway: an unavailable store is reported once in a poll, and retried; a permanent
// error ends Run.
func TestStoreAway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var told atomic.Int64
		c, store, p, ran := scouts(t, &observe.Coordinator{Failed: func(observe.CoordinatorFailed) { told.Add(1) }})
		store.fail(interlock.Retryable)
		time.Sleep(10 * time.Second)
		if n := told.Load(); n < 9 || n > 11 {
			t.Errorf("reported %d times in ten seconds", n)
		}
		store.fail(0)
		_, err := c.Journal().Begin(t.Context(), "1", "call:x", time.Now(), journal.Entry{Kind: "begin"})
		ok(t, err)
		time.Sleep(2 * time.Second)
		if synctest.Wait(); p.driven("1") != 1 {
			t.Error("it is not driven")
		}
		store.fail(interlock.Bug)
		if err := <-ran; !errors.Is(err, errDown) {
			t.Error(err)
		}
	})
}
