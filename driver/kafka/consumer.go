package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// consumer is a member of the group, as a [driver.QueueConsumer]. It has one session at a time.
type consumer struct {
	queue       *Queue
	name, owner string
	group       string
	lease       time.Duration

	life context.Context // ends with Close
	end  context.CancelCauseFunc
	loop sync.WaitGroup

	mu       sync.Mutex
	session  *session
	reset    map[int32]bool // partitions whose offset the log does not have
	fatal    error          // Receive returns it from now on
	problems []error        // Receive returns each once
	trouble  error          // the last that may pass; Receive returns it if there are no messages
	turn     int            // of the partitions
	changed  chan struct{}  // closed, and replaced, at each change
	closing  context.Context
}

func (q *Queue) start(name string, o driver.QueueOptions) (*consumer, error) {
	c := &consumer{queue: q, name: name, owner: o.Owner, lease: o.Lease, group: cmp.Or(q.options.Group, "interlock."+name),
		reset: map[int32]bool{}, changed: make(chan struct{})}
	c.life, c.end = context.WithCancelCause(context.Background())
	s, err := c.open()
	if err != nil {
		return nil, problem("join queue", name, interlock.Bug, err)
	}
	c.loop.Go(func() { c.run(s) })
	return c, nil
}

// run begins a session when the former one has ended, until Close.
func (c *consumer) run(s *session) {
	for {
		s.run()
		c.mu.Lock()
		over := c.fatal != nil || c.life.Err() != nil
		c.mu.Unlock()
		if over {
			return
		}
		var err error
		if s, err = c.open(); err != nil {
			c.note(func() { c.fatal = problem("receive", c.name, interlock.Bug, err) })
			return
		}
	}
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
	if c.fatal != nil {
		return nil, 0, nil, c.fatal
	}
	wait = time.Hour
	now := time.Now()
	parts := c.session.assignments()
	waiting := 0
	for _, a := range parts {
		records, _ := a.offsets.Ahead()
		waiting += records
	}
	all = make([]driver.Received, 0, min(limit.Messages, waiting))
	c.turn++
	for i := range parts {
		a := parts[(i+c.turn)%len(parts)]
		if !a.ready || !a.Valid() {
			continue
		}
		left := a.offsets.Take(&limit, len(all) == 0, now, func(r *kgo.Record, key string, attempt int) {
			all = append(all, a.received(r, key, attempt))
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

// Settle records outcomes; see [driver.QueueConsumer]. An outcome is recorded when a commit of
// the offsets of its partition has succeeded.
func (c *consumer) Settle(ctx context.Context, settlements []driver.Settlement) []error {
	answers := make([]error, len(settlements))
	for i := range settlements {
		if a, ok := settlements[i].Claim.(*assignment); !ok || a.session.consumer != c {
			answers[i] = problem("settle", settlements[i].ID, interlock.Bug, errors.New("the message was not received here"))
		}
	}
	c.bury(ctx, settlements, answers)
	parts := c.complete(settlements, answers)
	if len(parts) == 0 {
		return answers
	}
	errs := parts[0].session.commit(ctx, parts)
	c.note(func() {
		for i := range settlements {
			s := &settlements[i]
			if answers[i] != nil {
				continue
			}
			a := s.Claim.(*assignment)
			if err := errs[a]; err != nil {
				answers[i] = problem("settle", s.ID, interlock.Kind(err), err)
			} else if s.Outcome != driver.Ack && s.Outcome != driver.Dead {
				a.offsets.GiveBack(*s, time.Now())
			}
		}
	})
	parts[0].session.regulate()
	return answers
}

// bury writes dead letters. They are durable before their offsets count as completed.
func (c *consumer) bury(ctx context.Context, settlements []driver.Settlement, answers []error) {
	var records []*kgo.Record
	var of []int
	for i := range settlements {
		if s := &settlements[i]; answers[i] == nil && s.Outcome == driver.Dead && s.Claim.Valid() {
			records, of = append(records, c.letter(*s)), append(of, i)
		}
	}
	if len(records) == 0 {
		return
	}
	for n, r := range c.queue.client.ProduceSync(ctx, records...) {
		if r.Err == nil {
			continue
		}
		i := slices.Index(records, r.Record)
		if i < 0 {
			i = n
		}
		answers[of[i]] = problem("write dead letter to "+r.Record.Topic, settlements[of[i]].ID, classify(r.Err), r.Err)
	}
}

// complete notes what was handled, and returns the assignments to commit.
func (c *consumer) complete(settlements []driver.Settlement, answers []error) (parts []*assignment) {
	c.note(func() {
		for i := range settlements {
			s := &settlements[i]
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

// resume lets a parked key go on. It reports false if it is not parked.
func (c *consumer) resume(key string) (resumed bool) {
	c.note(func() {
		for _, a := range c.session.parts {
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
	c.mu.Unlock()
	c.end(interlock.ErrClosed)
	c.loop.Wait() // the session bounds it by ctx
	c.queue.mu.Lock()
	delete(c.queue.consumers, c)
	c.queue.mu.Unlock()
	return context.Cause(ctx)
}

// InstanceID is the instance of a pod of a StatefulSet: the name of the group, and the number
// at the end of the pod's name, which is its host name.
func InstanceID(group, pod string) (string, error) {
	i := len(pod)
	for i > 0 && pod[i-1] >= '0' && pod[i-1] <= '9' {
		i--
	}
	if i == len(pod) || i < 2 || pod[i-1] != '-' {
		return "", problem("make instance id", pod, interlock.Bug, fmt.Errorf("%w: a pod of a StatefulSet is called NAME-NUMBER", interlock.ErrName))
	}
	return group + pod[i-1:], nil
}

// isFatal reports whether no later attempt of this consumer can succeed.
func isFatal(err error) error {
	switch {
	case errors.Is(err, kerr.FencedInstanceID), errors.Is(err, kerr.UnreleasedInstanceID):
		return fmt.Errorf("another consumer of the group has the same InstanceID; give each its own: %w", err)
	case errors.Is(err, kerr.InvalidSessionTimeout):
		return fmt.Errorf("the brokers do not allow this Lease; see group.min.session.timeout.ms and group.max.session.timeout.ms: %w", err)
	case errors.Is(err, kerr.InconsistentGroupProtocol):
		return fmt.Errorf("the group has members of another kind, or that assign partitions in another way: %w", err)
	}
	return nil
}
