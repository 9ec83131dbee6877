package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/join"
	"github.com/interlock-dev/interlock/observe"
)

// maxBatchBytes bounds the payload of a batch.
const maxBatchBytes = 8 << 20

// blips is how often in a row a sink that seems to be away is waited for before
// messages are made to wait one by one.
const blips = 3

// closing is how long the last settlement may take after the sink was waited for.
const closing = 5 * time.Second

// contexts of a service: life ends when it is to end, sending and storing when what
// is under way then is not waited for any more.
type contexts struct{ life, sending, storing context.Context }

// service is one slice that is served. Its methods are called by one goroutine; only
// publish runs beside it.
type service struct {
	*Relay
	claim interlock.Claim
	slice int
	judge judgement
	awake chan struct{}

	limit int       // of rows to read, so that payloads fit
	idle  int       // how often nothing was found since there was something
	away  int       // how often the sink was away since it was not
	next  time.Time // when a lane is due that this service made wait; zero if none is known
}

func newService(r *Relay, c interlock.Claim, slice int) *service {
	return &service{Relay: r, claim: c, slice: slice, judge: r.options.judgement(), awake: make(chan struct{}, 1), limit: r.options.Batch}
}

func (s *service) wake() {
	select {
	case s.awake <- struct{}{}:
	default:
	}
}

// run serves the slice until ctx or the claim ends, or something fails for good.
func (s *service) run(ctx context.Context) error {
	life, leave := join.Context(ctx, s.claim.Context())
	defer leave()
	storing, done := lasting(life, s.claim, s.options.Drain+closing)
	defer done()
	sending, done := lasting(life, s.claim, s.options.Drain)
	defer done()
	if err := s.admit(life, storing); err != nil {
		return s.ended(life, err)
	}
	for {
		seen, err := s.peek(life, nil)
		if err != nil {
			return s.ended(life, err)
		}
		b := s.plan(seen, nil)
		if b.empty() {
			if !s.pause(life, s.lull()) {
				return s.ended(life, nil)
			}
			continue
		}
		s.idle = 0
		if err := s.stream(contexts{life, sending, storing}, b); err != nil || life.Err() != nil {
			return s.ended(life, err)
		}
	}
}

// ended is why the service ends: the end of its context or claim explains an error.
func (s *service) ended(life context.Context, err error) error {
	switch {
	case errors.Is(err, interlock.ErrStaleToken), err != nil && life.Err() == nil && s.claim.Valid():
		return err
	case life.Err() != nil:
		return context.Cause(life)
	}
	return errors.Join(interlock.ErrExpired, err)
}

// admit checks that the slice is one of the table, and enters it before anything is
// read: what a former owner has not settled by then it never will.
func (s *service) admit(life, storing context.Context) error {
	n := 0
	err := s.persist(life, "read layout", func() (err error) {
		n, err = s.Slices(life)
		return err
	})
	if err == nil && s.slice >= n {
		err = &LayoutError{Table: s.table.name(), Stored: n, Want: s.slice + 1}
	}
	if err == nil {
		_, err = s.settle(storing, settlement{}, 0, nil)
	}
	return err
}

// peek reads without having entered: what is read so can only be sent twice.
func (s *service) peek(life context.Context, underway []row) (seen picture, err error) {
	err = s.persist(life, "read", func() error {
		if !s.claim.Valid() {
			return interlock.ErrExpired
		}
		return s.look(life, func(st store) (err error) {
			seen, err = st.read(life, s.slice, s.limit, underway)
			return err
		})
	})
	return seen, err
}

func (s *service) plan(seen picture, held map[int64]bool) batch {
	b := plan(seen, held, maxBatchBytes)
	switch {
	case b.full: // the rest did not fit
		s.limit = max(1, len(b.send))
	case len(seen.rows) >= s.limit:
		b.full = true
		s.limit = min(2*s.limit, s.options.Batch)
	}
	return b
}

