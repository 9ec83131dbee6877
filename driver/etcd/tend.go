package etcd

import (
	"context"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// openFor is for how many heartbeats a watch may be on its way.
const openFor = 4

// batch is how many operations go into one transaction; etcd allows 128.
const batch = 64

// tend looks after the session at every heartbeat: keys that must go, lines
// that have no snapshot, and whether the watch still speaks.
func (s *session) tend() {
	beat := time.NewTicker(s.d.pace.heartbeat)
	defer beat.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.tendNow:
			s.reread()
			s.sweep()
		case <-beat.C:
			s.age()
			s.listen()
			s.reread()
			s.sweep()
		}
	}
}

// sweep deletes the doomed keys. What fails is tried again at the next
// heartbeat: a key of ours would otherwise live as long as the session.
func (s *session) sweep() {
	s.d.mu.Lock()
	keys := make([]string, 0, min(batch, len(s.doomed)))
	for key := range s.doomed {
		if len(keys) < batch {
			keys = append(keys, key)
		}
	}
	s.d.mu.Unlock()
	if len(keys) == 0 {
		return
	}
	ctx, cancel := s.d.bounded(s.ctx)
	defer cancel()
	if reply, err := s.d.delete(ctx, keys); err == nil {
		s.removed(reply.Revision, keys...)
	}
}

// removed notes that keys of ours were deleted at rev. A release that waited for
// the last of them is over.
func (s *session) removed(rev int64, keys ...string) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	for _, key := range keys {
		c := s.doomed[key]
		delete(s.doomed, key)
		s.buried[key] = rev
		if c != nil && !slices.ContainsFunc(c.keys(), s.isDoomed) {
			s.d.forget(c)
		}
	}
}

// listen asks the watch to speak, and reopens it if it did not since
// the last heartbeat.
func (s *session) listen() {
	if !s.shouldAsk() {
		return
	}
	ctx, cancel := context.WithTimeout(s.watchContext(), s.d.pace.heartbeat)
	defer cancel()
	// an error shows as silence at the next heartbeat
	_ = s.d.client.RequestProgress(ctx)
}

func (s *session) shouldAsk() bool {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	w := &s.watch
	switch {
	case len(s.lines) == 0 && len(s.d.listeners) == 0:
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

// age counts how long lines have needed a snapshot. At the first heartbeat the
// answer that brings it is probably on its way.
func (s *session) age() {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	for _, l := range s.lines {
		if l.listed == 0 {
			l.beats++
		}
	}
}

// reread reads every line while the watch is not to be relied on, or once when
// it was reopened, and otherwise those that have long had no snapshot.
func (s *session) reread() {
	lines, opened, all := s.unread()
	for chunk := range slices.Chunk(lines, batch) {
		if s.read(chunk) != nil {
			return
		}
	}
	if !all || s.findGhosts() != nil {
		return
	}
	s.d.mu.Lock()
	s.watch.read = opened
	s.d.mu.Unlock()
}

// unread lists the lines to be read, for the watch that was opened so often.
func (s *session) unread() (lines []string, opened int, all bool) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	all = !s.watch.up || s.watch.read != s.watch.opened
	for at, l := range s.lines {
		if all || l.listed == 0 && l.beats > 1 {
			lines = append(lines, at)
		}
	}
	return lines, s.watch.opened, all
}

// read takes snapshots of some lines, and the base, in one transaction.
func (s *session) read(lines []string) error {
	floor := s.floor()
	ops := make([]clientv3.Op, len(lines), len(lines)+1)
	for i, at := range lines {
		ops[i] = inOrder(at)
	}
	ctx, cancel := s.d.bounded(s.ctx)
	defer cancel()
	reply, err := s.d.client.Txn(ctx).Then(append(ops, clientv3.OpGet(s.d.layout.base()))...).Commit()
	if err != nil {
		return failed(ctx, "read lines", "", err)
	}
	if err := s.proceeds(floor, reply.Header.Revision); err != nil {
		return err
	}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	for i, at := range lines {
		s.list(at, reply.Header.Revision, placesOf(reply.Responses[i].GetResponseRange().Kvs))
	}
	s.seeBase(reply.Responses[len(lines)].GetResponseRange().Kvs)
	return nil
}

// findGhosts looks for keys of ours that nobody here knows, which the watch may
// have missed.
func (s *session) findGhosts() error {
	ctx, cancel := s.d.bounded(s.ctx)
	defer cancel()
	reply, err := s.d.client.TimeToLive(ctx, s.id, clientv3.WithAttachedKeys())
	if err != nil {
		return failed(ctx, "list keys of the session", "", err)
	}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	for _, key := range reply.Keys {
		s.own(string(key), reply.Revision)
	}
	return nil
}
