package outbox

import (
	"context"
	"errors"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/hints"
	"github.com/interlock-dev/interlock/internal/join"
)

// service is one slice that is served. Its methods are called by one goroutine; only
// publish runs beside it.
type service struct {
	*Relay
	claim interlock.Claim
	slice int
	of    int // how many slices there have to be; 0 is any number
	judge judgement
	awake chan struct{}
	known Layout // under which the slice is served

	limit  int       // of rows to read, so that payloads fit
	away   int       // how often the sink was away since it was not
	trimAt time.Time // when old records of what was done by hand are deleted
	next   time.Time // when a lane is due that this service made wait; zero if none is known
}

func newService(r *Relay, c interlock.Claim, slice, of int) *service {
	return &service{Relay: r, claim: c, slice: slice, of: of, judge: r.options.judgement(), awake: make(chan struct{}, 1), limit: r.options.Batch}
}

func (s *service) wake() { hints.Signal(s.awake) }

// run serves the slice until ctx or the claim ends, or something fails for good.
func (s *service) run(ctx context.Context) error {
	life, leave := join.Context(ctx, s.claim.Context())
	defer leave()
	storing, done := lasting(life, s.claim, s.options.Drain+closing)
	defer done()
	sending, done := lasting(life, s.claim, s.options.Drain)
	defer done()
	for {
		if err := s.serve(contexts{life, sending, storing}); !errors.Is(err, errLayoutChanged) || life.Err() != nil {
			return s.ended(life, err)
		}
	}
}

// serve serves the slice under one layout.
func (s *service) serve(ctx contexts) error {
	life := ctx.life
	if err := s.admit(life); err != nil {
		return err
	}
	for {
		s.trim(life)
		seen, err := s.peek(life, nil)
		if err != nil {
			return err
		}
		b := s.plan(seen, nil)
		if b.empty() {
			if !s.pause(life, s.options.lull(s.next, s.options.now())) {
				return nil
			}
			continue
		}
		if err := s.stream(ctx, b); err != nil || life.Err() != nil {
			return err
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
	case s.claim.Context().Err() != nil: // which life will learn in a moment
		return context.Cause(s.claim.Context())
	}
	return errors.Join(interlock.ErrExpired, err)
}

// admit checks that the slice is one of the table, and enters it before anything is
// read: what a former owner has not settled by then it never will.
func (s *service) admit(life context.Context) error {
	l, err := s.layout(life)
	switch want := max(s.of, s.slice+1); {
	case err != nil:
		return err
	case l.Slices < want || s.of != 0 && l.Slices != want:
		return &LayoutError{Table: s.table.name(), Stored: l.Slices, Want: want}
	}
	s.known = l
	_, err = s.settle(life, settlement{}, 0, nil)
	return err
}

// layout is how many slices there are, as soon as the database says it and no change
// of it is under way.
func (s *service) layout(life context.Context) (l Layout, err error) {
	err = s.persist(life, "read layout", func() (err error) {
		if !s.claim.Valid() {
			return interlock.ErrExpired
		}
		l, err = s.Relay.layout(life)
		return err
	})
	return l, err
}

// count is how many slices there are, for a service that serves none yet.
func (s *service) count(ctx context.Context) (int, error) {
	life, leave := join.Context(ctx, s.claim.Context())
	defer leave()
	l, err := s.layout(life)
	if err != nil {
		err = s.ended(life, err)
	}
	return l.Slices, err
}

// peek reads without having entered: what is read so can only be sent twice.
func (s *service) peek(life context.Context, underway []row) (seen picture, err error) {
	err = s.persist(life, "read", func() error {
		if !s.claim.Valid() {
			return interlock.ErrExpired
		}
		return s.look(life, func(st store) (err error) {
			if seen, err = st.read(life, s.slice, s.limit, underway); err == nil {
				err = st.unchanged(life, s.known, "")
			}
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
