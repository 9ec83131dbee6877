package etcd

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// A waitLease is a short lease of a session for contenders of a line that is not empty. If their
// process dies, their keys expire with it, before the session's TTL. A claim granted under it is
// moved to the session's lease, unless it is released within moveAfter.
type waitLease struct {
	id   clientv3.LeaseID
	ttl  time.Duration // as granted
	term *boottime.Lease
	idle int // renewals since it was needed; guarded by the driver's mutex
}

// moveAfter is how long a claim stays under a waitLease, so that a short claim needs no further
// request.
const moveAfter = 20 * time.Millisecond

// waitingTTL returns the TTL of the lease for waiting; 0 if that of the session is short
// enough.
func waitingTTL(ttl time.Duration) time.Duration {
	if w := clamp(ttl/3, 2*time.Second, 5*time.Second); w <= ttl/2 {
		return w
	}
	return 0
}

// leaseToWait returns the lease for c, whose line is not empty.
func (s *session) leaseToWait(ctx context.Context, c *contender) (clientv3.LeaseID, error) {
	ttl := waitingTTL(s.ttl)
	if ttl == 0 {
		return s.id, nil
	}
	w, err := s.waiting(ctx, c.name, ttl)
	if err != nil {
		return 0, err
	}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	c.aside = true
	return w.id, nil
}

// waiting returns the lease for waiting, granting one if there is none.
func (s *session) waiting(ctx context.Context, name string, ttl time.Duration) (*waitLease, error) {
	select {
	case s.granting <- struct{}{}:
		defer func() { <-s.granting }()
	case <-ctx.Done():
		return nil, unsent(ctx, opAcquire, name)
	}
	if w := s.waitingNow(); w != nil {
		return w, nil
	}
	rctx, cancel := s.d.bounded(ctx)
	defer cancel()
	sent := boottime.Sent()
	reply, err := s.d.client.Grant(clientv3.WithRequireLeader(rctx), int64((ttl+time.Second-1)/time.Second))
	if err != nil {
		return nil, harmless(failed(rctx, opAcquire, name, err))
	}
	granted := time.Duration(reply.TTL) * time.Second
	w := &waitLease{id: reply.ID, ttl: granted, term: boottime.NewLease(sent, granted)}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if s.d.closed || s.queues.ended {
		return nil, again(name, interlock.ErrSessionEnded)
	}
	s.wait = w
	s.d.tasks.Go(func() { s.keep(granted/3, nil, func() time.Duration { return s.renewWaiting(w) }) })
	return w, nil
}

func (s *session) waitingNow() *waitLease {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if s.wait == nil || s.wait.term.Remaining() <= 0 {
		return nil
	}
	s.wait.idle = 0
	return s.wait
}

// renewWaiting sends one renewal of w, and returns how long to wait for the next; -1 if no contender
// needs w any more.
func (s *session) renewWaiting(w *waitLease) time.Duration {
	if !s.needs(w) {
		return -1
	}
	ctx, cancel := context.WithTimeoutCause(s.ctx, min(s.d.pace.request, max(0, w.term.Remaining())), errSlow)
	defer cancel()
	sent := boottime.Now()
	ttl, err := s.keepAlive(ctx, w.id)
	switch {
	case leaseGone(err):
		w.term.End()
	case err != nil:
		return min(s.d.pace.retry, w.ttl/10)
	default:
		w.term.Renew(sent, ttl)
	}
	return max(0, w.ttl/3-boottime.Now().Sub(sent))
}

// needs reports whether w is to be renewed. It is not if it has ended, or if no contender
// has needed it for a while; the next waiter then gets another one.
func (s *session) needs(w *waitLease) bool {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	w.idle++
	for _, c := range s.queues.byKey {
		if c.state <= waiting || c.under.Load() == w {
			w.idle = 0
		}
	}
	if w.idle > lingers || w.term.Remaining() <= 0 {
		s.forgetWaiting(w)
		return false
	}
	return true
}

// forgetWaiting makes the next waiter get another lease. Claims under w end with
// it. An expiry is not reported to holders, which check Remaining. The caller holds the driver's
// mutex.
func (s *session) forgetWaiting(w *waitLease) {
	if s.wait == w {
		s.wait = nil
	}
	expired := w.term.Remaining() <= 0
	w.term.End()
	for _, c := range s.queues.byKey {
		if c.state == holding && c.under.Load() == w {
			if expired {
				c.events.Lost = nil
			}
			c.keyDeleted()
			s.queues.scheduleDelete(c.key)
		}
	}
}

// waitingGone records that etcd no longer has the waitLease with this id.
func (s *session) waitingGone(id clientv3.LeaseID) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if s.wait != nil && s.wait.id == id {
		s.forgetWaiting(s.wait)
	}
}

// leaseOf returns the lease of a contender's key; ok is false if it is no longer
// renewed, or not ours. The caller holds the driver's mutex.
func (s *session) leaseOf(id clientv3.LeaseID) (w *waitLease, ok bool) {
	switch {
	case id == s.id, id == clientv3.NoLease:
		return nil, true
	case s.wait != nil && id == s.wait.id:
		return s.wait, true
	}
	return nil, false
}

// moveLater schedules the move of a claim to the session's lease if it is still held
// after moveAfter. The caller holds the driver's mutex.
func (s *session) moveLater() {
	if s.armed {
		return
	}
	s.armed = true
	if s.moving == nil {
		s.moving = time.AfterFunc(moveAfter, func() { nudge(s.maintainNow) })
		return
	}
	s.moving.Reset(moveAfter)
}

// move moves the claims under a waitLease to the session's. A failure is repeated at the next
// heartbeat.
func (s *session) move() {
	for _, c := range s.toMove() {
		if s.moveOne(s.ctx, c) != nil {
			return
		}
	}
}

// toMove returns the claims that have been held for long enough.
func (s *session) toMove() (all []*contender) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	now := boottime.Sent()
	s.armed = false
	early := false
	for _, c := range s.queues.byKey {
		switch {
		case c.state != holding || c.under.Load() == nil:
		case now.Sub(c.since) < moveAfter:
			early = true
		default:
			all = append(all, c)
		}
	}
	if early {
		s.moveLater()
	}
	return all
}

// moveOne puts the key again, under the session's lease, if it still holds the lock.
// That keeps its place and its token.
func (s *session) moveOne(ctx context.Context, c *contender) error {
	s.d.mu.Lock()
	key, created := c.key, c.created
	s.d.mu.Unlock()
	put := opPut([]byte(key), nil, s.id)
	put.GetRequestPut().IgnoreValue = true
	ctx, cancel := s.d.bounded(ctx)
	defer cancel()
	reply, err := s.d.commit(ctx, &pb.TxnRequest{
		Compare: []*pb.Compare{createdAt([]byte(key), created)},
		Success: []*pb.RequestOp{put},
	})
	switch {
	case leaseGone(err):
		s.end(interlock.ErrSessionEnded)
		return again(c.name, interlock.ErrSessionEnded)
	case err != nil:
		return failed(ctx, opAcquire, c.name, err)
	}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	switch {
	case c.state != holding || c.created != created:
	case reply.Succeeded:
		c.under.Store(nil)
		c.aside = false
	default:
		c.keyDeleted()
	}
	return nil
}
