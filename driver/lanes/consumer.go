// Package lanes is the code that drivers of partitioned queues share. It does no I/O: a driver joins
// the group, reads the log and stores positions.
//
// A [Partition] tracks which messages are completed and which may be delivered. Its caller adds
// messages in the order of the log, and stores the result of Snapshot before it acknowledges an
// outcome. A [Consumer] delivers and settles the messages of its partitions, each under an
// [Assignment]. [Commits] combines requests to store their state.
//
//	p := lanes.Restore(offset, lanes.Decode(offset, stored), interlock.CounterAt(time.Now()), 1000)
//	if m := p.Arrive(r.offset, r.key, len(r.payload)); m != nil {
//		m.ID, m.Payload, … = …
//	}
//	messages, wait := p.Take(nil, &limit, time.Now())
//	…
//	p.Complete(r.offset)
//	p.Sweep()
//	text, _ := p.Snapshot(true).Encode(4096)
package lanes

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Hooks are the functions of a driver that a Consumer calls.
type Hooks[A comparable] struct {
	Queue, Owner string
	Problem      func(op, name string, kind interlock.ErrorKind, err error) error
	// DeadLetters writes dead letters, those of a key in order. It returns an error for each; nil means
	// that it is durable.
	DeadLetters func(ctx context.Context, dead []driver.Settlement) []error
	// Commit stores the present state of assignments, and returns an error for each, nil if it is
	// stored. The error is an ErrLost if the partition is not assigned any more.
	Commit func(ctx context.Context, parts []A) map[A]error
}

// A Consumer is the part of a [driver.QueueConsumer] that needs no server. A driver embeds it.
type Consumer[A part] struct {
	Hooks[A]
	Life context.Context // ends with Close
	Loop sync.WaitGroup  // the driver's goroutines

	end     context.CancelCauseFunc
	members *Consumers[A]

	Mu        sync.Mutex
	Parts     map[int32]A // those that are assigned
	Transient error       // the last that may pass; Receive returns it if there are no messages
	problems  []error     // Receive returns each once
	fatal     error       // Receive returns it from now on
	turn      int         // of the partitions
	changed   chan struct{}
	closing   context.Context // of Close
}

// NewConsumer has no assignments yet.
func NewConsumer[A part](h Hooks[A]) *Consumer[A] {
	c := &Consumer[A]{Hooks: h, Parts: map[int32]A{}, changed: make(chan struct{})}
	c.Life, c.end = context.WithCancelCause(context.Background())
	return c
}

// Update changes what the mutex guards, and wakes the goroutines that wait for a change.
func (c *Consumer[A]) Update(change func()) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	change()
	c.wake()
}

func (c *Consumer[A]) wake() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// ReportTransient keeps an error that may pass, for Receive.
func (c *Consumer[A]) ReportTransient(err error) {
	c.Update(func() { c.Transient = c.Problem("receive", c.Queue, interlock.Retryable, err) })
}

// ReportOnce keeps an error that Receive returns in any case. The mutex is held.
func (c *Consumer[A]) ReportOnce(err error) {
	c.problems = append(c.problems, c.Problem("receive", c.Queue, interlock.Definite, err))
}

// Fail keeps an error that does not pass. Receive returns it from now on.
func (c *Consumer[A]) Fail(err error) {
	c.Update(func() { c.fatal = c.Problem("receive", c.Queue, interlock.Bug, err) })
}

// Ended reports whether the consumer is closed, or has failed.
func (c *Consumer[A]) Ended() bool {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return c.fatal != nil || c.Life.Err() != nil
}

// IsAssigned reports whether the partition is still assigned. The mutex is held.
func (c *Consumer[A]) IsAssigned(a A) bool { return c.Parts[a.base().Partition] == a }

// Assignments are those that have begun, in order. The mutex is held.
func (c *Consumer[A]) Assignments() (all []A) {
	for _, p := range slices.Sorted(maps.Keys(c.Parts)) {
		if a := c.Parts[p]; a.base().Offsets != nil {
			all = append(all, a)
		}
	}
	return all
}

