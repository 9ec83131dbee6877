package consul

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/backoff"
)

// session is one session of Consul and the state under it. When it ends, none of it is used
// again.
//
// Its fence is a key that it holds. Every transaction that takes a lock requires the fence's
// index. Release raises it, so that a delayed transaction can no longer take effect. Consul
// deletes the fence with the session.
type session struct {
	d      *Driver
	id     string
	term   *boottime.Lease
	ctx    context.Context // ends with the session; its cause is the reason
	cancel context.CancelCauseFunc

	// The driver's mutex guards the rest.
	gone  bool // Consul reported that it does not exist, nor its keys
	fence uint64
	bumps int
	base  base
	seen  uint64 // the highest index
}

// newSession runs in a task of the driver.
func (d *Driver) newSession() (*session, error) {
	ctx, cancel := d.bounded(d.ctx)
	defer cancel()
	sent := boottime.Now()
	id, err := d.client.createSession(ctx, d.options.TTL, d.options.LockDelay)
	if err != nil {
		return nil, unread(ctx, opOpen, "", err)
	}
	s := &session{d: d, id: id, term: boottime.NewLease(sent, d.options.TTL)}
	s.ctx, s.cancel = context.WithCancelCause(d.ctx)
	if err := s.begin(); err != nil {
		s.cancel(err)
		s.destroy()
		return nil, err
	}
	d.tasks.Go(s.keep)
	return s, nil
}

// begin takes the fence and raises the base, in one transaction.
func (s *session) begin() error {
	for range attempts {
		from, ops, err := s.initial(s.ctx)
		if err != nil {
			return err
		}
		fence := op{Verb: "lock", Key: s.d.layout.fence(s.id), Session: s.id, Value: []byte("0"), Flags: lockFlag}
		ctx, cancel := s.d.bounded(s.ctx)
		entries, err := s.d.client.txn(ctx, append([]op{fence}, ops...)...)
		cancel()
		var lost *refusal
		switch {
		case err == nil:
			s.fence = find(entries, fence.Key).ModifyIndex
			s.base, s.seen = base{from.value, find(entries, s.d.layout.base()).ModifyIndex}, s.fence
			return nil
		case !errors.As(err, &lost) || lost.why[0] != "":
			return unread(ctx, opOpen, "", err)
		}
	}
	return fail.New(opOpen, "", interlock.Retryable, errOthers)
}

// find returns a key as the last operation on it left it.
func find(entries []entry, key string) entry {
	for _, e := range slices.Backward(entries) {
		if e.Key == key {
			return e
		}
	}
	return entry{}
}

// bump raises the fence's index, so that no earlier transaction can take a lock afterwards.
// A session that is gone needs none.
func (s *session) bump(ctx context.Context) error {
	s.d.mu.Lock()
	s.bumps++
	value := strconv.Itoa(s.bumps)
	s.d.mu.Unlock()
	rctx, cancel := s.d.bounded(ctx)
	defer cancel()
	entries, err := s.d.client.txn(rctx, op{Verb: "lock", Key: s.d.layout.fence(s.id), Session: s.id, Value: []byte(value), Flags: lockFlag})
	var ended *refusal
	if errors.As(err, &ended) {
		return nil
	}
	if err == nil {
		s.d.mu.Lock()
		defer s.d.mu.Unlock()
		s.fence = max(s.fence, entries[0].ModifyIndex)
	}
	return err
}

// confirm reads the fence after it was found changed: by a bump, or because the session is
// gone.
func (s *session) confirm(ctx context.Context) error {
	rctx, cancel := s.d.bounded(ctx)
	defer cancel()
	e, _, err := s.d.client.get(rctx, s.d.layout.fence(s.id))
	if err != nil {
		return err
	}
	if e.Session != s.id {
		s.end(interlock.ErrSessionEnded)
		return interlock.ErrSessionEnded
	}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	s.fence = max(s.fence, e.ModifyIndex)
	return nil
}

// keep renews the session until it ends.
func (s *session) keep() {
	next := time.NewTimer(s.d.pace.renew)
	defer next.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-next.C:
			next.Reset(s.renew())
		}
	}
}

// renew renews once and checks that the locks are still held. It returns how long to wait
// for the next time.
func (s *session) renew() time.Duration {
	left := s.term.Remaining()
	if left <= 0 {
		s.end(errTimeRanOut)
		return s.d.pace.renew
	}
	ctx, cancel := context.WithTimeoutCause(s.ctx, min(s.d.pace.request, left), errSlow)
	defer cancel()
	sent := boottime.Now()
	err := s.d.client.renewSession(ctx, s.id)
	took := boottime.Now().Sub(sent)
	switch {
	case s.ctx.Err() != nil:
		return s.d.pace.renew
	case err == nil && !s.term.Renew(sent, s.d.options.TTL):
		s.end(errTimeRanOut)
		return s.d.pace.renew
	case err != nil:
		err = unread(ctx, "renew", "", err)
	}
	s.renewed(took, err)
	var status *StatusError
	switch {
	case err == nil:
		err = s.checkHeld()
		s.dropLeft()
	case errors.As(err, &status) && status.Code == http.StatusNotFound:
		_ = s.confirm(s.ctx) // a new leader may not know it yet
	}
	if err != nil {
		return min(s.d.pace.retry, max(0, s.term.Remaining()))
	}
	return max(0, s.d.pace.renew-boottime.Now().Sub(sent))
}

