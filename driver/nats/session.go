package nats

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/driver/lanes"
)

const (
	requestLimit = 5 * time.Second // of one request
	readLimit    = 2 * time.Second // of calls that begin with a read: a stopped server does not answer, another one may
	retryPause   = 100 * time.Millisecond
)

// session is one membership of a consumer in its group. It ends with the consumer, by expulsion,
// or when its lease expires.
type session struct {
	*consumer
	id     string
	stream string
	bucket jetstream.KeyValue
	lease  *boottime.Lease
	ctx    context.Context // ends with the session
	stop   context.CancelCauseFunc
	owning sync.WaitGroup // assignments
	wake   chan struct{}  // capacity 1: an assignment has ended

	commits lanes.Commits[*assignment]
}

func (s *session) memberKey(id string) string { return s.key + ".member." + id }
func (s *session) ownerKey(p int32) string    { return fmt.Sprintf("%s.owner.%d", s.key, p) }
func (s *session) positionKey(p int32) string { return fmt.Sprintf("%s.position.%d", s.key, p) }

// open begins a session. The group sees it when open returns.
func (c *consumer) open() (s *session, revision uint64, err error) {
	ctx, cancel := context.WithTimeout(c.Life, readLimit)
	defer cancel()
	c.next = cmp.Or(c.next, rand.Text())
	s = &session{consumer: c, id: c.next, wake: make(chan struct{}, 1)}
	s.commits.Send, s.commits.Problem = s.send, failed
	stream, bucket, err := c.find(ctx)
	if err != nil {
		return nil, 0, err
	}
	s.stream, s.bucket = stream.CachedInfo().Config.Name, bucket
	revision, sent, err := s.put(ctx, 0)
	if err == nil || errors.Is(err, jetstream.ErrKeyNotFound) { // written, or written before and deleted by others
		c.next = ""
	}
	if err != nil {
		return nil, 0, err
	}
	s.lease = boottime.NewLease(sent, s.term)
	s.ctx, s.stop = context.WithCancelCause(c.Life)
	c.Update(func() { c.session = s })
	return s, revision, nil
}

// run takes part in the group until the session ends.
func (s *session) run(revision uint64) {
	var renewing sync.WaitGroup
	renewals, cancel := context.WithCancel(context.Background())
	renewing.Go(func() { revision = s.renew(renewals, revision) })
	for s.ctx.Err() == nil {
		if err := s.watchGroup(); err != nil && s.ctx.Err() == nil {
			if !isStale(err) { // an expired member has renewed its record, or another member has expelled it
				s.ReportTransient(err)
			}
			lanes.Pause(s.ctx, retryPause)
		}
	}
	s.leave()
	cancel()
	renewing.Wait()
	if s.lease.Remaining() > 0 {
		ctx, cancel := context.WithTimeout(s.closingContext(), requestLimit)
		defer cancel()
		_ = s.bucket.Delete(ctx, s.memberKey(s.id), jetstream.LastRevision(revision)) // it expires otherwise
		s.lease.End()
	}
}

// leave gives up all partitions. When the context of Close ends, it drops them at once.
func (s *session) leave() {
	unwatch := context.AfterFunc(s.closingContext(), func() { s.Lose(interlock.ErrReleased, s.owns) })
	defer unwatch()
	s.Update(func() {
		for _, a := range s.Parts {
			a.Revoke()
		}
	})
	s.owning.Wait()
	s.Lose(interlock.ErrReleased, s.owns)
	s.commits.Close()
}

// put writes the member's record at a revision, or at the later one of a write of its own whose answer was lost. sent is
// the time of the write.
func (s *session) put(ctx context.Context, revision uint64) (written uint64, sent boottime.Instant, err error) {
	key, value := s.memberKey(s.id), []byte(s.term.String())
	sent = boottime.Sent()
	if written, err = s.bucket.Update(ctx, key, value, revision); isStale(err) {
		var entry jetstream.KeyValueEntry
		if entry, err = s.bucket.Get(ctx, key); err == nil {
			sent = boottime.Sent()
			written, err = s.bucket.Update(ctx, key, value, entry.Revision())
		}
	}
	return written, sent, err
}

