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
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
)

// TestServeWaits: polls skip a transaction that is driven where it began. Serve returns once no call
// is running, and the shard can then be served again; leftovers of the first Serve start nothing.
func TestServeWaits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		hang := make(chan struct{})
		r := idle(t, nil, nil, func(context.Context, string) error { <-hang; return nil })
		r.serveBegun(t, "1", "call:x")
		head, _, err := r.store.Read(t.Context(), "1", 0)
		if ok(t, err); head.Due.Before(time.Now().Add(59 * time.Second)) {
			t.Errorf("it is due in %v", time.Until(head.Due))
		}
		synctest.Wait()
		r.mu.Lock()
		old := r.servers[0]
		r.mu.Unlock()
		r.claim.End(interlock.ErrReleased)
		synctest.Wait()
		select {
		case err := <-r.served:
			t.Errorf("it has returned, %v, while a call is under way", err)
		default:
		}
		close(hang)
		wantKind(t, <-r.served, interlock.Definite, interlock.ErrReleased)
		if old.take("2") != nil {
			t.Error("what has ended takes up another transaction")
		}
		r.serve(t, 2)
		r.begin(t, "3", "call:x")
		if synctest.Wait(); !r.ended(t, "1") || !r.ended(t, "3") {
			t.Error("it is not served again")
		}
	})
}

// TestTakeOverStoreAway: a new owner whose store cannot list unfinished transactions
// reports that, retries later, and does not wait for that when its claim ends.
func TestTakeOverStoreAway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var told atomic.Int64
		store := &counted{Journal: memory.NewJournal()}
		r := idle(t, store, &Options{Poll: time.Minute, Hooks: &observe.Coordinator{Failed: func(observe.CoordinatorFailed) { told.Add(1) }}}, succeed)
		_, err := r.Journal().Begin(t.Context(), "1", "call:x", time.Now().Add(24*time.Hour), journal.Entry{Kind: "begin"})
		ok(t, err) // found only at take-over
		store.fail(interlock.Retryable)
		r.serve(t, 1)
		from := time.Now()
		r.claim.End(interlock.ErrReleased)
		wantKind(t, <-r.served, interlock.Definite, interlock.ErrReleased)
		if d := time.Since(from); d > time.Second || told.Load() != 1 {
			t.Errorf("it ended after %v, and reported %d failures", d, told.Load())
		}
		r.serve(t, 2)
		store.fail(0)
		time.Sleep(time.Minute + time.Second)
		if synctest.Wait(); r.calls.driven("1") != 1 {
			t.Error("what was left is not taken up")
		}
		r.claim.End(interlock.ErrReleased)
		<-r.served
		store.fail(interlock.Bug)
		if r.serve(t, 3); !errors.Is(<-r.served, errDown) {
			t.Error("it does not say why it cannot")
		}
	})
}

// TestShardIsLost: an owner with a stale epoch and an apparently valid claim notices when it
// claims due transactions. It ends, with those it has put off.
func TestShardIsLost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := idle(t, nil, nil, func(context.Context, string) error { return errDown })
		r.serveBegun(t, "waits", "call:x")
		synctest.Wait()
		ok(t, txntest.Second(r.Journal().Own(t.Context(), grant(2), 0)))
		ok(t, txntest.Second(r.Journal().Begin(t.Context(), "due", "call:x", time.Now(), journal.Entry{Kind: "begin"})))
		wantKind(t, <-r.served, interlock.Definite, interlock.ErrStaleToken)
	})
}