// stream publishes batch after batch until there is nothing more. While one is
// published, the one before it is settled and the next one read, in one transaction.
// A batch is planned with what became of the one before it, which its read could not
// see.
func (s *service) stream(ctx contexts, b batch) error {
	var last settlement
	life := ctx.life
	sending, cancel := context.WithCancel(ctx.sending)
	defer cancel()
	for {
		publishing := s.publish(sending, b)
		var seen picture
		var err error
		switch {
		case !last.empty():
			seen, err = s.settle(ctx.storing, last, s.limitOf(life), b.underway())
		case b.full && life.Err() == nil:
			seen, err = s.peek(life, b.underway())
		}
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
	messages := make([]driver.Message, len(b.send))
	for i, r := range b.send {
		messages[i] = r.Message
	}
	go func() {
		ctx, cancel := context.WithTimeout(sending, s.options.Publish)
		defer cancel()
		start := time.Now()
		a := s.sink.Publish(ctx, messages)
		if ctx.Err() != nil {
			interrupted(a)
		}
		s.published(b, a, time.Since(start))
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
		if at := time.Now().Add(c.pause); s.next.IsZero() || at.Before(s.next) {
			s.next = at
		}
	}
	return d
}

// settle stores what became of a batch and reads on, in one transaction that has
// entered the slice. It is repeated until it is known to be done.
func (s *service) settle(storing context.Context, d settlement, limit int, underway []row) (seen picture, err error) {
	err = s.persist(storing, "settle", func() error {
		return fence.Tx(storing, s.db, s.table.fence(), lastingClaim{s.claim, storing}, s.table.resource(s.slice), func(ctx context.Context, tx driver.SQL) error {
			st, err := s.table.open("settle batch", tx)
			if err != nil {
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

// persist repeats what failed and may be repeated, as long as the claim is valid.
func (s *service) persist(ctx context.Context, op string, do func() error) error {
	pause := backoff.Policy{First: 20 * time.Millisecond, Max: 5 * time.Second}
	for failed := 1; ; failed++ {
		err := do()
		kind := interlock.Kind(err)
		if err == nil || kind == interlock.Definite || kind == interlock.Bug || ctx.Err() != nil || !s.claim.Valid() {
			return err
		}
		if f := s.options.Hooks.Trouble; f != nil {
			f(observe.OutboxTrouble{Slice: s.slice, Op: op, Err: err})
		}
		if !s.sleep(ctx, pause.Delay(failed, s.options.random())) {
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// blip waits for a sink that seems to be away.
func (s *service) blip(life context.Context, first error) error {
	s.away++
	d := max(s.judge.retry.Delay(s.away, s.options.random()), min(wished(first), s.judge.retry.Max))
	d = min(d, time.Second)
	if f := s.options.Hooks.Paused; f != nil {
		f(observe.OutboxPaused{Slice: s.slice, For: d, Err: first})
	}
	s.sleep(life, d)
	return nil
}

// lull is how long not to look when there was nothing: longer each time, but no
// longer than until a lane is due.
func (s *service) lull() time.Duration {
	d := s.options.MinPoll
	for range s.idle {
		if d *= 2; d >= s.options.MaxPoll {
			d = s.options.MaxPoll
			break
		}
	}
	s.idle++
	if !s.next.IsZero() {
		if until := time.Until(s.next); until > 0 {
			return min(d, until+time.Millisecond)
		}
		s.next, s.idle = time.Time{}, 0
	}
	return d
}

// pause is sleep that a wake ends.
func (s *service) pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.awake:
		s.idle = 0
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// sleep reports whether ctx still lasts.
func (s *service) sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

func observeServing(c interlock.Claim, slice int) observe.OutboxServing {
	return observe.OutboxServing{Slice: slice, Token: c.Token(), Owner: c.Owner()}
}

func observeStopped(slice int, err error) observe.OutboxStopped {
	return observe.OutboxStopped{Slice: slice, Err: err}
}
