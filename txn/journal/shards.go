package journal

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

// A ShardsError rejects a journal that was opened with another number of shards than the stored
// one. No owner would drive a transaction in a wrong shard.
type ShardsError = driver.ShardsError

// CheckShards stores Options.Shards if the journal has no number of shards yet. If it has another
// number the error is a [*ShardsError]. [Journal.Own] and the first [Journal.Begin] call it.
func (j *Journal) CheckShards(ctx context.Context) error {
	stored, err := j.store.Shards(ctx, 0, j.options.Shards)
	if err != nil {
		return err
	}
	return j.checkStored(stored)
}

// checkStored rejects a stored number that is not that of the options.
func (j *Journal) checkStored(stored int) error {
	if stored != j.options.Shards {
		return &ShardsError{Stored: stored, Opened: j.options.Shards}
	}
	j.shardsChecked.Store(true)
	return nil
}

// checkShardsIn is CheckShards within a transaction of the user, once. It does not store the first
// number, which would be locked until that transaction ends.
func (j *Journal) checkShardsIn(ctx context.Context, s TxStore, db driver.SQL) error {
	if j.shardsChecked.Load() {
		return nil
	}
	stored, err := s.ShardsIn(ctx, db)
	if err != nil || stored == 0 {
		return err
	}
	return j.checkStored(stored)
}

// maxShards is the largest number of shards of a journal.
const maxShards = 4096

// SetShards changes the number of a journal's shards, 1 to 4096, and returns how many unfinished
// transactions it moved. Stop all processes that use the journal before, and open it with the new
// number afterwards: owners can write nothing more, and begins under the old number are rejected.
// SetShards waits for database transactions that have begun one. If it fails, the journal cannot
// be used before it is called again with the same number.
func SetShards(ctx context.Context, store driver.Journal, shards int) (moved int, err error) {
	return setShards(ctx, store, shards, func(int) error { return nil })
}

// SetShardsBy is [SetShards] with an audit record. Before it changes anything it records who
// changes the number, from which to which, and why, as an ended transaction of type
// "layout:shards"; record is its id.
func SetShardsBy(ctx context.Context, store driver.Journal, shards int, by, reason string) (moved int, record string, err error) {
	moved, err = setShards(ctx, store, shards, func(stored int) error {
		j, err := New(store, &Options{Shards: shards})
		if err != nil {
			return err
		}
		defer j.Close()
		record, err = j.audit(ctx, "shards", "layout:shards", by, reason, resharded{From: stored, To: shards, By: by, Reason: reason})
		return err
	})
	return moved, record, err
}

// resharded is the data of the record of SetShardsBy.
type resharded struct {
	From   int    `json:"from"` // below zero if a change to -From had begun and not ended
	To     int    `json:"to"`
	By     string `json:"by"`
	Reason string `json:"reason"`
}

// setShards calls begin with the stored number before it changes anything.
func setShards(ctx context.Context, store driver.Journal, shards int, begin func(stored int) error) (moved int, err error) {
	const op = "set shards"
	if shards < 1 || shards > maxShards {
		return 0, failure.Bug(op, "", "%d shards; the number must be 1 to %d", shards, maxShards)
	}
	stored, err := store.Shards(ctx, 0, 0)
	if err != nil {
		return 0, err
	}
	if stored < 0 && stored != -shards {
		return 0, &ShardsError{Stored: stored, Opened: shards}
	}
	if err := begin(stored); err != nil {
		return 0, err
	}
	now, err := store.Shards(ctx, stored, -shards)
	if err == nil {
		err = changing(now, shards)
	}
	if err != nil {
		return 0, err
	}
	all := max(stored, shards)
	if stored <= 0 { // all shards that can have been in use, also by a change that has not ended
		all = maxShards
	}
	for shard := range all {
		if err := fenceOff(ctx, store, shard); err != nil {
			return moved, err
		}
		n, err := move(ctx, store, shard, shards)
		if moved += n; err != nil {
			return moved, err
		}
	}
	now, err = store.Shards(ctx, -shards, shards)
	if err == nil && now != shards {
		err = changing(now, shards)
	}
	return moved, err
}

// changing rejects a change while another one is under way.
func changing(stored, shards int) error {
	if stored == -shards {
		return nil
	}
	return &ShardsError{Stored: stored, Opened: shards}
}

// fenceOff fences off the owner of a shard. The next owner gets a token with a higher counter, and
// can write.
func fenceOff(ctx context.Context, store driver.Journal, shard int) error {
	first, err := interlock.NewToken(1, 0)
	if err != nil {
		return err
	}
	var stale *interlock.StaleTokenError
	for err = store.Enter(ctx, shard, first); errors.As(err, &stale); {
		last := stale.Seen | interlock.MaxSub
		if err = store.Enter(ctx, shard, last); err == nil {
			return nil
		}
	}
	return err
}

// move assigns the unfinished transactions of a shard to their new shards, until it finds none: an
// operator's append has no epoch, and hides its transaction from a pass or prevents its move.
func move(ctx context.Context, store driver.Journal, shard, shards int) (moved int, err error) {
	s := &Shard{journal: &Journal{store: store}, number: shard}
	found := map[string]bool{}
	for again := true; again; {
		again = false
		for head, err := range s.Unfinished(ctx) {
			if err != nil {
				return len(found), err
			}
			to := shardOf(head.Transaction, shards)
			if to == shard {
				continue
			}
			if err := store.Reassign(ctx, head, to); err != nil {
				return len(found), err
			}
			found[head.Transaction], again = true, true
		}
	}
	return len(found), nil
}

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
