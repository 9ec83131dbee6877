package etcd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestLineAfterAGap: only a snapshot that is new enough replaces missed changes,
// also if later changes arrive before it.
func TestLineAfterAGap(t *testing.T) {
	t.Parallel()
	l := &line{}
	l.join("me", 0)
	for i, step := range []struct {
		got  []effect
		want string
	}{
		{l.list(9, []place{at("a", 3), at("me", 9)}), "[me behind 0, o-a holds]"},
		{l.apply(put("x", 10)), "[]"},
	} {
		if told(step.got) != step.want {
			t.Fatalf("step %d: %s, want %s", i, told(step.got), step.want)
		}
	}
	l.restart(20) // a was deleted at 15, which was not reported
	if got := told(l.list(14, []place{at("a", 3), at("me", 9), at("x", 10)})); got != "[]" {
		t.Fatalf("a snapshot from before the gap's end: %s", got)
	}
	if got := told(l.apply(put("y", 22))); got != "[]" {
		t.Fatalf("without a snapshot: %s", got)
	}
	if got := told(l.list(21, []place{at("me", 9), at("x", 10)})); got != "[me granted@9]" {
		t.Fatalf("a snapshot from after the gap: %s", got)
	}
	if got := told(l.apply(del("me", 23))); got != "[me vanished]" {
		t.Fatalf("an event after it: %s", got)
	}
}

// TestLineAgreesWithTheStore runs random histories of a store. The line receives every
// event in order, with snapshots of any moment in between, as slow replies and re-reads
// deliver them. The watch breaks and misses events; then the line is read once, and
// events arrive before that answer. It may report "granted" only for a contender that was
// first at some revision, and in the end must match the store.
func TestLineAgreesWithTheStore(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3000) {
		h := newHistory(rand.New(rand.NewPCG(seed, 11)))
		heard := h.deliver(t)
		final := h.snapshots[len(h.snapshots)-1]
		for _, key := range h.ours {
			i := slices.IndexFunc(final, func(p place) bool { return p.key == key })
			if holds := i == 0; heard[key] != holds {
				t.Fatalf("seed %d: %s holds: %v, the line says %v", seed, key, holds, heard[key])
			}
		}
	}
}

// deliver passes the events of a breaking watch to a line, and returns which of ours
// hold by its effects.
func (h *history) deliver(t *testing.T) map[string]bool {
	l, holds := &line{}, map[string]bool{}
	for _, key := range h.ours {
		l.join(key, 0)
	}
	note := func(effects []effect) {
		for _, e := range effects {
			if e.kind == granted && !h.wasFirst(e.key, e.created) {
				t.Fatalf("%s was granted at %d, and never was the first", e.key, e.created)
			}
			holds[e.key] = e.kind == granted
		}
	}
	list := func(rev int) { note(l.list(int64(rev), slices.Clone(h.snapshots[rev]))) }
	end := len(h.events)
	list(1 + h.random.IntN(4))
	for next := int(l.listed); next < end; {
		if choice := h.random.IntN(8); choice > 1 {
			note(l.apply(h.events[next]))
			next++
			continue
		} else if choice > 0 {
			list(h.random.IntN(len(h.snapshots)))
			continue
		}
		next += h.random.IntN(end - next + 1) // missed
		l.restart(int64(next))
		snapshot := max(next+h.random.IntN(end-next+1), int(l.seen))
		for answered := min(end, snapshot+h.random.IntN(4)); next < answered; next++ {
			note(l.apply(h.events[next]))
		}
		list(h.random.IntN(snapshot + 1)) // an older, late answer
		list(snapshot)
	}
	return holds
}

// TestWatchOfALaggingMember is reopened: answers to its probes do not count once the session has known
// of a later revision for a heartbeat.
func TestWatchOfALaggingMember(t *testing.T) {
	t.Parallel()
	for answers, lags := range map[int64]bool{10: true, 20: false} {
		_, s := machine(t)
		s.watch.wanted = deletions
		s.watch.take(deletions, clientv3.WatchResponse{Created: true, Header: &pb.ResponseHeader{Revision: 10}})
		s.reached(20)
		for range 4 { // heartbeats
			s.watch.shouldAsk()
			s.watch.take(deletions, clientv3.WatchResponse{Header: &pb.ResponseHeader{Revision: answers}})
		}
		if s.watch.up == lags {
			t.Errorf("the session knows of revision 20, the watch's member answers %d: it is up: %v", answers, s.watch.up)
		}
	}
}

