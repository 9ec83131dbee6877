package etcd

import (
	"context"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
)

// watch is the one standing watch of a session over the whole prefix. It hands every
// event to the queue that it concerns. The driver's mutex guards its fields.
type watch struct {
	*session

	up     bool
	opened int   // how often it was opened
	read   int   // opened, when every line was last read
	heard  int   // how often it spoke
	asked  int   // heard, when it was last asked to speak; -1 if it owes no answer
	rev    int64 // up to which it told everything
	down   int   // heartbeats since it was noticed that it does not stand
	reopen context.CancelFunc
}

// follow is the dispatcher: it keeps one watch over the whole prefix and hands
// every event to the line it concerns. up receives nil when it first stands, or why
// it does not.
func (w *watch) follow(up chan<- error) {
	for w.ctx.Err() == nil {
		stood, err := w.followOnce(up)
		if stood {
			continue
		}
		if err != nil {
			tell(up, err)
		}
		pause := time.NewTimer(w.d.pace.retry)
		select {
		case <-w.ctx.Done():
		case <-pause.C:
		}
		pause.Stop()
	}
}

// followOnce opens the watch at the present revision, which is what makes etcd
// push each event at once, and follows it until it breaks. The client resumes
// it by itself when only a connection breaks.
func (w *watch) followOnce(up chan<- error) (stood bool, err error) {
	ctx, cancel := context.WithCancel(w.context())
	defer cancel()
	w.d.mu.Lock()
	w.reopen = cancel
	w.d.mu.Unlock()
	for reply := range w.d.client.Watch(ctx, w.d.layout.prefix, clientv3.WithPrefix(), clientv3.WithCreatedNotify()) {
		if err = reply.Err(); err != nil {
			break
		}
		w.take(reply)
		if reply.Created {
			stood = true
			tell(up, nil)
		}
	}
	w.d.mu.Lock()
	w.up = false
	w.d.mu.Unlock()
	return stood, err
}

// tell sends err if a caller still waits for it.
func tell(up chan<- error, err error) {
	select {
	case up <- err:
	default:
	}
}

// context marks our watch, so that the client gives it a stream of its
// own, on which nobody else's watch can delay it. A member that lost its leader
// ends it instead of leaving it silent.
func (w *watch) context() context.Context {
	return metadata.AppendToOutgoingContext(clientv3.WithRequireLeader(w.ctx),
		"interlock-session", strconv.FormatInt(int64(w.id), 16))
}

// take takes one reply of the watch.
func (w *watch) take(reply clientv3.WatchResponse) {
	w.d.mu.Lock()
	defer w.d.mu.Unlock()
	if reply.Created {
		w.stands(reply.Header.Revision)
		return
	}
	for _, ev := range reply.Events {
		w.event(ev)
	}
	if n := len(reply.Events); n > 0 {
		w.progress(reply.Events[n-1].Kv.ModRevision)
	} else if reply.IsProgressNotify() {
		w.progress(reply.Header.Revision)
	}
}

// stands notes that the watch was opened, and will tell all that happens after
// rev. What happened since an earlier one broke must be read, at rev or later:
// no snapshot from before closes the gap.
func (w *watch) stands(rev int64) {
	w.up, w.asked, w.rev = true, -1, 0
	w.opened++
	w.queues.highest = max(w.queues.highest, rev)
	w.d.hintAll()
	if w.opened == 1 {
		w.read = 1
		return
	}
	w.queues.restart(rev)
	nudge(w.tendNow)
}

// progress notes that the watch has told everything up to rev. Less than it had
// told before is no sign of life: the store may have been replaced.
func (w *watch) progress(rev int64) {
	if rev < w.rev {
		return
	}
	w.rev = rev
	w.heard++
	w.queues.heard(rev)
}

func (w *watch) event(ev *clientv3.Event) {
	key, rev := string(ev.Kv.Key), ev.Kv.ModRevision
	w.queues.highest = max(w.queues.highest, rev)
	deleted := ev.Type == mvccpb.Event_DELETE
	if key == w.d.layout.base() {
		w.baseEvent(ev, deleted)
		return
	}
	if !deleted && ev.Kv.Lease == int64(w.id) {
		w.queues.own(key, rev)
	}
	w.d.layout.lines(key, func(at string) {
		w.d.hint(at)
		l := w.queues.lines[at]
		if l == nil {
			return
		}
		c := change{rev: rev, deleted: deleted, place: place{key: key}}
		if !deleted {
			c.place = w.queues.placeOf(ev.Kv)
		}
		w.queues.perform(l.apply(c))
	})
}

func (w *watch) baseEvent(ev *clientv3.Event, deleted bool) {
	if deleted {
		w.counter.see(nil)
		return
	}
	w.counter.see([]*mvccpb.KeyValue{ev.Kv})
}

// listen asks the watch to speak, and reopens it if it did not since
// the last heartbeat.
func (w *watch) listen() {
	if !w.shouldAsk() {
		return
	}
	ctx, cancel := context.WithTimeout(w.context(), w.d.pace.heartbeat)
	defer cancel()
	// an error shows as silence at the next heartbeat
	_ = w.d.client.RequestProgress(ctx)
}

func (w *watch) shouldAsk() bool {
	w.d.mu.Lock()
	defer w.d.mu.Unlock()
	switch {
	case len(w.queues.lines) == 0 && len(w.d.listeners) == 0:
		w.asked = -1
		return false
	case w.up && w.asked == w.heard:
		w.up, w.down = false, 0
		w.reopen()
		return false
	case !w.up:
		if w.down++; w.down%openFor == 0 {
			w.reopen()
		}
		return false
	}
	w.asked = w.heard
	return true
}
