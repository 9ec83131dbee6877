package lanes

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

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