// TestHungCall: a call that does not return when its context ends keeps its shard for at
// most Options.Drain. Then another owner continues, and the call's late result is not
// recorded.
func TestHungCall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		hang, calls := make(chan struct{}), 0
		var hung []observe.CoordinatorHung
		o := &Options{Drain: 5 * time.Second, Hooks: &observe.Coordinator{Hung: func(e observe.CoordinatorHung) { hung = append(hung, e) }}}
		r := idle(t, nil, o, func(context.Context, string) error {
			if calls++; calls == 1 {
				<-hang
			}
			return nil
		})
		r.serveBegun(t, "1", "call:x")
		synctest.Wait()
		from := time.Now()
		r.stop() // the claim lasts
		wantKind(t, <-r.served, interlock.Definite, context.Canceled)
		if d := time.Since(from); d != 5*time.Second || len(hung) != 1 || hung[0].Transaction != "1" || hung[0].After != 5*time.Second {
			t.Errorf("Serve returned after %v, reported %+v", d, hung)
		}
		before := r.recordsOf(t, "1")
		close(hang)
		if synctest.Wait(); r.recordsOf(t, "1") != before || r.holding() != 0 {
			t.Errorf("what has returned late is recorded: %d records, %d held", r.recordsOf(t, "1"), r.holding())
		}
		r.serve(t, 2)
		if synctest.Wait(); !r.ended(t, "1") || calls != 2 {
			t.Errorf("%d calls, and it has not ended", calls)
		}
	})
}

// TestForeign: a transaction of an unknown type is not read, takes no room and is no
// failure; it is counted while it exists.
func TestForeign(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var found atomic.Int32
		o := &Options{Held: 1, Hooks: &observe.Coordinator{
			Foreign: func(observe.CoordinatorForeign) { found.Add(1) },
			Failed:  func(e observe.CoordinatorFailed) { t.Errorf("reported %+v", e) },
		}}
		r := idle(t, nil, o, succeed)
		for _, id := range []string{"a", "b", "c"} {
			ok(t, txntest.Second(r.Journal().Begin(t.Context(), id, "other:x", time.Now(), journal.Entry{Kind: "begin"})))
		}
		r.serveBegun(t, "1", "call:x")
		r.wantEnded(t, "1")
		if n := r.Foreign(); n["other:x"] != 3 || len(n) != 1 || found.Load() != 3 {
			t.Errorf("%v, reported %d", n, found.Load())
		}
		time.Sleep(10 * time.Minute)
		if synctest.Wait(); found.Load() < 15 || found.Load() > 45 {
			t.Errorf("reported %d times in ten minutes", found.Load())
		}
		if n := r.Foreign(); n["other:x"] != 3 {
			t.Error(n)
		}
	})
}

// counted counts, and can fail, the requests of owners for due transactions.
type counted struct {
	driver.Journal
	due, claims atomic.Int64
	broken      atomic.Pointer[error]
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

// scouts returns a coordinator of the protocol "call" that runs on 64 shards.
func scouts(t *testing.T, hooks *observe.Coordinator) (*rig, *counted) {
	t.Helper()
	store := &counted{Journal: memory.NewJournal()}
	r := idleOf(t, 64, store, &Options{Hooks: hooks}, succeed)
	r.run(t)
	return r, store
}

// TestIdle: a process sends one request in a poll for all of its shards, and none for an
// idle shard. It finds transactions of other processes in all shards within a poll, and serves them
// until its claim ends.
func TestIdle(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, store := scouts(t, nil)
		time.Sleep(time.Minute)
		if due, claims := store.due.Load(), store.claims.Load(); due < 55 || due > 61 || claims != 0 {
			t.Errorf("an idle minute costs %d and %d requests", due, claims)
		}
		other, err := New(r.Journal(), nil)
		ok(t, err)
		for i := range 20 {
			id := fmt.Sprint(i)
			ok(t, other.Begin(t.Context(), id, "call:x", journal.Entry{Kind: "begin"}))
			time.Sleep(time.Second + time.Millisecond)
			if synctest.Wait(); r.calls.driven(id) != 1 {
				t.Fatalf("%s was driven %d times", id, r.calls.driven(id))
			}
		}
		if claims := store.claims.Load(); claims > 20 {
			t.Errorf("%d claims for 20 transactions", claims)
		}
		r.claim.End(interlock.ErrReleased)
		wantKind(t, <-r.served, interlock.Definite, interlock.ErrReleased)
	})
}

// slowPolls finds transactions of another process with each poll, at first after about three seconds.
type slowPolls struct {
	*memory.Journal
	fast  atomic.Bool
	polls atomic.Int64
}

func (s *slowPolls) DueShards(_ context.Context, shards []int, _ time.Time) ([]int, error) {
	n := s.polls.Add(1)
	if !s.fast.Load() {
		time.Sleep(3*time.Second + time.Duration(n%7)*3*time.Millisecond)
	}
	return shards[:1], nil
}