// renew renews the member's record, and ends the session when its lease has expired. It returns the
// last revision.
func (s *session) renew(ctx context.Context, revision uint64) uint64 {
	for next := s.term / 3; ; {
		lanes.Pause(ctx, min(next, max(0, s.lease.Remaining())))
		if ctx.Err() != nil {
			return revision
		}
		if s.lease.Remaining() <= 0 {
			s.Lose(interlock.ErrExpired, s.owns)
			s.stop(interlock.ErrExpired)
			<-ctx.Done()
			return revision
		}
		request, cancel := context.WithTimeout(ctx, min(s.term/3, s.lease.Remaining()))
		renewed, sent, err := s.put(request, revision)
		cancel()
		switch {
		case err == nil:
			revision, next = renewed, s.term/3
			s.lease.Renew(sent, s.term)
		case errors.Is(err, jetstream.ErrKeyNotFound): // another member has expelled this one
			s.Lose(interlock.ErrLost, s.owns)
			s.stop(interlock.ErrLost)
			<-ctx.Done()
			return revision
		default:
			next = min(retryPause, s.term/10)
			if ctx.Err() == nil {
				s.ReportTransient(fmt.Errorf("renew the membership: %w", err))
			}
		}
	}
}

// watchGroup watches the group, and claims its share of partitions, until the watch is interrupted.
func (s *session) watchGroup() error {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	w, err := s.bucket.WatchFiltered(ctx, []string{s.key + ".member.*", s.key + ".owner.*"})
	if err != nil {
		return fmt.Errorf("watch the group: %w", err)
	}
	defer func() {
		_ = w.Stop()
		cancel()
		for range w.Updates() {
		}
	}()
	v := newView()
	whole := false // the view has all records of the start
	for {
		wait := time.Hour
		if whole && len(w.Updates()) == 0 {
			if wait, err = s.rebalance(v); err != nil {
				return err
			}
		}
		timer := time.NewTimer(wait)
		select {
		case e, ok := <-w.Updates():
			switch {
			case !ok:
				timer.Stop()
				return errors.New("the watch of the group has ended")
			case e == nil:
				whole = true
			default:
				s.apply(v, e)
			}
		case <-timer.C:
		case <-s.wake:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return nil
		}
	}
}

// apply applies a record to the view.
func (s *session) apply(v *view, e jetstream.KeyValueEntry) {
	if id, ok := strings.CutPrefix(e.Key(), s.memberKey("")); ok {
		lease, err := time.ParseDuration(string(e.Value()))
		if delete(v.members, id); e.Operation() == jetstream.KeyValuePut && err == nil {
			v.members[id] = member{e.Revision(), lease, boottime.Now()}
		}
		return
	}
	if p, err := strconv.Atoi(strings.TrimPrefix(e.Key(), s.key+".owner.")); err == nil {
		v.owners[p] = owner{string(e.Value()), e.Revision()}
	}
}

// rebalance expels expired members, claims partitions and gives some up. It returns the time until
// the next rebalance. An error means that the view is stale.
func (s *session) rebalance(v *view) (wait time.Duration, err error) {
	if _, ok := v.members[s.id]; !ok || s.lease.Remaining() <= 0 {
		return time.Hour, nil
	}
	expired, wait := v.expired(boottime.Now())
	for _, id := range expired {
		if id == s.id {
			return s.term, nil // the watch lags: the view lacks a renewal
		}
		ctx, cancel := context.WithTimeout(s.ctx, requestLimit)
		err := s.bucket.Delete(ctx, s.memberKey(id), jetstream.LastRevision(v.members[id].revision))
		cancel()
		if err != nil {
			return 0, fmt.Errorf("expel %s: %w", id, err)
		}
		delete(v.members, id)
	}
	claim, yield := v.plan(s.id, s.queue.options.Partitions)
	s.Update(func() {
		for p, o := range v.owners {
			if o.id == s.id && s.Parts[int32(p)] == nil && s.ctx.Err() == nil {
				claim = append(claim, p) // its release has failed
			}
		}
		for _, p := range claim {
			if s.Parts[int32(p)] == nil && s.ctx.Err() == nil {
				a := s.newAssignment(p)
				s.Parts[int32(p)] = a
				revision := v.owners[p].revision
				s.owning.Go(func() { a.run(revision) })
			}
		}
		for _, p := range yield {
			if a := s.Parts[int32(p)]; a != nil {
				a.Revoke()
			}
		}
	})
	return wait, nil
}

// swap writes a record if it is at a revision. It returns false if the revision differs or is
// unknown. mine reports whether a value is the one of this call, whose answer was lost.
func (s *session) swap(ctx context.Context, key string, value []byte, revision uint64, mine func([]byte) bool) (uint64, bool) {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	for ctx.Err() == nil {
		written, err := s.bucket.Update(ctx, key, value, revision)
		switch {
		case err == nil:
			return written, true
		case isStale(err):
			entry, err := s.bucket.Get(ctx, key)
			if err != nil {
				return 0, false
			}
			return entry.Revision(), mine(entry.Value())
		}
		lanes.Pause(ctx, retryPause)
	}
	return 0, false
}

// owns reports whether the session owns an assignment.
func (s *session) owns(a *assignment) bool { return a.session == s }
