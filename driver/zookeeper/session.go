package zookeeper

import (
	"context"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/hints"
)

// session is a session of ZooKeeper with a client of its own, and all state that belongs to it.
// When it ends, nothing of it is used again. The driver's mutex guards all fields below mu.
type session struct {
	d    *Driver
	link *link
	conn *zk.Conn
	id   int64
	ttl  time.Duration // as granted
	pace pace
	term *boottime.Lease

	ctx      context.Context // ends with the session
	cancel   context.CancelFunc
	up       chan struct{} // closed when the session is established
	checkNow chan struct{} // requests a renewal at once
	back     chan struct{} // signals that the ended session has a connection, or has expired
	renewals []renewal     // of the last quarter of the TTL; renew uses them

	// mu is d.mu
	established bool
	connected   bool
	reconnected bool // over a new connection, on which nothing was sent yet
	ended       bool
	revoked     bool // ZooKeeper reported that the session has ended, and its nodes with it
	nodes       nodes
	counter     tokenCounter
}

// newSession opens a session and raises the base. It runs in a task of the
// driver.
func (d *Driver) newSession() (*session, error) {
	s := d.sessionWith(paceOf(d.options.TTL))
	ctx, cancel := context.WithTimeoutCause(s.ctx, s.pace.opening, errSlow)
	defer cancel()
	sent := boottime.Now()
	conn, events, err := zk.Connect(d.options.Servers, d.options.TTL, zk.WithHostProvider(s.link),
		zk.WithDialer(s.link.connect), zk.WithEventCallback(s.receive), zk.WithLogger(quiet{}), zk.WithLogInfo(false))
	if err != nil {
		s.cancel()
		return nil, fail.New(opOpen, "", interlock.Definite, err)
	}
	s.conn = conn
	d.tasks.Go(func() { // newSession runs in a task, so that Close does not wait yet
		for range events { // closed when the client's goroutines have ended
		}
	})
	select {
	case <-s.up:
	case <-ctx.Done():
		d.tasks.Go(s.abandon)
		return nil, fail.New(opOpen, "", interlock.Retryable, context.Cause(ctx))
	}
	if err := s.begin(ctx, sent); err != nil {
		d.tasks.Go(s.abandon)
		return nil, harmless(err)
	}
	return s, nil
}

func (d *Driver) sessionWith(p pace) *session {
	s := &session{
		d:        d,
		pace:     p,
		up:       make(chan struct{}),
		checkNow: make(chan struct{}, 1),
		back:     make(chan struct{}, 1),
		nodes:    newNodes(),
	}
	s.counter.session = s
	s.ctx, s.cancel = context.WithCancel(d.ctx)
	s.link = &link{ctx: d.ctx, dial: d.options.Dial, patience: p.request}
	return s
}

// abandon ends a session that could not be opened.
func (s *session) abandon() {
	s.cancel()
	s.leave(true)
}

// begin records the granted TTL, creates the namespace, and starts the session's renewals.
func (s *session) begin(ctx context.Context, sent boottime.Instant) error {
	s.d.mu.Lock() // the client's goroutines deliver events already
	ttl := s.link.length()
	s.id, s.ttl, s.pace, s.term = s.conn.SessionID(), ttl, paceOf(ttl), boottime.NewLease(sent, ttl)
	s.d.mu.Unlock()
	if ttl < minTTL {
		return fail.New(opOpen, "", interlock.Definite, fmt.Errorf("the server granted a session of %v; at least %v is required", ttl, minTTL))
	}
	for _, a := range s.d.options.Auth {
		_, err := ask(ctx, s, "authenticate", "", func(c *zk.Conn) (struct{}, error) {
			return struct{}{}, c.AddAuth(a.Scheme, a.Credentials)
		})
		if err != nil {
			return err
		}
	}
	floor, err := s.d.options.Seed.Floor(s.d.options.Now())
	if err != nil {
		return refusedBase(err)
	}
	if _, err := s.counter.raise(ctx, floor); err != nil {
		return err
	}
	s.d.tasks.Go(s.renew)
	s.d.tasks.Go(s.maintain)
	return nil
}

// renew keeps the session alive until it ends. The client's own pings do that too, but the
// client does not report when the last answered one was sent.
func (s *session) renew() {
	next := time.NewTimer(s.ttl / 8)
	defer next.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.checkNow:
		case <-next.C:
		}
		s.resume()
		next.Reset(s.renewOnce())
	}
}

// resume allows requests over a new connection, and makes every call of Watch read again, as
// events may have been missed.
func (s *session) resume() {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if !s.reconnected {
		return
	}
	s.reconnected, s.connected = false, true
	s.nodes.miss()
}

