package outbox

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/internal/report"
	"github.com/interlock-dev/interlock/observe"
)

const maxBatchBytes = 8 << 20 // of payload in a batch

// contexts of a service: life ends when the service is to end; sending and storing end when it stops
// waiting for running calls.
type contexts struct{ life, sending, storing context.Context }

// stream publishes batches until there are no more messages. While a batch is published, one
// transaction settles the batch before it and reads the next one. The plan of a batch uses the
// outcome of the batch before it, which its read could not see.
func (s *service) stream(ctx contexts, b batch) error {
	var last settlement
	life := ctx.life
	sending, cancel := context.WithCancel(ctx.sending)
	defer cancel()
	for {
		s.expedite(life)
		publishing := s.publish(sending, b)
		seen, err := s.beside(ctx, last, b)
		if err != nil {
			cancel()
		}
		answers := <-publishing
		if err != nil {
			return err
		}
		if err := unavailable(b, answers); err != nil && s.outages < maxOutages {
			return s.waitForSink(life, err)
		}
		last = s.verdict(b, answers)
		b = s.plan(seen, last.held())
		if life.Err() != nil {
			b = batch{} // the next owner sends it
		}
		if b.empty() {
			if seen, err = s.settle(ctx.storing, last, s.limitOf(life), nil); err != nil {
				return err
			}
			last = settlement{}
			if b = s.plan(seen, nil); b.empty() || life.Err() != nil {
				return nil
			}
		}
	}
}

// beside runs while b is published: it settles the batch before it and reads the next one.
func (s *service) beside(ctx contexts, last settlement, b batch) (picture, error) {
	switch {
	case !last.empty():
		return s.settle(ctx.storing, last, s.limitOf(ctx.life), b.underway())
	case b.full && ctx.life.Err() == nil:
		return s.peek(ctx.life, b.underway())
	}
	return picture{}, nil
}

// limitOf returns the limit of the read beside a settlement: 0 at the end.
func (s *service) limitOf(life context.Context) int {
	if life.Err() != nil {
		return 0
	}
	return s.limit
}

// publish passes the messages of b to the sink, and returns its answers. A panic is the error of each.
func (s *service) publish(sending context.Context, b batch) <-chan []error {
	answers := make(chan []error, 1)
	if len(b.send) == 0 {
		answers <- nil
		return answers
	}
	messages := make([]Message, len(b.send))
	for i, r := range b.send {
		messages[i] = r.Message
	}
	go func() {
		ctx, cancel := context.WithTimeout(sending, s.options.Publish)
		defer cancel()
		start := s.options.now()
		a := []error(nil) // none, if the sink ends the goroutine
		defer func() {
			if v := recover(); v != nil {
				err := &interlock.Error{Op: "publish", Kind: interlock.Uncertain, Err: fmt.Errorf("panic: %v\n%s", v, debug.Stack())}
				a = slices.Repeat([]error{err}, len(messages))
			}
			interrupted(ctx, a)
			s.published(b, a, s.options.now().Sub(start))
			answers <- a
		}()
		a = s.sink.Publish(ctx, messages)
	}()
	return answers
}

// interrupted makes failures Uncertain whose cause is the end of the call's context. Others may be
// rejections that the sink received before.
func interrupted(ctx context.Context, answers []error) {
	for i, err := range answers {
		if cause := context.Cause(ctx); cause != nil && errors.Is(err, cause) {
			answers[i] = &interlock.Error{Op: "publish", Kind: interlock.Uncertain, Err: err}
		}
	}
}

func (s *service) published(b batch, answers []error, took time.Duration) {
	if s.options.Hooks.Published == nil {
		return
	}
	e := observe.OutboxPublished{Slice: s.slice, Took: took, Oldest: b.send[0].age}
	for i, r := range b.send {
		e.Oldest = max(e.Oldest, r.age)
		if answerTo(answers, i) == nil {
			e.Sent++
		} else {
			e.Failed++
		}
	}
	report.Add(&s.reports, nil, s.options.Hooks.Published, e)
}

// verdict judges a batch and reports its failures.
func (s *service) verdict(b batch, answers []error) settlement {
	if len(b.send) > 0 {
		s.outages = 0
	}
	d, failures := s.judge.judge(b, answers)
	for _, e := range failures {
		e.Slice = s.slice
		report.Add(&s.reports, nil, s.options.Hooks.Failed, e)
	}
	for _, c := range d.changes {
		now := s.options.now()
		if at := now.Add(c.pause); !s.next.After(now) || at.Before(s.next) {
			s.next = at
		}
	}
	return d
}

// settle stores the outcome of a batch and reads the next rows, in one transaction that has entered the
// slice. It is retried until it is known to be committed.
func (s *service) settle(storing context.Context, d settlement, limit int, underway []row) (seen picture, err error) {
	err = s.persist(storing, "settle", func() error {
		return fence.Tx(storing, s.db, s.table.fence(), lastingClaim{s.claim, storing}, s.table.resource(s.slice), func(ctx context.Context, tx driver.SQL) error {
			st, err := s.table.open("settle batch", tx)
			if err != nil {
				return err
			}
			if err := st.unchanged(ctx, s.known); err != nil {
				return err
			}
			if err := st.settle(ctx, s.slice, d); err != nil || limit == 0 {
				seen = picture{}
				return err
			}
			seen, err = st.read(ctx, s.slice, limit, underway)
			return err
		})
	})
	return seen, err
}
