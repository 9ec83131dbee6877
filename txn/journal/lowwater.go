package journal

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock/internal/failure"
)

// LowWater is a time before which nothing began that is unfinished: a margin before
// the oldest unfinished transaction, or before now if there is none. Participants may
// forget what they know of transactions that began before it, if they refuse calls of
// such from then on.
//
// The margin, above zero, has to cover what the journal does not see: calls of ended
// transactions that may still arrive, transactions that are begun but not decided (the
// tries of a TCC before its decision, for its Options.Hold), and the difference of all
// clocks involved. Now is the caller's clock. It reads every unfinished transaction:
// call it every few minutes at most.
func (j *Journal) LowWater(ctx context.Context, now time.Time, margin time.Duration) (time.Time, error) {
	if margin <= 0 {
		return time.Time{}, failure.Bug("find low-water mark", "", "the margin is %v, and has to be above zero", margin)
	}
	oldest, seen := now, map[string]bool{}
	for shard := range j.options.Shards {
		// What becomes due earlier while all that is due is gone through can pass by, so
		// that is done twice. An active transaction would have to do so both times, and be
		// older than the margin.
		clear(seen)
		for range 2 {
			began, err := j.oldest(ctx, shard, seen)
			if err != nil {
				return time.Time{}, err
			}
			if !began.IsZero() && began.Before(oldest) {
				oldest = began
			}
		}
	}
	return oldest.Add(-margin).Truncate(time.Millisecond), nil
}

// oldest is when the oldest unfinished transaction of a shard began, without those that
// were seen; zero if there is none.
func (j *Journal) oldest(ctx context.Context, shard int, seen map[string]bool) (oldest time.Time, err error) {
	for head, err := range (&Shard{journal: j, number: shard}).Unfinished(ctx) {
		if err != nil {
			return oldest, err
		}
		if seen[head.Transaction] {
			continue
		}
		seen[head.Transaction] = true
		_, records, err := j.store.Read(ctx, head.Transaction, 0)
		if err != nil {
			return oldest, err
		}
		if len(records) > 0 && (oldest.IsZero() || records[0].Written.Before(oldest)) {
			oldest = records[0].Written
		}
	}
	return oldest, nil
}
