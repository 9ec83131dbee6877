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
// clocks involved. Now is the caller's clock. It lists all that is unfinished, twice, 200
// heads at a time, and reads none of it: two requests for each shard at least.
func (j *Journal) LowWater(ctx context.Context, now time.Time, margin time.Duration) (time.Time, error) {
	if margin <= 0 {
		return time.Time{}, failure.Bug("find low-water mark", "", "the margin is %v, and has to be above zero", margin)
	}
	oldest := now
	for number := range j.options.Shards {
		shard := &Shard{journal: j, number: number}
		// What becomes due earlier while all that is due is gone through can pass by, so
		// that is done twice. An active transaction would have to do so both times, and be
		// older than the margin.
		for range 2 {
			for head, err := range shard.Unfinished(ctx) {
				if err != nil {
					return time.Time{}, err
				}
				if head.Began.Before(oldest) {
					oldest = head.Began
				}
			}
		}
	}
	return oldest.Add(-margin).Truncate(time.Millisecond), nil
}