// renewOnce sends one renewal, and returns how long to wait for the next.
func (s *session) renewOnce() time.Duration {
	left := s.term.Remaining()
	if left <= 0 {
		s.end(errTimeRanOut)
		return s.ttl
	}
	ctx, cancel := context.WithTimeoutCause(s.ctx, min(s.pace.request, left), errSlow)
	defer cancel()
	sent := boottime.Now()
	err := s.confirm(ctx, "renew", "")
	took := boottime.Now().Sub(sent)
	switch {
	case s.ctx.Err() != nil:
		return s.ttl
	case err != nil:
		if ctx.Err() != nil {
			s.link.reset() // it may be broken without an error
		}
		s.renewed(took, err)
		return min(s.pace.retry, max(0, s.term.Remaining()))
	case !s.extend(sent):
		s.end(errTimeRanOut)
		return s.ttl
	}
	s.renewed(took, nil)
	return max(0, s.ttl/8-took)
}

// renewal is the times of a successful renewal.
type renewal struct{ sent, answered boottime.Instant }

// extend moves the deadline after a renewal that was sent at sent. It is false if the session has
// ended. A server reports the activity of its sessions to the leader every half tick, and a
// session has two ticks at least. So if the server still reaches the leader, the leader knows of
// the renewals that were answered a quarter of the TTL ago. It may not know of this one.
func (s *session) extend(sent boottime.Instant) bool {
	s.renewals = append(s.renewals, renewal{sent, boottime.Now()})
	for sent.Sub(s.renewals[0].answered) >= s.ttl/4 {
		s.term.Renew(s.renewals[0].sent, s.ttl)
		s.renewals = s.renewals[1:]
	}
	return s.term.Remaining() > 0
}

// renewed reports a renewal to every holder.
func (s *session) renewed(took time.Duration, err error) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if s.ended {
		return // a late answer: there are no holders any more
	}
	for _, c := range s.nodes.own {
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
// to holders, which check Remaining. ZooKeeper may keep that session for a whole TTL after it
// has elected a leader. So the client closes it as soon as a server can be reached.
func (s *session) endLocked(cause error) {
	if s.ended {
		return
	}
	ranOut := cause == errTimeRanOut
	s.ended, s.revoked = true, cause == interlock.ErrSessionEnded
	if s.term != nil {
		s.term.End()
	}
	if s.d.session == s {
		s.d.session = nil
		if ranOut {
			s.link.reset() // its renewals have failed
		}
		s.d.tasks.Go(func() { // the client's goroutines are tasks that still run
			if ranOut {
				s.awaitConnection()
			}
			s.leave(ranOut)
		})
	}
	s.cancel()
	for _, c := range s.d.contenders {
		if c.session != s {
			continue
		}
		if !ranOut {
			c.reportLost(interlock.ErrSessionEnded)
		}
		if c.state != leaving {
			c.state = outdated
		}
		c.wake()
	}
	s.nodes.wake()
}

// awaitConnection waits until an ended session has a new connection, or has expired, or the
// driver closes.
func (s *session) awaitConnection() {
	select {
	case <-s.back:
	case <-s.d.ctx.Done():
	}
}

// leave ends the client within two seconds. Without goodbye it does not close the session,
// which then expires.
func (s *session) leave(goodbye bool) {
	if !goodbye {
		s.link.closeForGood()
	}
	s.conn.Close()
	s.link.closeForGood()
}

// receive handles an event of the client. The client's goroutines call it; the events of watches
// arrive one at a time.
func (s *session) receive(ev zk.Event) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	switch {
	case ev.Type == zk.EventSession:
		s.sessionEvent(ev.State)
	case s.ended, ev.Type == zk.EventNotWatching: // the client has ended
	case s.nodes.event(ev):
		hints.Signal(s.d.maintainNow)
	}
}

func (s *session) sessionEvent(state zk.State) {
	switch state {
	case zk.StateHasSession:
		switch {
		case s.ended:
			hints.Signal(s.back)
		case !s.established:
			s.established, s.connected = true, true
			close(s.up)
		case s.link.length() < s.ttl: // it would end before our claims do
			s.endLocked(errShorter)
		default:
			s.reconnected = true
			hints.Signal(s.checkNow)
		}
	case zk.StateExpired:
		// The client would open a new session by itself, and send the requests of this one under
		// it. The closed link prevents that.
		s.connected = false
		s.link.closeForGood()
		s.endLocked(interlock.ErrSessionEnded)
		hints.Signal(s.back)
	case zk.StateDisconnected, zk.StateConnecting:
		s.connected, s.reconnected = false, false
		clear(s.nodes.lists)
		clear(s.nodes.successions)
		s.nodes.lockWatches = 0
	}
}