// TestSlowPolls: polls that overlap because the store is slow are not repeated each on its own.
func TestSlowPolls(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := &slowPolls{Journal: memory.NewJournal()}
		r := idleOf(t, 8, store, nil, succeed)
		r.run(t)
		time.Sleep(time.Minute)
		store.fast.Store(true)
		time.Sleep(10 * time.Second)
		before := store.polls.Load()
		time.Sleep(time.Second)
		if n := store.polls.Load() - before; n > int64(time.Second/shortestPoll)+1 {
			t.Errorf("%d polls in a second", n)
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
		r, store := scouts(t, &observe.Coordinator{Failed: func(observe.CoordinatorFailed) { told.Add(1) }})
		store.fail(interlock.Retryable)
		time.Sleep(10 * time.Second)
		if n := told.Load(); n < 9 || n > 11 {
			t.Errorf("reported %d times in ten seconds", n)
		}
		store.fail(0)
		ok(t, txntest.Second(r.Journal().Begin(t.Context(), "1", "call:x", time.Now(), journal.Entry{Kind: "begin"})))
		time.Sleep(2 * time.Second)
		if synctest.Wait(); r.calls.driven("1") != 1 {
			t.Error("it is not driven")
		}
		store.fail(interlock.Bug)
		if err := <-r.served; !errors.Is(err, errDown) {
			t.Error(err)
		}
	})
}

// forgetful is a store that loses an answer, or does not answer a read.
type forgetful struct {
	driver.Journal
	claims, reads atomic.Int64 // how many will fail
}

var errNoAnswer = &interlock.Error{Op: "answer", Kind: interlock.Uncertain, Err: errDown}

func (f *forgetful) Claim(ctx context.Context, shard int, epoch interlock.Token, by, until time.Time, limit int) ([]driver.Head, error) {
	heads, err := f.Journal.Claim(ctx, shard, epoch, by, until, limit)
	if len(heads) > 0 && f.claims.Add(-1) >= 0 {
		return nil, errNoAnswer
	}
	return heads, err
}

func (f *forgetful) Read(ctx context.Context, id string, after int64) (driver.Head, []driver.Record, error) {
	if f.reads.Add(-1) >= 0 {
		return driver.Head{}, nil, &interlock.Error{Op: "read", Kind: interlock.Retryable, Err: errDown}
	}
	return f.Journal.Read(ctx, id, after)
}

// TestLostAnswers: a transaction does not wait for Recheck if the answer to its claim is lost, or if
// it cannot be read at first.
func TestLostAnswers(t *testing.T) {
	for name, lose := range map[string]func(*forgetful){
		"of a claim": func(f *forgetful) { f.claims.Store(1) },
		"of reads":   func(f *forgetful) { f.reads.Store(3) },
	} {
		runBubble(t, name, func(t *testing.T) {
			store := &forgetful{Journal: memory.NewJournal()}
			r := idle(t, store, &Options{Recheck: time.Hour}, succeed)
			r.begin(t, "1", "call:x")
			lose(store)
			r.serve(t, 1)
			time.Sleep(5 * time.Second)
			r.wantEnded(t, "1")
		})
	}
}

// late is a store in which appends take effect 3 seconds after they were sent.
type late struct{ *memory.Journal }

func (l late) Append(ctx context.Context, appends []driver.Append) []error {
	time.Sleep(3 * time.Second)
	return l.Journal.Append(context.WithoutCancel(ctx), appends)
}

// TestBeginArrivesLate: a transaction whose begin takes effect after its caller has left does not wait
// for Recheck, although the first read did not find it.
func TestBeginArrivesLate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := &Options{Recheck: time.Hour, Random: func() float64 { return 0.5 }}
		r := idle(t, late{memory.NewJournal()}, o, succeed)
		r.serve(t, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		wantKind(t, r.Begin(ctx, "1", "call:x", journal.Entry{Kind: "begin"}), interlock.Uncertain, nil)
		time.Sleep(15 * time.Second)
		r.wantEnded(t, "1")
	})
}
