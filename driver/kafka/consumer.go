package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/lanes"
)

// consumer is a member of the group, as a [driver.QueueConsumer]. It has one session at a time.
type consumer struct {
	*lanes.Consumer[*assignment]
	queue   *Queue
	group   string
	lease   time.Duration
	session *session       // the mutex guards it
	reset   map[int32]bool // partitions whose offset the log does not have; the mutex guards it
	guessed map[int32]bool // partitions that began at 0, wherever their log begins; the mutex guards it
}

// assignment is a consumer's claim on a partition. The consumer's mutex guards the fields after
// session.
type assignment struct {
	lanes.Assignment
	session *session
	read    []*kgo.Record    // that have not arrived yet
	full    bool             // its fetches are paused, and nothing arrives
	cut     bool             // the metadata of the last commit had no room for all
	loss    *kgo.ErrDataLoss // of records that were read; the session ends then
	epoch   int32            // highest of the leaders that wrote what was read; below 0 if unknown
	known   int64            // offset below which former assignments have read
	texts   strings.Builder
}

func (q *Queue) start(name string, o driver.QueueOptions) (*consumer, error) {
	c := &consumer{queue: q, lease: o.Lease, group: cmp.Or(q.options.Group, "interlock."+name), reset: map[int32]bool{}, guessed: map[int32]bool{}}
	c.Consumer = lanes.NewConsumer(lanes.Hooks[*assignment]{Queue: name, Owner: o.Owner, Problem: problem,
		DeadLetters: c.writeDeadLetters,
		Commit: func(ctx context.Context, parts []*assignment) map[*assignment]error {
			return parts[0].session.commits.Commit(ctx, parts)
		}})
	s, err := c.open()
	if err != nil {
		return nil, problem("join queue", name, interlock.Bug, err)
	}
	c.Loop.Go(func() { c.run(s) })
	return c, nil
}

// run starts a session whenever the last one has ended, until Close.
func (c *consumer) run(s *session) {
	for {
		s.run()
		if c.Ended() {
			return
		}
		var err error
		if s, err = c.open(); err != nil {
			c.Fail(err)
			return
		}
	}
}

// Settle records outcomes; see [driver.QueueConsumer].
func (c *consumer) Settle(ctx context.Context, settlements []driver.Settlement) []error {
	answers := c.Consumer.Settle(ctx, settlements)
	c.Mu.Lock()
	s := c.session
	c.Mu.Unlock()
	s.regulate()
	return answers
}

// writeDeadLetters writes dead letters; see [lanes.Hooks]. Those that are sent together fit in a batch of
// [DefaultMaxBytes], and a larger one is sent alone: the limit of its topic counts for batches.
func (c *consumer) writeDeadLetters(ctx context.Context, dead []driver.Settlement) []error {
	answers := make([]error, len(dead))
	var records []*kgo.Record
	first, bytes := 0, 0 // of records
	for i, s := range dead {
		r := c.deadLetter(s)
		size := sizeOf(r)
		if bytes += size; bytes > DefaultMaxBytes {
			c.produce(ctx, records, dead[first:], answers[first:])
			records, first, bytes = nil, i, size
		}
		records = append(records, r)
	}
	c.produce(ctx, records, dead[first:], answers[first:])
	return answers
}

// produce writes the records of the first dead letters, and sets their answers.
func (c *consumer) produce(ctx context.Context, records []*kgo.Record, dead []driver.Settlement, answers []error) {
	for n, r := range c.queue.client.ProduceSync(ctx, records...) {
		if r.Err == nil {
			continue
		}
		i := slices.Index(records, r.Record)
		if i < 0 {
			i = n
		}
		answers[i] = problem("write dead letter to "+r.Record.Topic, dead[i].ID, classify(r.Err), r.Err)
	}
}

// InstanceID returns the instance id of a pod of a StatefulSet: the group, and the number at the end
// of the pod's name, which is its host name.
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

// isFatal returns err with advice if no later attempt of this consumer can succeed, else nil.
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
