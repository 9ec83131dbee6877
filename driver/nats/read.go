package nats

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/lanes"
)

const (
	perPull  = 200              // most messages of one request
	maxReady = 1000             // messages waiting for Receive at which reading pauses
	stall    = 30 * time.Second // time without room after which the server's consumer is deleted; a new one continues
	idle     = 30 * time.Second // time without a message after which the position moves to the end of the stream
)

// read reads messages until the partition is given up or lost.
func (a *assignment) read() {
	s := a.session
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	a.session.owning.Go(func() {
		select {
		case <-a.Revoked():
			cancel()
		case <-ctx.Done():
		}
	})
	for ctx.Err() == nil {
		if !a.room(ctx, time.Hour) {
			continue
		}
		err := a.consume(ctx)
		again := errors.Is(err, errGap) || errors.Is(err, errElsewhere) || errors.Is(err, jetstream.ErrNoHeartbeat)
		if err != nil && !again && ctx.Err() == nil {
			s.ReportTransient(fmt.Errorf("read %s: %w", a.subject, err))
			lanes.Pause(ctx, retryPause)
		}
	}
}

// errGap means that the server sent messages that did not arrive.
var errGap = errors.New("messages were lost in transit; reading them again")

// errElsewhere means that the server's consumer is not on the leader of the stream.
var errElsewhere = errors.New("reading from another replica")

// errReplaced means that the stream was deleted and created again.
var errReplaced = errors.New("the stream was created again; the next assignment begins with its first message")

// consume reads messages from the first unread one, by a server-side consumer without state. It does
// not use acknowledgements: the server accepts them after the partition has moved, and redelivers an
// unacknowledged message after later ones.
func (a *assignment) consume(ctx context.Context) error {
	s := a.session
	s.Mu.Lock()
	from, created := a.Offsets.Unread(), a.created
	s.Mu.Unlock()
	request, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	stream, err := s.queue.js.Stream(request, s.stream)
	if err != nil {
		return err
	}
	if stream.CachedInfo().Created.UnixNano() != created {
		a.Revoke()
		return errReplaced
	}
	c, err := s.queue.js.CreateConsumer(request, s.stream, jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy, FilterSubject: a.subject,
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: uint64(max(1, from)),
		InactiveThreshold: time.Minute, MemoryStorage: true, Replicas: 1})
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = s.queue.js.DeleteConsumer(ctx, s.stream, c.CachedInfo().Name) // otherwise it expires
	}()
	if c.CachedInfo().NumPending == 0 {
		if err := a.skipToEnd(ctx, c, 0); err != nil && !errors.Is(err, errElsewhere) {
			return err
		}
	}
	for read := uint64(0); a.room(ctx, stall); {
		n, err := a.pull(ctx, c, read)
		if n == 0 && err == nil {
			err = a.skipToEnd(ctx, c, read)
		}
		if err != nil {
			return err
		}
		read += n
	}
	return nil
}

// pull adds the messages of one request to the offsets. It returns errGap if their numbers have
// a gap.
func (a *assignment) pull(ctx context.Context, c jetstream.Consumer, read uint64) (n uint64, err error) {
	s := a.session
	ctx, cancel := context.WithTimeout(ctx, idle)
	defer cancel()
	some, err := c.Fetch(perPull, jetstream.FetchContext(ctx), jetstream.FetchHeartbeat(time.Second),
		jetstream.FetchMaxBytes(max(s.queue.options.Bytes, int(2*s.queue.client.MaxPayload()))))
	if err != nil {
		return 0, err
	}
	var arrived []driver.Received
	for m := range some.Messages() {
		meta, err := m.Metadata()
		if err != nil {
			return n, err
		}
		if n++; meta.Sequence.Consumer != read+n {
			return n, errGap
		}
		if arrived = append(arrived, a.received(m, meta)); len(some.Messages()) > 0 {
			continue // add the messages that have arrived together
		}
		s.Update(func() {
			if s.IsAssigned(a) {
				for _, r := range arrived {
					if m := s.Arrive(a, r.Place, []byte(r.Key), len(r.Payload)); m != nil {
						m.ID, m.Headers, m.Payload, m.Added = r.ID, r.Headers, r.Payload, r.Added
					}
				}
				s.Transient = nil
			}
		})
		arrived = arrived[:0]
	}
	if err := some.Error(); !errors.Is(err, context.DeadlineExceeded) {
		return n, err
	}
	return n, nil
}

// skipToEnd moves the position to the end of the stream if nothing is left to read. Otherwise it would
// stay below messages of other partitions. Once those are deleted, takeOver could not exclude that
// messages of this partition were among them.
//
// It returns errElsewhere if the server's consumer is on another replica than the leader, which knows
// the end. That replica may lag: it has nothing left to read although the leader has.
func (a *assignment) skipToEnd(ctx context.Context, c jetstream.Consumer, read uint64) error {
	s := a.session
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	stream, err := s.queue.js.Stream(ctx, s.stream)
	if err != nil {
		return err
	}
	end := int64(stream.CachedInfo().State.LastSeq) + 1
	s.Mu.Lock()
	behind := a.Offsets.Unread() < end
	s.Mu.Unlock()
	info, err := c.Info(ctx)
	switch {
	case err != nil || !behind || info.NumPending > 0 || info.Delivered.Consumer != read:
		return err
	case !onLeader(stream.CachedInfo(), info):
		return errElsewhere
	}
	a.advance(end)
	return nil
}

// advance records that no unread message below a sequence number is of the partition.
func (a *assignment) advance(to int64) {
	s := a.session
	moved := false
	s.Update(func() {
		before := a.Offsets.Prefix()
		a.Offsets.Begin(to)
		moved = a.Offsets.Prefix() != before
	})
	if moved {
		ctx, cancel := context.WithTimeout(s.ctx, requestLimit)
		defer cancel()
		_ = s.commits.Commit(ctx, []*assignment{a}) // the next commit includes it
	}
}

// room blocks until there is room for more messages. It returns false if ctx ends or patience
// passes first.
func (a *assignment) room(ctx context.Context, patience time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	o := a.session.queue.options
	return a.session.WaitForRoom(ctx, maxReady, o.Bytes, func() bool { return !a.Offsets.Full(o.Window, o.Bytes, true) })
}
