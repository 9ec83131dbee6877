package outbox

import (
	"context"
	"errors"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/hints"
	"github.com/interlock-dev/interlock/internal/join"
	"github.com/interlock-dev/interlock/internal/report"
)

// service serves one slice. One goroutine calls its methods; only publish starts another one.
type service struct {
	*Relay
	claim interlock.Claim
	slice int
	of    int // required number of slices; 0 means any
	judge judgement
	awake chan struct{}
	known Layout // under which the slice is served

	limit      int       // of rows to read, so that payloads fit; doubles while they do
	outages    int       // how often in a row the sink seemed to be unavailable
	trimAt     time.Time // next deletion of old audit records
	expediteAt time.Time // next look for lanes whose time is too far ahead
	next       time.Time // when a lane that this service made wait is due; zero if unknown

	reports report.Queue // of all hooks
}

func newService(r *Relay, c interlock.Claim, slice, of int) *service {
	return &service{Relay: r, claim: c, slice: slice, of: of, judge: r.options.judgement(), awake: make(chan struct{}, 1), limit: min(r.options.Batch, firstRead)}
}

// firstRead is the limit of the first read. Rows may be large, and those of all slices are in memory at the
// same time.
const firstRead = 16

// awaitReports waits for a while until the hooks have received all events.
func (s *service) awaitReports() {
	ctx, cancel := context.WithTimeout(context.Background(), closing)
	defer cancel()
	_ = s.reports.Wait(ctx)
}

func (s *service) wake() { hints.Signal(s.awake) }

// run serves the slice until ctx or the claim ends, or an error is final.
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
		s.expedite(life)
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

// ended returns why the service ends: the end of its context or claim explains an error.
func (s *service) ended(life context.Context, err error) error {
	switch {
	case errors.Is(err, interlock.ErrStaleToken), err != nil && life.Err() == nil && s.claim.Valid():
		return err
	case life.Err() != nil:
		return context.Cause(life)
	case s.claim.Context().Err() != nil: // life ends in a moment
		return context.Cause(s.claim.Context())
	}
	return errors.Join(interlock.ErrExpired, err)
}

// admit checks that the table has the slice, and enters it before the first read: from then on no
// former owner can settle.
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

// layout returns the layout, as soon as the database answers and no change is in progress.
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

// count returns the number of slices, before the service serves one.
func (s *service) count(ctx context.Context) (int, error) {
	defer s.awaitReports()
	life, leave := join.Context(ctx, s.claim.Context())
	defer leave()
	l, err := s.layout(life)
	if err != nil {
		err = s.ended(life, err)
	}
	return l.Slices, err
}

// peek reads without entering the slice: messages may then be sent twice, but not lost.
func (s *service) peek(life context.Context, underway []row) (seen picture, err error) {
	err = s.persist(life, "read", func() error {
		if !s.claim.Valid() {
			return interlock.ErrExpired
		}
		return s.look(life, func(st store) (err error) {
			// As changes are counted, the known layout means that no message was moved before the read.
			if seen, err = st.read(life, s.slice, s.limit, underway); err == nil && seen.layout != s.known {
				err = errLayoutChanged
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
