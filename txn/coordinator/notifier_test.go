package coordinator

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
)

// notifier counts notifications.
type notifier struct {
	memory.Notifier
	notified atomic.Int64
}

func (b *notifier) Notify(names ...string) {
	b.notified.Add(1)
	b.Notifier.Notify(names...)
}

// pair returns two coordinators on one journal, of which the first serves the shard.
func pair(t *testing.T, do func(ctx context.Context, id string) error) (owner, other *rig, notified *atomic.Int64) {
	t.Helper()
	b := &notifier{}
	owner = idle(t, nil, &Options{Notifier: b}, do)
	other = idle(t, owner.store, &Options{Notifier: b}, do)
	owner.serve(t, 1)
	return owner, other, &b.notified
}

// wait waits for the end, and counts its reads.
func (r *rig) wait(t *testing.T, w *Waiter, id string) (looks int) {
	t.Helper()
	ok(t, w.Wait(t.Context(), func(ctx context.Context, _ any) (bool, error) {
		looks++
		return r.ended(t, id), nil
	}))
	return looks
}

// TestForeignShard: a transaction that begins in a process without its shard is driven at once,
// and a waiter there reads it once, at its end. Without a notifier both would be polls.
func TestForeignShard(t *testing.T) {
	bubble(t, func(t *testing.T) {
		owner, other, notified := pair(t, func(context.Context, string) error { time.Sleep(300 * time.Millisecond); return nil })
		from := time.Now()
		w := other.Watch("1")
		defer w.Stop()
		other.begin(t, "1", "call:x")
		if looks := other.wait(t, w, "1"); looks != 1 || time.Since(from) != 300*time.Millisecond || notified.Load() != 2 {
			t.Errorf("it ended after %v, %d looks and %d notifications", time.Since(from), looks, notified.Load())
		}
		notified.Store(0)
		owner.begin(t, "2", "call:x")
		time.Sleep(100 * time.Millisecond)
		late := other.Watch("2")
		defer late.Stop()
		from = time.Now()
		if looks := other.wait(t, late, "2"); looks != 2 || time.Since(from) != 200*time.Millisecond || notified.Load() != 2 {
			t.Errorf("what began elsewhere ended after %v, %d looks and %d notifications", time.Since(from), looks, notified.Load())
		}
		notified.Store(0)
		owner.begin(t, "3", "call:x")
		ok(t, owner.Await(t.Context(), "3", func(context.Context) (bool, error) { return owner.ended(t, "3"), nil }))
		txntest.Equal(t, "notifications", notified.Load(), 0)
		txntest.Equal(t, "drives of two transactions", owner.calls.driven("1")+owner.calls.driven("2"), 2)
	})
}

// TestStoppedTwice: a second Stop does not end what another waiter listens to.
func TestStoppedTwice(t *testing.T) {
	bubble(t, func(t *testing.T) {
		owner, other, _ := pair(t, func(context.Context, string) error { time.Sleep(300 * time.Millisecond); return nil })
		from := time.Now()
		owner.begin(t, "1", "call:x")
		w := other.Watch("1")
		defer w.Stop()
		stopped := other.Watch("2")
		stopped.Stop()
		stopped.Stop()
		if looks := other.wait(t, w, "1"); looks != 2 || time.Since(from) != 300*time.Millisecond {
			t.Errorf("it ended after %v and %d looks", time.Since(from), looks)
		}
	})
}

// TestLongestPoll: with the longest Poll a waiter reads at notifications alone.
func TestLongestPoll(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r, looks := idle(t, nil, &Options{Notifier: &memory.Notifier{}, Poll: math.MaxInt64}, nil), 0
		for range 2 {
			time.AfterFunc(time.Hour, r.wakeAll)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
		defer cancel()
		wantKind(t, r.Await(ctx, "1", func(context.Context) (bool, error) { looks++; return looks > 9, nil }), interlock.Uncertain, context.DeadlineExceeded)
	})
}

// TestWaitAsItEnds: a waiter that begins as the transaction ends does not wait for a poll.
func TestWaitAsItEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		owner, other, _ := pair(t, succeed)
		for i := range 50 {
			id := fmt.Sprint(i)
			owner.begin(t, id, "call:x")
			first, from := true, time.Now()
			ok(t, other.Await(t.Context(), id, func(context.Context) (bool, error) {
				ended := owner.ended(t, id) && !first // the first read is from before the end
				first = false
				return ended, nil
			}))
			if time.Since(from) != 0 {
				t.Fatalf("%s was seen to have ended after %v", id, time.Since(from))
			}
		}
	})
}

// TestMissedRings: if notifications may have been missed, owners and waiters read at once.
func TestMissedRings(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var b memory.Notifier
		owner := idle(t, nil, &Options{Notifier: &b}, succeed)
		owner.serve(t, 1)
		mute := idle(t, owner.store, nil, nil) // its notifications are lost
		time.Sleep(time.Second + 200*time.Millisecond)
		mute.begin(t, "1", "call:x")
		b.Notify()
		if synctest.Wait(); !owner.ended(t, "1") {
			t.Error("it is not driven at once")
		}
		var looks atomic.Int64
		var work sync.WaitGroup
		listener := idle(t, owner.store, &Options{Notifier: &b}, nil)
		work.Go(func() {
			ok(t, listener.Await(t.Context(), "2", func(context.Context) (bool, error) { return looks.Add(1) == 2, nil }))
		})
		synctest.Wait()
		b.Notify()
		if synctest.Wait(); looks.Load() != 2 {
			t.Errorf("%d looks", looks.Load())
		}
		work.Wait()
	})
}