// TestRenewalsShowTheRevision, so that a watch of a lagging member is noticed without requests.
func TestRenewalsShowTheRevision(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	d := open(t, dial(t, server.Addr()), &Options{TTL: 2 * time.Second})
	rev := mustPut(t, dial(t, server.Addr()), "x", "y")
	testbed.Eventually(t, "a renewal", patience, func() bool { return d.session.floor() >= rev })
}

// heldBackWatcher opens no watch while it is shut.
type heldBackWatcher struct {
	clientv3.Watcher
	shut atomic.Bool
	came chan struct{} // a watch is to be opened
	open chan struct{}
}

func (w *heldBackWatcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	if w.shut.CompareAndSwap(true, false) {
		w.came <- struct{}{}
		await(ctx, w.open)
	}
	return w.Watcher.Watch(ctx, key, opts...)
}

// heldBackAnswer delivers the answer to one transaction late.
type heldBackAnswer struct {
	armed   atomic.Bool
	came    chan struct{} // it has arrived
	deliver chan struct{}
}

func (a *heldBackAnswer) on(config *clientv3.Config) {
	intercept(config, func(ctx context.Context, method string, call func() error) error {
		err := call()
		if strings.HasSuffix(method, "/Txn") && a.armed.CompareAndSwap(true, false) {
			a.came <- struct{}{}
			await(ctx, a.deliver)
		}
		return err
	})
}

func await(ctx context.Context, ch <-chan struct{}) {
	select {
	case <-ch:
	case <-ctx.Done():
	}
}

func holdBack() *heldBackAnswer {
	return &heldBackAnswer{came: make(chan struct{}, 1), deliver: make(chan struct{})}
}

// TestWhatABrokenWatchMissedIsRead: a holder left and a claim was lost while the
// watch was broken, and a contender joins both lines while they are read.
func TestWhatABrokenWatchMissedIsRead(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	answer := holdBack()
	client, operator := dial(t, server.Addr(), answer.on), dial(t, server.Addr())
	watch := &heldBackWatcher{Watcher: client.Watcher, came: make(chan struct{}, 1), open: make(chan struct{})}
	client.Watcher = watch
	d := open(t, client, nil)
	held, awaited := ask("held", "me"), ask("awaited", "me")
	mustAcquire(t, d, held)
	mustPut(t, operator, "awaited/foreign", "")
	done := queue(t, d, awaited)
	watching(t, d, deletions)

	watch.shut.Store(true)
	breakWatch(d)
	testbed.Receive(t, watch.came, "the next watch")
	mustDelete(t, operator, "held/", clientv3.WithPrefix())
	mustDelete(t, operator, "awaited/foreign")
	answer.armed.Store(true)
	close(watch.open)
	testbed.Receive(t, answer.came, "the reading of the lines")
	mustPut(t, operator, "held/late", "")
	mustPut(t, operator, "awaited/late", "")
	passed(t, d, operator)
	close(answer.deliver)

	if cause := testbed.Receive(t, held.Lost, "word of the loss"); !errors.Is(cause, interlock.ErrLost) {
		t.Fatalf("cause %v", cause)
	}
	if o := testbed.Receive(t, done, "the grant"); o.Err != nil || !o.Token.Valid() {
		t.Fatal(o)
	}
}

func breakWatch(d *Driver) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.session.watch.reopen()
}

// TestAnswerFromBeforeTheGap: a request is executed, the watch is reopened, and
// then its answer arrives, before the lines are read. The claim is granted
// nevertheless.
func TestAnswerFromBeforeTheGap(t *testing.T) {
	t.Parallel()
	for _, noWait := range []bool{false, true} {
		t.Run(fmt.Sprintf("noWait=%v", noWait), func(t *testing.T) {
			server := serverFor(t)
			answer, reading := holdBack(), holdBack()
			client, operator := dial(t, server.Addr(), answer.on, reading.on), dial(t, server.Addr())
			watch := &heldBackWatcher{Watcher: client.Watcher, came: make(chan struct{}, 1), open: make(chan struct{})}
			client.Watcher = watch
			d := open(t, client, nil)
			watching(t, d, deletions)
			watch.shut.Store(true)
			breakWatch(d)
			testbed.Receive(t, watch.came, "the next watch")

			r := ask("n", "me")
			r.NoWait = noWait
			answer.armed.Store(true)
			done := begin(t, d, r)
			testbed.Receive(t, answer.came, "the answer")
			mustPut(t, operator, "elsewhere", "") // a newer revision
			reading.armed.Store(true)
			close(watch.open)
			testbed.Receive(t, reading.came, "the reading of the lines")
			close(answer.deliver)
			if o := testbed.Receive(t, done, "the grant"); o.Err != nil || !o.Token.Valid() {
				t.Fatal(o)
			}
			close(reading.deliver)
		})
	}
}
