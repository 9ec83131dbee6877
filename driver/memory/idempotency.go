package memory

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Idempotency keeps records of requests in memory. It is the executable
// specification of driver.Idempotency: each call is one step under a mutex, by this
// process's clock. Its records end with the process.
type Idempotency struct {
	mu      sync.Mutex
	records map[driver.IdempotencyID]*requested
}

var _ driver.Idempotency = (*Idempotency)(nil)

// NewIdempotency returns an empty store of requests.
func NewIdempotency() *Idempotency {
	return &Idempotency{records: map[driver.IdempotencyID]*requested{}}
}

// requested is a record with its times.
type requested struct {
	record  driver.IdempotencyRecord // Remaining and Age are not set
	created time.Time
	until   time.Time // end of the lease
	keep    time.Time // after the request is finished
}

func (r *requested) show(now time.Time) driver.IdempotencyRecord {
	shown := r.record
	shown.Remaining, shown.Age = r.until.Sub(now), now.Sub(r.created)
	shown.Input, shown.Points = bytes.Clone(shown.Input), bytes.Clone(shown.Points)
	shown.Answer.Header, shown.Answer.Body = bytes.Clone(shown.Answer.Header), bytes.Clone(shown.Answer.Body)
	return shown
}

// Claim creates or takes a record; see driver.Idempotency.
func (s *Idempotency) Claim(ctx context.Context, c driver.IdempotencyClaim) (driver.IdempotencyRecord, error) {
	const op = "claim request"
	if err := requesting(ctx, op, c.ID); err != nil {
		return driver.IdempotencyRecord{}, err
	}
	if c.Owner == "" || c.Fingerprint == "" || c.Lease <= 0 {
		return driver.IdempotencyRecord{}, fail.New(op, c.ID.Key, interlock.Bug,
			errors.New("it needs an owner, a fingerprint and a lease"))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	r := s.records[c.ID]
	if r == nil {
		r = &requested{created: now, record: driver.IdempotencyRecord{ID: c.ID, Fingerprint: c.Fingerprint,
			Input: bytes.Clone(c.Input)}}
		s.records[c.ID] = r
	}
	own := r.record.Owner == c.Owner
	if !r.record.Finished && r.record.Fingerprint == c.Fingerprint && (own || !now.Before(r.until)) {
		if !own {
			r.record.Attempt++
		}
		r.record.Owner, r.until = c.Owner, now.Add(c.Lease)
	}
	return r.show(now), nil
}

// Update records a step of an attempt; see driver.Idempotency.
func (s *Idempotency) Update(ctx context.Context, u driver.IdempotencyUpdate) error {
	const op = "update request"
	if err := requesting(ctx, op, u.ID); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now, r := time.Now(), s.records[u.ID]
	switch {
	case r == nil && u.Forget:
		return nil
	case r == nil || r.record.Owner != u.Owner:
		return fail.New(op, u.ID.Key, interlock.Definite, interlock.ErrLost)
	case r.record.Finished:
		return nil
	case u.Forget:
		delete(s.records, u.ID)
		return nil
	}
	r.until = now.Add(u.Lease)
	if u.Points != nil {
		r.record.Points = bytes.Clone(u.Points)
	}
	if u.Answer != nil {
		r.record.Finished, r.record.Answer, r.keep = true, *u.Answer, now.Add(u.Keep)
		r.record = r.show(now) // with its own bytes
	}
	return nil
}

// Unfinished lists the records that no process works on; see driver.Idempotency.
func (s *Idempotency) Unfinished(ctx context.Context, q driver.IdempotencyQuery) ([]driver.IdempotencyRecord, error) {
	if ctx.Err() != nil {
		return nil, fail.Unsent(ctx, "list requests", q.Operation)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []driver.IdempotencyRecord
	now := time.Now()
	for _, r := range s.records {
		if r.record.Finished || q.Operation != "" && r.record.ID.Operation != q.Operation ||
			now.Sub(r.until) < q.Lapsed || q.Attempts > 0 && r.record.Attempt >= q.Attempts {
			continue
		}
		shown := r.show(now)
		shown.Input, shown.Points = nil, nil
		found = append(found, shown)
	}
	slices.SortFunc(found, func(a, b driver.IdempotencyRecord) int { return cmp.Compare(a.Remaining, b.Remaining) })
	return found[:min(len(found), q.Limit)], nil
}

// Remove removes records whose retention has ended; see driver.Idempotency.
func (s *Idempotency) Remove(ctx context.Context, limit int) (int, error) {
	if ctx.Err() != nil {
		return 0, fail.Unsent(ctx, "remove requests", "")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	removed, now := 0, time.Now()
	for id, r := range s.records {
		if removed < limit && r.record.Finished && !now.Before(r.keep) {
			delete(s.records, id)
			removed++
		}
	}
	return removed, nil
}

func requesting(ctx context.Context, op string, id driver.IdempotencyID) error {
	if err := id.Validate(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fail.Unsent(ctx, op, id.Key)
	}
	return nil
}
