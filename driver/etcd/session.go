package etcd

import (
	"context"
	"fmt"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// session is a lease and all state that belongs to it. When it ends, nothing of it is used
// again. The driver's mutex guards all fields below mu.
type session struct {
	d    *Driver
	id   clientv3.LeaseID
	ttl  time.Duration // as granted
	term *boottime.Lease

	ctx         context.Context // ends with the session
	cancel      context.CancelFunc
	checkNow    chan struct{} // requests a renewal at once
	maintainNow chan struct{} // requests a heartbeat at once
	granting    chan struct{} // has one entry while a waitLease is being granted

	// mu is d.mu
	revoked bool // etcd reported that the lease has ended, and its keys with it
	queues  queues
	counter tokenCounter
	watch   watch
	strays  strays
	wait    *waitLease  // nil while there is none
	moving  *time.Timer // nil before the first claim was granted under a waitLease
	armed   bool        // moving is set
}

// newSession grants a lease and raises the base. It runs in a task of the driver.
func (d *Driver) newSession() (*session, error) {
	ctx, cancel := d.opening(d.ctx)
	defer cancel()
	var sent boottime.Instant
	var reply *clientv3.LeaseGrantResponse
	err := d.patiently(ctx, func(ctx context.Context) (err error) {
		sent = boottime.Now()
		reply, err = d.client.Grant(ctx, d.pace.seconds) // a lease without an answer expires
		return err
	})
	if err != nil {
		return nil, harmless(failed(ctx, "open session", "", err))
	}
	s := d.sessionOf(sent, reply)
	if err := s.start(); err != nil {
		s.cancel()
		return nil, harmless(err)
	}
	return s, nil
}

func (d *Driver) sessionOf(sent boottime.Instant, granted *clientv3.LeaseGrantResponse) *session {
	ttl := time.Duration(granted.TTL) * time.Second
	s := &session{
		d:           d,
		id:          granted.ID,
		ttl:         ttl,
		term:        boottime.NewLease(sent, ttl),
		checkNow:    make(chan struct{}, 1),
		maintainNow: make(chan struct{}, 1),
		granting:    make(chan struct{}, 1),
	}
	s.queues = newQueues(granted.GetRevision(), func() { nudge(s.maintainNow) })
	s.counter.session = s
	s.watch = watch{session: s, changed: make(chan struct{}, 1), reopen: func() {}}
	s.ctx, s.cancel = context.WithCancel(d.ctx)
	return s
}

func (s *session) start() error {
	if _, err := s.counter.raise(s.ctx); err != nil {
		return err
	}
	s.d.tasks.Go(s.watch.follow)
	s.d.tasks.Go(func() { s.keep(s.ttl/3, s.checkNow, s.renewOnce) })
	s.d.tasks.Go(s.maintain)
	return nil
}

// keep calls renew after pause, then after the time that renew returns, until that is negative or
// the session ends. now requests a call at once.
func (s *session) keep(pause time.Duration, now <-chan struct{}, renew func() time.Duration) {
	next := time.NewTimer(pause)
	defer next.Stop()
	for pause >= 0 {
		select {
		case <-s.ctx.Done():
			return
		case <-now:
		case <-next.C:
		}
		pause = renew()
		next.Reset(pause)
	}
}

// renewOnce sends one renewal, and returns how long to wait for the next.
func (s *session) renewOnce() time.Duration {
	left := s.term.Remaining()
	if left <= 0 {
		s.end(errTimeRanOut)
		return s.ttl
	}
	ctx, cancel := context.WithTimeoutCause(s.ctx, min(s.d.pace.request, left), errSlow)
	defer cancel()
	sent := boottime.Now()
	ttl, err := s.keepAlive(ctx, s.id)
	took := boottime.Now().Sub(sent)
	switch {
	case s.ctx.Err() != nil:
		return s.ttl
	case leaseGone(err):
		s.end(interlock.ErrSessionEnded)
		return s.ttl
	case err != nil:
		s.renewed(took, failed(ctx, "renew", "", err))
		return min(s.d.pace.retry, max(0, s.term.Remaining()))
	case !s.term.Renew(sent, ttl):
		s.end(errTimeRanOut)
		return s.ttl
	}
	s.renewed(took, nil)
	return max(0, s.ttl/3-took)
}

// keepAlive sends one renewal. The client's own KeepAliveOnce repeats it without a
// pause while no server is reachable. It is used only for clients in the server's
// process, which have no connection.
func (s *session) keepAlive(ctx context.Context, id clientv3.LeaseID) (time.Duration, error) {
	conn := s.d.client.ActiveConnection()
	if conn == nil {
		reply, err := s.d.client.KeepAliveOnce(ctx, id)
		if err != nil {
			return 0, err
		}
		return time.Duration(reply.TTL) * time.Second, nil
	}
	reply, err := keepAliveOver(ctx, pb.NewLeaseClient(conn), id)
	if err != nil {
		// skip the connection's own backoff, because the lease is about to expire
		conn.ResetConnectBackoff()
		return 0, err
	}
	s.reached(reply.GetHeader().GetRevision())
	return time.Duration(reply.TTL) * time.Second, nil
}

func keepAliveOver(ctx context.Context, leases pb.LeaseClient, id clientv3.LeaseID) (*pb.LeaseKeepAliveResponse, error) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx)) // ends the stream
	defer cancel()
	stream, err := leases.LeaseKeepAlive(ctx)
	if err != nil {
		return nil, rpctypes.Error(err)
	}
	if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(id)}); err != nil {
		return nil, rpctypes.Error(err)
	}
	reply, err := stream.Recv()
	if err != nil {
		return nil, rpctypes.Error(err)
	}
	if reply.TTL <= 0 {
		return nil, rpctypes.ErrLeaseNotFound
	}
	return reply, nil
}

