package etcd

import (
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
)

// openFor is how many heartbeats a watch may take to open.
const openFor = 4

// batch is how many operations one transaction has; etcd allows 128.
const batch = 64

// maintain works at every heartbeat: it deletes keys, reads lines that need a snapshot, and checks
// that the watch still answers.
func (s *session) maintain() {
	beat := time.NewTicker(s.d.pace.heartbeat)
	defer beat.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.maintainNow:
			s.reread()
			s.sweep()
			s.move()
		case <-beat.C:
			s.d.mu.Lock()
			s.watch.age(s.queues.age())
			look := s.strays.due()
			s.d.mu.Unlock()
			s.watch.listen()
			s.reread()
			if look {
				s.findStrays()
			}
			s.sweep()
			s.move()
		}
	}
}

// sweep deletes the scheduled keys. A failure is repeated at the next heartbeat: otherwise a
// key of ours lives as long as the session.
func (s *session) sweep() {
	s.d.mu.Lock()
	keys := s.queues.toDelete(batch)
	s.d.mu.Unlock()
	if len(keys) == 0 {
		return
	}
	ctx, cancel := s.d.bounded(s.ctx)
	defer cancel()
	if rev, err := s.d.delete(ctx, keys...); err == nil {
		s.removed(rev, keys...)
	}
}

// removed records that keys of ours were deleted at rev, and forgets contenders whose release
// waited for it.
func (s *session) removed(rev int64, keys ...string) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	for _, c := range s.queues.removed(rev, keys...) {
		s.d.forget(c)
	}
}

// reread reads every line while the watch is unreliable, or once when it was
// reopened, and otherwise the lines that have long had no snapshot.
func (s *session) reread() {
	lines, opened, all := s.unread()
	for chunk := range slices.Chunk(lines, batch) {
		if s.read(chunk) != nil {
			return
		}
	}
	if !all {
		return
	}
	s.d.mu.Lock()
	s.watch.read = opened
	s.d.mu.Unlock()
}

// unread returns the lines to be read, and how often the watch was opened.
func (s *session) unread() (lines []string, opened int, all bool) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	all = s.watch.wanted != nothing && (!s.watch.up || s.watch.read != s.watch.opened)
	return s.queues.unread(all), s.watch.opened, all
}

// read takes snapshots of some lines, and the base, in one transaction.
func (s *session) read(lines []string) error {
	floor := s.floor()
	r := &pb.TxnRequest{}
	for _, at := range lines {
		r.Success = append(r.Success, opReadLine(at))
	}
	r.Success = append(r.Success, s.d.readBase)
	ctx, cancel := s.d.bounded(s.ctx)
	defer cancel()
	reply, err := s.d.commit(ctx, r)
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
	s.counter.observe(reply.Responses[len(lines)].GetResponseRange().Kvs)
	return nil
}

// strays schedules searches for keys of acquire requests with an unknown outcome. Such a
// request may be executed at any later time, and its key would block a name for as long
// as the session lives. The pauses between two searches double, up to maxPause
// heartbeats; the searches do not end.
type strays struct{ pause, left int } // in heartbeats; 0 as long as all outcomes are known

const maxPause = 16

func (s *strays) begin() { s.pause, s.left = 1, 1 }

func (s *strays) due() bool {
	if s.left--; s.pause == 0 || s.left > 0 {
		return false
	}
	s.pause = min(2*s.pause, maxPause)
	s.left = s.pause
	return true
}

// unknown schedules a search for stray keys of an acquire request if err means that its outcome
// is unknown.
func (s *session) unknown(err error, cs ...*contender) error {
	if interlock.Kind(err) == interlock.Uncertain {
		s.d.mu.Lock()
		defer s.d.mu.Unlock()
		s.strays.begin()
		for _, c := range cs {
			s.queues.spent[c.key] = true
		}
	}
	return err
}

// findStrays deletes the keys under the session's lease that no contender has.
func (s *session) findStrays() {
	ctx, cancel := s.d.bounded(s.ctx)
	defer cancel()
	for _, id := range s.leases() {
		reply, err := s.d.client.TimeToLive(ctx, id, clientv3.WithAttachedKeys())
		s.ownAll(reply, err)
	}
}

// leases lists the leases that the session renews.
func (s *session) leases() []clientv3.LeaseID {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if s.wait == nil {
		return []clientv3.LeaseID{s.id}
	}
	return []clientv3.LeaseID{s.id, s.wait.id}
}

func (s *session) ownAll(reply *clientv3.LeaseTimeToLiveResponse, err error) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if err != nil {
		s.strays.begin()
		return
	}
	for _, key := range reply.Keys {
		s.queues.own(string(key))
	}
}
