package etcd

import (
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
			s.d.mu.Lock()
			s.queues.age()
			s.d.mu.Unlock()
			s.watch.listen()
			s.reread()
			s.sweep()
		}
	}
}

// sweep deletes the doomed keys. What fails is tried again at the next
// heartbeat: a key of ours would otherwise live as long as the session.
func (s *session) sweep() {
	s.d.mu.Lock()
	keys := s.queues.toDelete(batch)
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

// removed notes that keys of ours were deleted at rev, and drops contenders whose
// release waited for that.
func (s *session) removed(rev int64, keys ...string) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	for _, c := range s.queues.removed(rev, keys...) {
		s.d.forget(c)
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
	return s.queues.unread(all), s.watch.opened, all
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
		s.queues.list(at, reply.Header.Revision, s.queues.placesOf(reply.Responses[i].GetResponseRange().Kvs))
	}
	s.counter.see(reply.Responses[len(lines)].GetResponseRange().Kvs)
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
		s.queues.own(string(key), reply.Revision)
	}
	return nil
}
