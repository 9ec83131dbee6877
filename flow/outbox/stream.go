package outbox

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/observe"
)

// maxBatchBytes bounds the payload of a batch.
const maxBatchBytes = 8 << 20

// contexts of a service: life ends when it is to end, sending and storing when what
// is under way then is not waited for any more.
type contexts struct{ life, sending, storing context.Context }

// stream publishes batch after batch until there is nothing more. While one is
// published, the one before it is settled and the next one read, in one transaction.
// A batch is planned with the outcome of the one before it, which its read could not
// see.
func (s *service) stream(ctx contexts, b batch) error {
	var last settlement
	life := ctx.life
	sending, cancel := context.WithCancel(ctx.sending)
	defer cancel()
	for {
		publishing := s.publish(sending, b)
		seen, err := s.beside(ctx, last, b)
		if err != nil {
			cancel()
		}
		answers := <-publishing
		if err != nil {
			return err
		}
		if first, gone := away(b, answers); gone && s.away < blips {
			return s.blip(life, first)
		}
		last = s.verdict(b, answers)
		b = s.plan(seen, last.held())
		if life.Err() != nil {
			b = batch{} // somebody else sends it
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

// beside is what is done while b is published: the batch before it is settled, and
// the next one read.
func (s *service) beside(ctx contexts, last settlement, b batch) (picture, error) {
	switch {
	case !last.empty():
		return s.settle(ctx.storing, last, s.limitOf(ctx.life), b.underway())
	case b.full && ctx.life.Err() == nil:
		return s.peek(ctx.life, b.underway())
	}
	return picture{}, nil
}

// limitOf is how many rows to read beside a settlement: none at the end.
func (s *service) limitOf(life context.Context) int {
	if life.Err() != nil {
		return 0
	}
	return s.limit
}

// publish hands the messages of b to the sink, and gives its answers.
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
		a := s.sink.Publish(ctx, messages)
		if ctx.Err() != nil {
			interrupted(a)
		}
		s.published(b, a, s.options.now().Sub(start))
		answers <- a
	}()
	return answers
}

// interrupted makes failures of a call whose context has ended unknown outcomes:
// what they say of the message may be what they say of the context.
func interrupted(answers []error) {
	for i, err := range answers {
		if err != nil {
			answers[i] = &interlock.Error{Op: "publish", Kind: interlock.Uncertain, Err: err}
		}
	}
}

func (s *service) published(b batch, answers []error, took time.Duration) {
	f := s.options.Hooks.Published
	if f == nil {
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
	f(e)
}

// verdict judges a batch and tells of its failures.
func (s *service) verdict(b batch, answers []error) settlement {
	if len(b.send) > 0 {
		s.away = 0
	}
	d, failures := s.judge.judge(b, answers)
	for _, e := range failures {
		e.Slice = s.slice
		if f := s.options.Hooks.Failed; f != nil {
			f(e)
		}
	}
	for _, c := range d.changes {
		now := s.options.now()
		if at := now.Add(c.pause); !s.next.After(now) || at.Before(s.next) {
			s.next = at
		}
	}
	return d
}

// settle stores the outcome of a batch and reads on, in one transaction that has
// entered the slice. It is repeated until it is known to be done.
func (s *service) settle(storing context.Context, d settlement, limit int, underway []row) (seen picture, err error) {
	err = s.persist(storing, "settle", func() error {
		return fence.Tx(storing, s.db, s.table.fence(), lastingClaim{s.claim, storing}, s.table.resource(s.slice), func(ctx context.Context, tx driver.SQL) error {
			st, err := s.open("settle batch", tx)
			if err != nil {
				return err
			}
			if err := st.unchanged(ctx, s.known, `{share}`); err != nil {
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
