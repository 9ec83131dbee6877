package etcd

import (
	"context"
	"errors"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// scope is what a watch must report.
type scope int

const (
	nothing   scope = iota // no watch is open
	deletions              // for contenders that wait, or hold for longer than a heartbeat
	changes                // for Driver.Watch, which reports new contenders too
)

// lingers is how many heartbeats a watch may report more than needed, before it is closed, or
// replaced by one that reports less.
const lingers = 10

// watch is the one watch of a session over the whole prefix. It passes every event to its queue. It
// is open only while needed: etcd would send every contender's own deletions back to it. A place in
// a line depends only on earlier contenders, so no line needs events of new ones. The driver's
// mutex guards its fields.
type watch struct {
	*session

	wanted  scope         // what it reports, or will once it is open
	changed chan struct{} // wanted has changed; capacity 1
	unused  int           // heartbeats since less is needed than wanted

	up     bool
	opened int   // how often it was opened
	read   int   // opened, when every line was last read
	heard  int   // how many replies it has sent
	asked  int   // heard at the last probe; -1 if no answer is due
	rev    int64 // up to which it reported everything
	known  int64 // highest revision known at the last heartbeat
	due    int64 // and at the one before: a member that has not reached it is cut off from the others
	down   int   // heartbeats since it was found not open
	reopen context.CancelFunc
}

// need makes the watch report at least s. Callers hold the driver's mutex, here and in the two below.
func (w *watch) need(s scope) {
	switch {
	case s == w.wanted:
		w.unused = 0
	case s > w.wanted:
		w.want(s)
	}
}

func (w *watch) want(s scope) {
	w.wanted, w.unused, w.up, w.down = s, 0, false, 0
	w.reopen()
	nudge(w.changed)
}

// age is called at every heartbeat. held reports whether a contender has been in line
// for a whole one.
func (w *watch) age(held bool) {
	needed := nothing
	switch {
	case len(w.d.listeners) > 0:
		needed = changes
	case held:
		needed = deletions
	}
	w.unused++
	switch {
	case needed >= w.wanted:
		w.need(needed)
	case w.unused > lingers:
		w.want(needed)
	}
}

// follow opens a watch whenever one is needed, until the session ends.
func (w *watch) follow() {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for w.ctx.Err() == nil {
		s, ctx := w.begin()
		if s != nothing && w.followOnce(ctx, s) {
			continue
		}
		pause.Reset(w.d.pace.retry)
		if s == nothing {
			pause.Stop()
		}
		select {
		case <-w.ctx.Done():
		case <-w.changed:
		case <-pause.C:
		}
	}
}

// begin returns the wanted scope, and a context that ends when it should be reopened.
func (w *watch) begin() (scope, context.Context) {
	ctx, cancel := context.WithCancel(w.context())
	w.d.mu.Lock()
	defer w.d.mu.Unlock()
	w.reopen()
	w.reopen = cancel
	return w.wanted, ctx
}

// followOnce opens the watch at the present revision, which makes etcd push each
// event at once, and follows it until it breaks. The client resumes it if only a
// connection breaks.
func (w *watch) followOnce(ctx context.Context, s scope) (stood bool) {
	options := []clientv3.OpOption{clientv3.WithPrefix(), clientv3.WithCreatedNotify()}
	if s == deletions {
		options = append(options, clientv3.WithFilterPut())
	}
	for reply := range w.d.client.Watch(ctx, w.d.layout.prefix, options...) {
		if reply.Err() != nil {
			break
		}
		w.take(s, reply)
		stood = stood || reply.Created
	}
	w.d.mu.Lock()
	defer w.d.mu.Unlock()
	w.up = false
	return stood || w.wanted != s
}

// context gives our watch a stream of its own in the client, so that no other watch
// can delay it. A member that lost its leader ends it instead of leaving it silent.
func (w *watch) context() context.Context {
	return metadata.AppendToOutgoingContext(clientv3.WithRequireLeader(w.ctx),
		"interlock-session", strconv.FormatInt(int64(w.id), 16))
}

// take handles one reply of a watch that was opened for s.
func (w *watch) take(s scope, reply clientv3.WatchResponse) {
	w.d.mu.Lock()
	defer w.d.mu.Unlock()
	if s != w.wanted {
		return // it is about to be replaced
	}
	if reply.Created {
		w.start(reply.Header.Revision)
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

// start records that the watch was opened, and reports all changes after rev. Changes since an
// earlier watch broke must be read, at rev or later: an older snapshot lacks them.
func (w *watch) start(rev int64) {
	w.up, w.asked, w.rev = true, -1, 0
	w.opened++
	w.queues.highest = max(w.queues.highest, rev)
	w.d.hintAll()
	w.queues.restart(rev)
	nudge(w.maintainNow)
}

// progress records that the watch has reported everything up to rev. A lower revision than before
// does not count: the store may have been replaced. Nor does one below due.
func (w *watch) progress(rev int64) {
	if rev < w.rev {
		return
	}
	w.rev = rev
	if rev >= w.due {
		w.heard++
	}
}

func (w *watch) event(ev *clientv3.Event) {
	key, rev := string(ev.Kv.Key), ev.Kv.ModRevision
	w.queues.highest = max(w.queues.highest, rev)
	deleted := ev.Type == mvccpb.Event_DELETE
	w.d.layout.lines(key, func(at string) {
		w.hint(at)
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

// listen requests a progress reply of the watch, and reopens it if there was none since the last
// heartbeat.
func (w *watch) listen() {
	if !w.shouldAsk() {
		return
	}
	ctx, cancel := context.WithTimeout(w.context(), w.d.pace.heartbeat)
	defer cancel()
	// after an error the next heartbeat finds no answer
	_ = w.d.client.RequestProgress(ctx)
}

func (w *watch) shouldAsk() bool {
	w.d.mu.Lock()
	defer w.d.mu.Unlock()
	w.due, w.known = w.known, w.queues.highest
	switch {
	case w.wanted == nothing:
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

var _ driver.Watcher = (*Driver)(nil)

// Watch implements driver.Watcher on the session's watch, which also reports new contenders during
// a call: one watch of etcd for all calls. It also reports claims whose session expired, because
// etcd deletes their keys. It opens a session if there is none; if that fails, the error is
// Retryable.
func (d *Driver) Watch(ctx context.Context, prefix string, changed func(name string)) error {
	const op = "watch"
	if ctx.Err() != nil {
		return unsent(ctx, op, prefix)
	}
	box := driver.NewMailbox(prefix, driver.MostNames)
	defer d.detach(box)
	for {
		s, err := d.current(ctx)
		switch {
		case ctx.Err() != nil:
			return unsent(ctx, op, prefix)
		case errors.Is(err, interlock.ErrClosed):
			return errClosed(op, prefix)
		case err != nil:
			return harmless(err)
		}
		d.attach(box, s)
		pass(ctx, box, s, changed)
	}
}

// attach starts to listen under a session. The first hint is that changes may have been missed:
// now if the watch is open, else once it is.
func (d *Driver) attach(box *driver.Mailbox, s *session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.listeners[box] = true
	s.watch.need(changes)
	if s.watch.up {
		box.Miss()
	}
}

func (d *Driver) detach(box *driver.Mailbox) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.listeners, box)
}

// pass reports changes until the session or ctx ends.
func pass(ctx context.Context, box *driver.Mailbox, s *session, changed func(string)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.ctx.Done():
			return
		case <-box.Woken():
		}
		names, missed := box.Take()
		if missed {
			names = []string{""}
		}
		for _, name := range names {
			if ctx.Err() != nil {
				return
			}
			changed(name)
		}
	}
}

// hint reports to every listener that a line changed. A watch that is being replaced reports
// nothing: the next one begins with hintAll. The caller holds the driver's mutex, here and below.
func (w *watch) hint(line string) {
	if !w.up || len(w.d.listeners) == 0 {
		return
	}
	name, ok := w.d.layout.lineName(line)
	if !ok {
		return // it is not the line of a name
	}
	for box := range w.d.listeners {
		box.Add(name)
	}
}

// hintAll reports to every listener that it may have missed changes.
func (d *Driver) hintAll() {
	for box := range d.listeners {
		box.Miss()
	}
}