// WaitForRoom waits until fewer than records can be delivered, these and the delivered ones have
// fewer than bytes, and also returns true. It calls also under the mutex. It returns false if
// ctx ends first.
func (c *Consumer[A]) WaitForRoom(ctx context.Context, records, bytes int, also func() bool) bool {
	for ctx.Err() == nil {
		c.Mu.Lock()
		ready, held := c.ahead()
		ok, changed := ready < records && held < bytes && also(), c.changed
		c.Mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	return false
}

// ahead is what was read and can be delivered, in records, and with what is delivered in bytes.
// The mutex is held.
func (c *Consumer[A]) ahead() (records, bytes int) {
	for _, a := range c.Parts {
		if o := a.base().Offsets; o != nil {
			n, size := o.Ahead()
			records, bytes = records+n, bytes+size
		}
	}
	return records, bytes
}

// Arrive notes a record of an assignment; see [Partition.Arrive]. The mutex is held.
func (c *Consumer[A]) Arrive(a A, offset int64, key []byte, size int) *driver.Received {
	m := a.base().Offsets.Arrive(offset, key, size)
	if m != nil {
		m.Queue, m.Claim = c.Queue, a
	}
	return m
}

// Receive waits for messages; see [driver.QueueConsumer].
func (c *Consumer[A]) Receive(ctx context.Context, limit driver.QueueLimit) ([]*driver.Received, error) {
	for {
		for _, over := range []context.Context{c.Life, ctx} {
			if over.Err() != nil {
				return nil, c.Problem("receive", c.Queue, interlock.Kind(context.Cause(over)), context.Cause(over))
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
		case <-c.Life.Done():
		}
		timer.Stop()
	}
}

// take delivers messages that are ready. wait is the time until others may be, and changed is closed
// when the state changes.
func (c *Consumer[A]) take(limit driver.QueueLimit) (all []*driver.Received, wait time.Duration, changed <-chan struct{}, err error) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if len(c.problems) > 0 {
		err, c.problems = c.problems[0], c.problems[1:]
		return nil, 0, nil, err
	}
	if c.fatal != nil {
		return nil, 0, nil, c.fatal
	}
	wait = time.Hour
	now := time.Now()
	parts := c.Assignments()
	waiting, _ := c.ahead()
	all = make([]*driver.Received, 0, min(limit.Messages, waiting))
	c.turn++
	for i := range parts {
		a := parts[(i+c.turn)%len(parts)]
		b := a.base()
		if !b.Ready || !b.Valid() || driver.IsRevoked(b) {
			continue
		}
		var left time.Duration
		if all, left = b.Offsets.Take(all, &limit, now); left > 0 {
			wait = min(wait, left)
		}
	}
	if len(all) > 0 {
		c.wake() // there is room to read more
	} else {
		err, c.Transient = c.Transient, nil
	}
	return all, wait, c.changed, err
}

// Consumers are those of one queue of a driver in this process; the zero value has none.
type Consumers[A part] struct {
	mu  sync.Mutex
	all []*Consumer[A]
}

// Add adds a consumer until its Close.
func (s *Consumers[A]) Add(c *Consumer[A]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.members = s
	s.all = append(s.all, c)
}

func (s *Consumers[A]) remove(c *Consumer[A]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = slices.DeleteFunc(s.all, func(other *Consumer[A]) bool { return other == c })
}

// Resume lets a parked key of a queue go on. It reports false if it is not parked here.
func (s *Consumers[A]) Resume(queue, key string) (resumed bool) {
	s.each(queue, func(c *Consumer[A], a A) {
		if a.base().Offsets.Resume(key) {
			resumed = true
			c.wake()
		}
	})
	return resumed
}

func (s *Consumers[A]) each(queue string, do func(c *Consumer[A], a A)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.all {
		if c.Queue != queue {
			continue
		}
		c.Mu.Lock()
		for _, a := range c.Assignments() {
			do(c, a)
		}
		c.Mu.Unlock()
	}
}

// A Backlog is what is left of a partition that a consumer of this process has.
type Backlog struct {
	Partition int32
	// Lag is how much of the partition there is from the first message that is not completed: on
	// Kafka in offsets, some of which may be in no record, on JetStream in messages. Some may be
	// completed.
	Lag int64
	// Age is how long ago the first message that is not completed was added; 0 if it was not
	// read yet. It compares the clock of the sender or server with that of this process.
	Age time.Duration
	// Parked are the keys that Resume lets go on.
	Parked []string

	// Prefix is the offset of the first message that is not completed.
	Prefix int64
}

// Backlogs are those of the partitions of a queue, in order, without Lag.
func (s *Consumers[A]) Backlogs(queue string) (all []Backlog) {
	s.each(queue, func(_ *Consumer[A], a A) {
		o := a.base().Offsets
		b := Backlog{Partition: a.base().Partition, Parked: o.Parked(), Prefix: o.Prefix()}
		if first := o.First(); first != nil {
			b.Age = max(0, time.Since(first.Added))
		}
		all = append(all, b)
	})
	slices.SortFunc(all, func(a, b Backlog) int { return cmp.Compare(a.Partition, b.Partition) })
	return all
}