// owners returns two coordinators on one journal of two shards, each of which serves one, and ids whose
// hash names the shard of the second. They do not poll.
func owners(t *testing.T, o Options, do func(ctx context.Context, id string) error) (first, second *rig, ids []string, notified *atomic.Int64) {
	t.Helper()
	b := &notifier{}
	o.Notifier, o.Poll, o.Recheck = b, time.Hour, time.Hour
	first = idleOf(t, 2, nil, &o, do)
	second = idleOf(t, 2, first.store, &o, do)
	first.serve(t, 1)
	txntest.Serve(t, func(ctx context.Context, c interlock.Claim, _ int) error { return second.Serve(ctx, c, 1) }, 2)
	for i := 0; len(ids) < 10; i++ {
		if id := fmt.Sprint(i); first.Journal().ShardOf(id) == 1 {
			ids = append(ids, id)
		}
	}
	return first, second, ids, &b.notified
}

// TestBegunInServedShard: a process that serves a shard begins transactions there, whatever their ids.
// That costs no notification. Another begin of the id is rejected, also with the same
// entries.
func TestBegunInServedShard(t *testing.T) {
	bubble(t, func(t *testing.T) {
		first, second, ids, notified := owners(t, Options{}, func(context.Context, string) error { time.Sleep(time.Second); return nil })
		for _, id := range ids {
			w := first.Watch(id)
			first.begin(t, id, "call:x")
			wantKind(t, second.Begin(t.Context(), id, "call:x", journal.Entry{Kind: "begin"}), interlock.Definite, journal.ErrExists)
			if looks := first.wait(t, w, id); looks != 1 || notified.Load() != 0 || second.calls.driven(id) != 0 {
				t.Errorf("%d looks, %d notifications, driven %d times elsewhere", looks, notified.Load(), second.calls.driven(id))
			}
			w.Stop()
		}
	})
}

// TestForward: the owner of the shard that the hash of an id names forwards notifications to the owner
// of the transaction's shard.
func TestForward(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var up atomic.Bool
		first, second, ids, notified := owners(t, Options{}, func(context.Context, string) error {
			if time.Sleep(time.Second); up.Load() {
				return nil
			}
			return errDown
		})
		outside := idleOf(t, 2, first.store, &Options{Notifier: first.options.Notifier, Poll: time.Hour}, nil)
		for i, from := range []*rig{second, outside} {
			id := ids[i]
			up.Store(false)
			first.begin(t, id, "call:x")
			time.Sleep(time.Minute) // it waits for an hour before the next call
			log, _, err := from.Journal().Open(t.Context(), id)
			ok(t, err)
			ok(t, log.Append(t.Context(), time.Now(), journal.Entry{Kind: "changed"}))
			up.Store(true)
			start := time.Now()
			from.Nudge(id)
			w := from.Watch(id)
			notified.Store(0)
			if from.wait(t, w, id); time.Since(start) != time.Second || notified.Load() > 4 || second.calls.driven(id) != 0 {
				t.Errorf("number %d ended after %v and %d notifications", i, time.Since(start), notified.Load())
			}
			w.Stop()
		}
	})
}

// TestBusyProcess: a process that drives many transactions leaves further ones to the shards of their ids.
func TestBusyProcess(t *testing.T) {
	bubble(t, func(t *testing.T) {
		first, second, ids, _ := owners(t, Options{Concurrency: 3}, func(context.Context, string) error { time.Sleep(time.Second); return nil })
		for _, id := range ids {
			first.begin(t, id, "call:x")
		}
		time.Sleep(time.Minute)
		for i, id := range ids {
			if here, there := first.calls.driven(id), second.calls.driven(id); (here == 1) != (i < 3) || here+there != 1 {
				t.Errorf("number %d was driven %d and %d times", i, here, there)
			}
		}
	})
}

// TestNotifiedDuringTakeOver: the take-over of a shard counts each transaction that is taken
// over. Until then, a nudge and a waiter of this process do not drive it.
func TestNotifiedDuringTakeOver(t *testing.T) {
	r := idle(t, nil, &Options{}, nil)
	r.begin(t, "1", "call:x")
	claim := txntest.Grant(1)
	shard, err := r.Journal().Own(t.Context(), claim, 0)
	ok(t, err)
	s, err := r.addServer(t.Context(), claim, shard)
	ok(t, err)
	defer r.removeServer(s)
	r.Nudge("1")
	w := r.Watch("1")
	defer w.Stop()
	if w.askOwner(); s.drives("1") || len(s.due) != 1 {
		t.Errorf("it is driven (%v), and %d claims are wanted after the take-over", s.drives("1"), len(s.due))
	}
}
