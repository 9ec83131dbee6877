package journal

import (
	"context"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// Unfinished iterates over the unfinished transactions of all shards, in the order of their ids,
// above the given one. The cost depends on their number only: one request for the shards that
// have any, and two listings of each of those. It keeps their heads in memory. Transactions that
// begin meanwhile may be missing. An error ends it.
func (j *Journal) Unfinished(ctx context.Context, after string) iter.Seq2[driver.Head, error] {
	return func(yield func(driver.Head, error) bool) {
		heads, err := j.unfinished(ctx, after)
		if err != nil {
			yield(driver.Head{}, err)
			return
		}
		for _, h := range heads {
			if !yield(h, nil) {
				return
			}
		}
	}
}

// never is later than every due time.
var never = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

func (j *Journal) unfinished(ctx context.Context, after string) ([]driver.Head, error) {
	if err := driver.CheckAfter(after); err != nil {
		return nil, err
	}
	stored, err := j.store.Shards(ctx, 0, 0)
	if err != nil {
		return nil, err
	}
	if stored <= 0 { // no number yet, or it is being changed
		stored = maxShards
	}
	shards := make([]int, stored)
	for i := range shards {
		shards[i] = i
	}
	if shards, err = j.store.DueShards(ctx, shards, never); err != nil {
		return nil, err
	}
	found := map[string]driver.Head{}
	for _, number := range shards {
		// One pass can miss a transaction whose due time becomes earlier meanwhile: see Mark.
		for range 2 {
			for h, err := range (&Shard{journal: j, number: number}).Unfinished(ctx) {
				if err != nil {
					return nil, err
				}
				if h.Transaction > after {
					found[h.Transaction] = h
				}
			}
		}
	}
	heads := make([]driver.Head, 0, len(found))
	for _, h := range found {
		heads = append(heads, h)
	}
	slices.SortFunc(heads, func(a, b driver.Head) int { return strings.Compare(a.Transaction, b.Transaction) })
	return heads, nil
}
