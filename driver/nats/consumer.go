package nats

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/lanes"
)

// consumer is a member of the group, as a [driver.QueueConsumer]. It has one session at a time.
type consumer struct {
	*lanes.Consumer[*assignment]
	queue   *Queue
	base    string // its subject, without the partition
	key     string // begins the keys of the bucket
	term    time.Duration
	session *session // nil before the first; the mutex guards it
	next    string   // id of the next session, whose record may be written already; empty means a new one
}

func newConsumer(q *Queue, name string, o driver.QueueOptions) *consumer {
	c := &consumer{queue: q, base: q.prefix + name, term: o.Lease}
	c.key = q.options.Group + "." + c.base
	c.Consumer = lanes.NewConsumer(lanes.Hooks[*assignment]{Queue: name, Owner: o.Owner, Problem: problem, DeadLetters: c.writeDeadLetters,
		Commit: func(ctx context.Context, parts []*assignment) map[*assignment]error {
			return parts[0].session.commits.Commit(ctx, parts)
		}})
	return c
}

// run starts a session each time the last one has ended, until Close.
func (c *consumer) run() {
	for !c.Ended() {
		s, revision, err := c.open()
		switch {
		case err == nil:
			s.run(revision)
		case !c.Ended():
			c.ReportTransient(err)
			lanes.Pause(c.Life, retryPause)
		}
	}
}

// closingContext returns the context of Close; before Close, one that does not end.
func (c *consumer) closingContext() context.Context {
	if closing := c.Closing(); closing != nil {
		return closing
	}
	return context.Background()
}

// problem stores an error, which Receive returns once.
func (c *consumer) problem(err error) { c.Update(func() { c.ReportOnce(err) }) }