// renewed reports a renewal to every holder.
func (s *session) renewed(took time.Duration, err error) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	for _, c := range s.holders() {
		if c.events.Renewed != nil {
			c.events.Renewed(took, err)
		}
	}
}

// holders returns the contenders that hold. The caller holds the driver's mutex.
func (s *session) holders() []*contender {
	var all []*contender
	for _, c := range s.d.contenders {
		if c.session == s && c.stage == holding {
			all = append(all, c)
		}
	}
	return all
}

// latestHolders returns the holders whose keys may be theirs. If another owner of the session has taken
// a key that an operator had deleted, Consul still shows the session: the former holder has lost it. The
// caller holds the driver's mutex.
func (s *session) latestHolders() []*contender {
	latest := map[string]*contender{}
	for _, c := range s.holders() {
		if other := latest[c.key]; other == nil || other.index < c.index {
			latest[c.key], c = c, other
		}
		if c != nil {
			c.reportLost(interlock.ErrLost)
		}
	}
	return slices.Collect(maps.Values(latest))
}

// batch is how many keys one transaction checks; Consul allows 128 operations, older versions 64.
const batch = 60

// checkHeld checks that the session still holds its fence and its locks, and reports lost
// ones. It costs one request for sixty locks, and none without holders.
func (s *session) checkHeld() error {
	s.d.mu.Lock()
	held := s.latestHolders()
	s.d.mu.Unlock()
	for len(held) > 0 {
		some := held[:min(batch, len(held))]
		held = held[len(some):]
		ops := []op{{Verb: "check-session", Key: s.d.layout.fence(s.id), Session: s.id}}
		for _, c := range some {
			ops = append(ops, op{Verb: "check-session", Key: c.key, Session: s.id})
		}
		ctx, cancel := s.d.bounded(s.ctx)
		_, err := s.d.client.txn(ctx, ops...)
		cancel()
		var lost *refusal
		switch {
		case err == nil:
			continue
		case !errors.As(err, &lost):
			return err
		case lost.why[0] != "":
			s.end(interlock.ErrSessionEnded)
			return nil
		}
		s.d.mu.Lock()
		for i, c := range some {
			if lost.why[i+1] != "" && c.stage == holding {
				c.reportLost(interlock.ErrLost)
			}
		}
		s.d.mu.Unlock()
	}
	return nil
}

// dropLeft repeats releases that were not confirmed, and that no call of Release repeats.
func (s *session) dropLeft() {
	var left []*contender
	s.d.mu.Lock()
	for _, c := range s.d.contenders {
		if c.stage == leaving && c.releasing == 0 {
			left = append(left, c)
		}
	}
	s.d.mu.Unlock()
	ctx, cancel := s.d.bounded(s.ctx)
	defer cancel()
	for _, c := range left {
		_ = s.d.leave(ctx, c) // a failure is repeated with the next renewal
	}
}

// end ends the session and every claim with it, and wakes every waiter. An expiry is not
// reported to holders, which check Remaining. Consul keeps a session that ran out here for up to
// another TTL, and for two after it has elected a leader, so the driver destroys it.
func (s *session) end(cause error) {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if s.ctx.Err() != nil {
		return
	}
	s.gone = cause == interlock.ErrSessionEnded
	s.term.End()
	for _, c := range s.holders() {
		if s.gone {
			c.reportLost(cause)
		}
	}
	if s.d.session == s {
		s.d.session = nil
	}
	s.cancel(interlock.ErrSessionEnded)
	if !s.gone {
		s.d.tasks.Go(s.discard) // Close does not wait yet: it ends s.ctx first
	}
}

// discard destroys a session that has ended here, as soon as Consul answers. Its keys end with it.
func (s *session) discard() {
	for {
		ctx, cancel := s.d.bounded(s.d.ctx)
		err := s.d.client.destroySession(ctx, s.id)
		cancel()
		if err == nil {
			s.d.mu.Lock()
			s.gone = true
			s.d.mu.Unlock()
			return
		}
		if kindOf(err) == interlock.Definite || !backoff.Sleep(s.d.ctx, s.d.pace.retry) {
			return // it expires
		}
	}
}

// destroy ends the session in Consul, if that is quick.
func (s *session) destroy() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = s.d.client.destroySession(ctx, s.id) // else it expires
}