// renewed reports a renewal to every holder.
func (s *session) renewed(took time.Duration, err error) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if s.queues.ended {
		return // a late answer: there are no holders any more
	}
	for _, c := range s.queues.byKey {
		if c.granted && c.events.Renewed != nil {
			c.events.Renewed(took, err)
		}
	}
}

// end ends the session and every claim with it, and wakes every waiter.
func (s *session) end(cause error) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	s.endLocked(cause)
}

// endLocked ends the session like end; the driver's mutex is held. An expiry is not reported
// to holders, which check Remaining.
func (s *session) endLocked(cause error) {
	if s.queues.ended {
		return
	}
	s.queues.ended, s.revoked = true, cause == interlock.ErrSessionEnded
	s.term.End()
	s.cancel()
	if s.d.session == s {
		s.d.session = nil
	}
	for _, c := range s.queues.deleting {
		if c != nil && c.goneWithSession() {
			s.d.forget(c)
		}
	}
	for _, c := range s.queues.byKey {
		if s.revoked {
			c.reportLost(interlock.ErrSessionEnded)
		}
		if c.state != leaving {
			c.state = outdated
		}
		c.wake()
	}
}

// floor returns the highest revision known. The answer to a later request must not have a lower
// one.
func (s *session) floor() int64 {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	return s.queues.highest
}

// reached records that the store has reached a revision.
func (s *session) reached(rev int64) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	s.queues.highest = max(s.queues.highest, rev)
}

// proceeds compares the revision of an answer with the floor from before the request. A lower one
// comes from another store, such as a restored backup, to which no state of the session applies.
func (s *session) proceeds(floor, rev int64) error {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if rev >= floor {
		s.queues.highest = max(s.queues.highest, rev)
		return nil
	}
	s.endLocked(interlock.ErrSessionEnded)
	return problem("read", "", interlock.Retryable,
		fmt.Errorf("the store went back from revision %d to %d: %w", floor, rev, interlock.ErrSessionEnded))
}

// cleanUp revokes the leases of a closing driver if no claim is held, and otherwise deletes the
// waiters. Errors are ignored: the lease expires.
func (s *session) cleanUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), min(time.Second, s.d.pace.request))
	defer cancel()
	s.d.mu.Lock()
	keys, held := s.queues.leftovers()
	w := s.wait
	s.d.mu.Unlock()
	if held {
		for chunk := range slices.Chunk(keys, batch) {
			_, _ = s.d.delete(ctx, chunk...)
		}
		return
	}
	if w != nil {
		_, _ = s.d.client.Revoke(ctx, w.id)
	}
	_, _ = s.d.client.Revoke(ctx, s.id)
}

// openFor is how many heartbeats a watch may take to open.
const openFor = 4

// batch is how many operations one transaction has; etcd allows 128.
const batch = 64

// maintain works at every heartbeat: it checks that the watch still answers, deletes keys, and reads
// lines that need a snapshot. Deletions are first, because those keys block others, and a member that
// does not answer delays what follows.
func (s *session) maintain() {
	beat := time.NewTicker(s.d.pace.heartbeat)
	defer beat.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.maintainNow:
			s.sweep()
			s.reread()
			s.move()
		case <-beat.C:
			s.d.mu.Lock()
			s.watch.age(s.queues.age())
			look := s.strays.due()
			s.d.mu.Unlock()
			s.watch.listen()
			s.sweep()
			s.reread()
			if look {
				s.findStrays()
			}
			s.move()
		}
	}
}

// sweep deletes the scheduled keys. A failure is repeated: otherwise a key of ours lives as long as the
// session.
func (s *session) sweep() {
	s.d.mu.Lock()
	keys := s.queues.toDelete(batch)
	s.d.mu.Unlock()
	if len(keys) == 0 {
		return
	}
	ctx, cancel := s.d.bounded(s.ctx)
	defer cancel()
	rev, err := s.d.delete(ctx, keys...)
	if err != nil {
		s.repeatSlow(ctx)
		return
	}
	s.removed(rev, keys...)
}

// repeatSlow repeats a failed request of maintain at once if a member did not answer: the client sends it to
// the next one. Otherwise it is repeated at the next heartbeat.
func (s *session) repeatSlow(ctx context.Context) {
	if context.Cause(ctx) == errSlow {
		nudge(s.maintainNow)
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
		s.repeatSlow(ctx)
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

// findStrays deletes the keys under the session's leases that no contender has.
func (s *session) findStrays() {
	ctx, cancel := s.d.bounded(s.ctx)
	defer cancel()
	s.d.mu.Lock()
	leases := []clientv3.LeaseID{s.id}
	if s.wait != nil {
		leases = append(leases, s.wait.id)
	}
	s.d.mu.Unlock()
	for _, id := range leases {
		reply, err := s.d.client.TimeToLive(clientv3.WithRequireLeader(ctx), id, clientv3.WithAttachedKeys())
		s.ownAll(reply, err)
	}
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

func nudge(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
