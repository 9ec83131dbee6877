package etcd

import (
	"context"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
)

// watchState is what is known of the standing watch.
type watchState struct {
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
func (s *session) follow(up chan<- error) {
	for s.ctx.Err() == nil {
		stood, err := s.followOnce(up)
		if stood {
			continue
		}
		if err != nil {
			tell(up, err)
		}
		pause := time.NewTimer(s.d.pace.retry)
		select {
		case <-s.ctx.Done():
		case <-pause.C:
		}
		pause.Stop()
	}
}

// followOnce opens the watch at the present revision, which is what makes etcd
// push each event at once, and follows it until it breaks. The client resumes
// it by itself when only a connection breaks.
func (s *session) followOnce(up chan<- error) (stood bool, err error) {
	ctx, cancel := context.WithCancel(s.watchContext())
	defer cancel()
	s.d.mu.Lock()
	s.watch.reopen = cancel
	s.d.mu.Unlock()
	for reply := range s.d.client.Watch(ctx, s.d.layout.prefix, clientv3.WithPrefix(), clientv3.WithCreatedNotify()) {
		if err = reply.Err(); err != nil {
			break
		}
		s.heard(reply)
		if reply.Created {
			stood = true
			tell(up, nil)
		}
	}
	s.d.mu.Lock()
	s.watch.up = false
	s.d.mu.Unlock()
	return stood, err
}

// tell sends err if a caller still waits for it.
func tell(up chan<- error, err error) {
	select {
	case up <- err:
	default:
	}
}

// watchContext marks our watch, so that the client gives it a stream of its
// own, on which nobody else's watch can delay it. A member that lost its leader
// ends it instead of leaving it silent.
func (s *session) watchContext() context.Context {
	return metadata.AppendToOutgoingContext(clientv3.WithRequireLeader(s.ctx),
		"interlock-session", strconv.FormatInt(int64(s.id), 16))
}

// heard takes one reply of the watch.
func (s *session) heard(reply clientv3.WatchResponse) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if reply.Created {
		s.stands(reply.Header.Revision)
		return
	}
	for _, ev := range reply.Events {
		s.event(ev)
	}
	if n := len(reply.Events); n > 0 {
		s.progress(reply.Events[n-1].Kv.ModRevision)
	} else if reply.IsProgressNotify() {
		s.progress(reply.Header.Revision)
	}
}

// stands notes that the watch was opened, and will tell all that happens after
// rev. What happened since an earlier one broke must be read, at rev or later:
// no snapshot from before closes the gap.
func (s *session) stands(rev int64) {
	w := &s.watch
	w.up, w.asked, w.rev = true, -1, 0
	w.opened++
	s.highest = max(s.highest, rev)
	s.d.hintAll()
	if w.opened == 1 {
		w.read = 1
		return
	}
	for _, l := range s.lines {
		l.restart(rev)
	}
	nudge(s.tendNow)
}

// progress notes that the watch has told everything up to rev. Less than it had
// told before is no sign of life: the store may have been replaced.
func (s *session) progress(rev int64) {
	if rev < s.watch.rev {
		return
	}
	s.watch.rev = rev
	s.watch.heard++
	for key, at := range s.buried {
		if at <= rev {
			delete(s.buried, key)
		}
	}
}

func (s *session) event(ev *clientv3.Event) {
	key, rev := string(ev.Kv.Key), ev.Kv.ModRevision
	s.highest = max(s.highest, rev)
	deleted := ev.Type == mvccpb.Event_DELETE
	if key == s.d.layout.base() {
		s.baseEvent(ev, deleted)
		return
	}
	if !deleted && ev.Kv.Lease == int64(s.id) {
		s.own(key, rev)
	}
	var c *change
	s.d.layout.lines(key, func(at string) {
		s.d.hint(at)
		l := s.lines[at]
		if l == nil {
			return
		}
		if c == nil {
			c = &change{rev: rev, deleted: deleted, place: place{key: key}}
			if !deleted {
				c.place = placeOf(ev.Kv)
			}
		}
		s.perform(l.apply(*c))
	})
}

func (s *session) baseEvent(ev *clientv3.Event, deleted bool) {
	if deleted {
		s.seeBase(nil)
		return
	}
	s.seeBase([]*mvccpb.KeyValue{ev.Kv})
}

// own looks at a key that was written under our lease. One that nobody here
// knows is the late arrival of a request that was given up: it would stand in
// line for as long as the session lives, so it is removed.
func (s *session) own(key string, rev int64) {
	if s.byKey[key] == nil && rev > s.buried[key] {
		s.doom(key)
	}
}

// doom asks for a key to be deleted, now and until it is.
func (s *session) doom(key string) {
	if !s.isDoomed(key) {
		s.doomed[key] = nil
	}
	nudge(s.tendNow)
}

func (s *session) isDoomed(key string) bool {
	_, yes := s.doomed[key]
	return yes
}

// join makes c a contender of its line. The driver's mutex is held, here and
// in all that follows.
func (s *session) join(c *contender) {
	at := s.d.layout.line(c.name)
	l := s.lines[at]
	if l == nil {
		l = newLine()
		l.restart(s.highest) // an answer to somebody before us may still be on its way
		s.lines[at] = l
	}
	if rev, gone := s.buried[c.key]; gone {
		l.restart(rev) // what was deleted must not be taken for what is asked for now
	}
	l.join(c.key)
	s.byKey[c.key] = c
	delete(s.doomed, c.key)
}

// stepOut takes c out of its line; its key is still known as ours.
func (s *session) stepOut(c *contender) {
	at := s.d.layout.line(c.name)
	if l := s.lines[at]; l != nil && s.byKey[c.key] == c && l.leave(c.key) {
		delete(s.lines, at)
	}
}

// leave is the opposite of join.
func (s *session) leave(c *contender) {
	s.stepOut(c)
	if s.byKey[c.key] == c {
		delete(s.byKey, c.key)
	}
}

// list gives a line its snapshot.
func (s *session) list(at string, rev int64, places []place) {
	if l := s.lines[at]; l != nil {
		s.perform(l.list(rev, places))
	}
}

// unlisted reports that a line needs a snapshot.
func (s *session) unlisted(at string) bool {
	l := s.lines[at]
	return l != nil && l.listed == 0
}

// holder is who holds a line, as far as it is known.
func (s *session) holder(at string) string {
	if l := s.lines[at]; l != nil && len(l.places) > 0 {
		return l.places[0].owner
	}
	return ""
}

// perform reports their new states to contenders.
func (s *session) perform(effects []effect) {
	for _, e := range effects {
		c := s.byKey[e.key]
		switch {
		case c == nil || s.ended:
		case e.kind == granted:
			c.win(e)
		case e.kind == placed:
			c.queue(e)
		case e.kind == vanished:
			c.vanish()
		}
	}
}
