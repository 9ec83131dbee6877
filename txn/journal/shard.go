package journal

import (
	"context"
	"iter"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

// A Shard is a part of the journal under its owner's claim. It is safe for concurrent use.
type Shard struct {
	journal *Journal
	number  int
	epoch   interlock.Token
	claim   interlock.Claim
}

// Own makes the holder of c the owner of a shard, with c's token as the epoch. From then on
// former owners can write nothing to its transactions. A claim with a token below the epoch is
// rejected with an interlock.StaleTokenError.
func (j *Journal) Own(ctx context.Context, c interlock.Claim, shard int) (*Shard, error) {
	s := &Shard{journal: j, number: shard, epoch: c.Token(), claim: c}
	if shard < 0 || shard >= j.options.Shards {
		return nil, failure.Bug("own shard", driver.ShardName(shard), "there are %d shards", j.options.Shards)
	}
	if err := s.valid(); err != nil {
		return nil, err
	}
	if err := j.CheckShards(ctx); err != nil {
		return nil, err
	}
	if err := j.store.Enter(ctx, shard, s.epoch); err != nil {
		return nil, err
	}
	return s, nil
}

// valid returns why no request may be sent for this shard. It accepts a nil Shard.
func (s *Shard) valid() error {
	switch {
	case s == nil || s.claim.Valid():
		return nil
	case s.claim.Context().Err() != nil:
		return &interlock.Error{Op: "append", Name: driver.ShardName(s.number), Kind: interlock.Definite, Err: context.Cause(s.claim.Context())}
	}
	return &interlock.Error{Op: "append", Name: driver.ShardName(s.number), Kind: interlock.Definite, Err: interlock.ErrExpired}
}

// Number returns the shard's number, from 0.
func (s *Shard) Number() int { return s.number }

// Epoch returns the token under which the shard is owned.
func (s *Shard) Epoch() interlock.Token { return s.epoch }

// Begin is [Journal.Begin] in this shard, whatever the hash of the id. The first append has no epoch,
// the later ones of the log have the owner's.
func (s *Shard) Begin(ctx context.Context, id, kind string, due time.Time, entries ...Entry) (*Log, error) {
	l, err := s.journal.begin(ctx, s.number, id, kind, due, entries)
	if err == nil {
		l.owner = s
	}
	return l, err
}

// Open is [Journal.Open] for the owner: appends have its epoch. If the transaction is in another
// shard, which is that of the log's Head, they have none.
func (s *Shard) Open(ctx context.Context, id string) (*Log, []Entry, error) {
	l, entries, err := s.journal.Open(ctx, id)
	if err == nil && l != nil && l.head.Shard == s.number {
		l.owner = s
	}
	return l, entries, err
}

// Claim returns up to limit transactions that are due at a time, the earliest first, and moves
// their due time to until: by then the caller has appended, or they are due again. It is one
// request.
func (s *Shard) Claim(ctx context.Context, by, until time.Time, limit int) ([]driver.Head, error) {
	if err := s.valid(); err != nil {
		return nil, err
	}
	return s.journal.store.Claim(ctx, s.number, s.epoch, by, until, limit)
}

// Unfinished iterates over all unfinished transactions by due time. A new owner calls it once,
// because transactions claimed by a former owner would otherwise wait until they are due again.
func (s *Shard) Unfinished(ctx context.Context) iter.Seq2[driver.Head, error] {
	const page = 200
	return func(yield func(driver.Head, error) bool) {
		var behind driver.Head
		for {
			heads, err := s.journal.store.Due(ctx, s.number, behind, page)
			if err != nil {
				yield(driver.Head{}, err)
				return
			}
			for _, h := range heads {
				if !yield(h, nil) {
					return
				}
				behind = h
			}
			if len(heads) < page {
				return
			}
		}
	}
}
