package nats

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// consumer is a member of the group, as a [driver.QueueConsumer]. It has one session at a time.
type consumer struct {
	queue       *Queue
	name, owner string
	base        string // its subject, without the partition
	key         string // begins the keys of the bucket
	term        time.Duration

	life context.Context // ends with Close
	end  context.CancelCauseFunc
	loop sync.WaitGroup

	mu       sync.Mutex
	session  *session      // nil before the first
	problems []error       // Receive returns each once
	trouble  error         // the last that may pass; Receive returns it if there are no messages
	turn     int           // of the partitions
	changed  chan struct{} // closed, and replaced, at each change
	closing  context.Context
}

func newConsumer(q *Queue, name string, o driver.QueueOptions) *consumer {
	c := &consumer{queue: q, name: name, owner: o.Owner, base: q.prefix + name, term: o.Lease, changed: make(chan struct{})}
	c.key = q.options.Group + "." + c.base
	c.life, c.end = context.WithCancelCause(context.Background())
	return c
}

// run begins a session when the former one has ended, until Close.
func (c *consumer) run() {
	for c.life.Err() == nil {
		s, revision, err := c.open()
		switch {
		case err == nil:
			s.run(revision)
		case c.life.Err() == nil:
			c.hinder(err)
			pause(c.life, retryPause)
		}
	}
}

// closingContext is that of Close, or one that does not end.
func (c *consumer) closingContext() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing != nil {
		return c.closing
	}
	return context.Background()
}

// note changes what the mutex guards, and wakes those who wait for that.
func (c *consumer) note(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
	close(c.changed)
	c.changed = make(chan struct{})
}

// hinder notes an error that may pass.
func (c *consumer) hinder(err error) {
	c.note(func() { c.trouble = problem("receive", c.name, interlock.Retryable, err) })
}

// problem notes an error that is to be seen.
func (c *consumer) problem(err error) {
	c.note(func() { c.problems = append(c.problems, problem("receive", c.name, interlock.Definite, err)) })
}

// Receive waits for messages; see [driver.QueueConsumer].
func (c *consumer) Receive(ctx context.Context, limit driver.QueueLimit) ([]driver.Received, error) {
	for {
		for _, over := range []context.Context{c.life, ctx} {
			if over.Err() != nil {
				return nil, problem("receive", c.name, interlock.Kind(context.Cause(over)), context.Cause(over))
			}
		}
		some, wait, changed, err := c.take(limit)
		if err != nil || len(some) > 0 {
			return some, err
		}
		timer := time.NewTimer(wait)
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
		case <-c.life.Done():
		}
		timer.Stop()
	}
}

// take delivers what is ready.
func (c *consumer) take(limit driver.QueueLimit) (all []driver.Received, wait time.Duration, changed <-chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.problems) > 0 {
		err, c.problems = c.problems[0], c.problems[1:]
		return nil, 0, nil, err
	}
	wait = time.Hour
	now := time.Now()
	parts := c.assignments()
	c.turn++
	for i := range parts {
		a := parts[(i+c.turn)%len(parts)]
		if !a.ready || !a.Valid() || closed(a.revoked) {
			continue
		}
		left := a.offsets.Take(&limit, len(all) == 0, now, func(r driver.Received, _ string, attempt int) {
			r.Attempt = attempt
			all = append(all, r)
		})
		if left > 0 {
			wait = min(wait, left)
		}
	}
	if len(all) > 0 {
		close(c.changed) // there is room to read more
		c.changed = make(chan struct{})
	} else {
		err, c.trouble = c.trouble, nil
	}
	return all, wait, c.changed, err
}

// assignments are those that are live, in order. The mutex is held.
func (c *consumer) assignments() (all []*assignment) {
	if c.session == nil {
		return nil
	}
	for _, a := range c.session.parts {
		if a.offsets != nil {
			all = append(all, a)
		}
	}
	slices.SortFunc(all, func(a, b *assignment) int { return a.partition - b.partition })
	return all
}

// Settle records outcomes; see [driver.QueueConsumer]. An outcome is recorded when the position of
// its partition was written.
func (c *consumer) Settle(ctx context.Context, settlements []driver.Settlement) []error {
	answers := make([]error, len(settlements))
	for i, s := range settlements {
		if a, ok := s.Claim.(*assignment); !ok || a.session.consumer != c {
			answers[i] = problem("settle", s.ID, interlock.Bug, errors.New("the message was not received here"))
		}
	}
	c.bury(ctx, settlements, answers)
	errs := c.commit(ctx, c.complete(settlements, answers))
	c.note(func() {
		for i, s := range settlements {
			if answers[i] != nil {
				continue
			}
			a := s.Claim.(*assignment)
			if err := errs[a]; err != nil {
				answers[i] = problem("settle", s.ID, interlock.Kind(err), err)
			} else if s.Outcome != driver.Ack && s.Outcome != driver.Dead {
				a.offsets.GiveBack(s, time.Now())
			}
		}
	})
	return answers
}

// complete notes what was handled, and returns the assignments whose positions are to be written.
func (c *consumer) complete(settlements []driver.Settlement, answers []error) (parts []*assignment) {
	c.note(func() {
		for i, s := range settlements {
			if answers[i] != nil {
				continue
			}
			a := s.Claim.(*assignment)
			if !a.live() {
				answers[i] = problem("settle", s.ID, interlock.Definite, interlock.ErrLost)
				continue
			}
			if s.Outcome == driver.Ack || s.Outcome == driver.Dead {
				a.offsets.Complete(s.Place)
			}
			if !slices.Contains(parts, a) {
				parts = append(parts, a)
			}
		}
		for _, a := range parts {
			a.offsets.Sweep()
		}
	})
	return parts
}

// commit writes positions, all at the same time.
func (c *consumer) commit(ctx context.Context, parts []*assignment) map[*assignment]error {
	errs := make([]error, len(parts))
	var writes sync.WaitGroup
	for i, a := range parts {
		writes.Go(func() { errs[i] = a.commit(ctx) })
	}
	writes.Wait()
	answers := map[*assignment]error{}
	for i, a := range parts {
		answers[a] = errs[i]
	}
	return answers
}

// resume lets a parked key go on. It reports false if it is not parked.
func (c *consumer) resume(key string) (resumed bool) {
	c.note(func() {
		for _, a := range c.assignments() {
			resumed = a.offsets.Resume(key) || resumed
		}
	})
	return resumed
}

// Close leaves the group; see [driver.QueueConsumer].
func (c *consumer) Close(ctx context.Context) error {
	c.mu.Lock()
	if c.closing == nil {
		c.closing = ctx
	}
	s := c.session
	c.mu.Unlock()
	if s != nil && ctx.Err() != nil {
		s.lose(interlock.ErrReleased)
	}
	c.end(interlock.ErrClosed)
	c.loop.Wait() // the session bounds it by ctx
	c.queue.mu.Lock()
	delete(c.queue.consumers, c)
	c.queue.mu.Unlock()
	return context.Cause(ctx)
}
