package journal

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
)

// MaxExcept bounds the transactions that a [Mark] excepts: every call of a participant
// reads the list.
const MaxExcept = 256

// A Mark bounds what participants may delete. The zero value allows nothing.
type Mark struct {
	// Time is the low-water mark: transactions that began before it have ended, except Except.
	Time time.Time
	// Except are the ids of unfinished transactions that began before Time, or less than
	// the margin after it: dead letters, and sagas that wait for days. All later marks
	// except each of them until it ends.
	Except []string
	// Pinned is the mark for participants that do not support exceptions.
	Pinned time.Time
	// Unfinished is the number of unfinished transactions, and Oldest the time when the
	// first of them began; zero if there is none.
	Unfinished int
	Oldest     time.Time
}

// LowWater returns a time before which no unfinished transaction began: margin before the oldest
// unfinished one, or margin before now if there is none. Participants may delete the records of
// transactions that began before it, if they reject calls of such transactions from then on.
//
// The margin, above zero, must cover what the journal does not see:
//   - calls of ended transactions that may still arrive
//   - transactions before their decision, such as tries of a TCC, for its Options.Hold
//   - the difference of all clocks involved
//
// Now is the caller's clock. LowWater lists the heads of all unfinished transactions twice, 200
// at a time: at least two requests for each shard.
func (j *Journal) LowWater(ctx context.Context, now time.Time, margin time.Duration) (time.Time, error) {
	mark, err := j.Mark(ctx, now, margin, 0)
	return mark.Pinned, err
}

// Mark is like [Journal.LowWater], but excepts transactions that began more than slow ago: the
// oldest of them, up to [MaxExcept]. A slow of 0 excepts none.
func (j *Journal) Mark(ctx context.Context, now time.Time, margin, slow time.Duration) (Mark, error) {
	if margin <= 0 || slow < 0 {
		return Mark{}, failure.Bug("find low-water mark", "", "the margin is %v, slow is %v: the margin must be above zero, slow not below", margin, slow)
	}
	m := marker{oldest: now, young: now}
	if slow > 0 {
		m.slow = now.Add(-slow)
	}
	unfinished := 0
	for number := range j.options.Shards {
		shard := &Shard{journal: j, number: number}
		// A pass can miss a transaction whose due time becomes earlier meanwhile, so there
		// are two. For an error, an active transaction would have to be missed by both
		// and be older than the margin.
		for pass := range 2 {
			for head, err := range shard.Unfinished(ctx) {
				if err != nil {
					return Mark{}, err
				}
				m.add(head)
				if pass == 0 {
					unfinished++
				}
			}
		}
	}
	mark := m.mark(margin)
	if mark.Unfinished = unfinished; unfinished > 0 {
		mark.Oldest = m.oldest
	}
	return mark, nil
}

// marker collects the data of a mark.
type marker struct {
	slow   time.Time     // transactions that began before it may be excepted; zero: none
	oldest time.Time     // when the oldest began
	young  time.Time     // when the oldest that is not slow began
	old    []driver.Head // slow ones, at least the MaxExcept+1 oldest
}

func (m *marker) add(h driver.Head) {
	if h.Began.Before(m.oldest) {
		m.oldest = h.Began
	}
	if !h.Began.Before(m.slow) {
		if h.Began.Before(m.young) {
			m.young = h.Began
		}
		return
	}
	m.old = append(m.old, driver.Head{Transaction: h.Transaction, Began: h.Began})
	if len(m.old) > 8*MaxExcept {
		m.shrink()
	}
}

// shrink keeps the MaxExcept+1 oldest, without repeats.
func (m *marker) shrink() {
	slices.SortFunc(m.old, func(a, b driver.Head) int {
		return cmp.Or(a.Began.Compare(b.Began), strings.Compare(a.Transaction, b.Transaction))
	})
	m.old = slices.CompactFunc(m.old, func(a, b driver.Head) bool { return a.Transaction == b.Transaction })
	m.old = m.old[:min(len(m.old), MaxExcept+1)]
}

func (m *marker) mark(margin time.Duration) Mark {
	m.shrink()
	limit := m.young
	if len(m.old) > MaxExcept { // the first beyond the bound
		limit = m.old[MaxExcept].Began
		m.old = m.old[:MaxExcept]
	}
	mark := Mark{Time: limit.Add(-margin).Truncate(time.Millisecond), Pinned: m.oldest.Add(-margin).Truncate(time.Millisecond)}
	for _, h := range m.old {
		if h.Began.Add(-margin).Truncate(time.Millisecond).Before(mark.Time) {
			mark.Except = append(mark.Except, h.Transaction)
		}
	}
	return mark
}

// forgetPause is the pause between two batches, so that the store can serve other requests.
const forgetPause = 20 * time.Millisecond

// ForgetAll calls [Journal.Forget] with batch as the limit until no transaction that ended before
// the time is left. It returns the number of removed ones, also with an error.
func (j *Journal) ForgetAll(ctx context.Context, endedBefore time.Time, batch int) (removed int, err error) {
	if batch < 1 {
		return 0, failure.Bug("forget", "", "the batch is %d; it must be at least 1", batch)
	}
	for {
		n, err := j.Forget(ctx, endedBefore, batch)
		removed += n
		if err != nil || n < batch {
			return removed, err
		}
		if !backoff.Sleep(ctx, forgetPause) {
			return removed, failure.About("forget", "", context.Cause(ctx))
		}
	}
}

// ForgetBy is [Journal.ForgetAll] with an audit record. Before it removes anything it records who
// removes what and why, as an ended transaction of type "retention:forget"; record is its id.
func (j *Journal) ForgetBy(ctx context.Context, endedBefore time.Time, batch int, by, reason string) (removed int, record string, err error) {
	record, err = j.audit(ctx, "forget", "retention:forget", by, reason, forgotten{EndedBefore: endedBefore.UTC(), By: by, Reason: reason})
	if err != nil {
		return 0, "", err
	}
	removed, err = j.ForgetAll(ctx, endedBefore, batch)
	return removed, record, err
}

// forgotten is the data of the record of ForgetBy.
type forgotten struct {
	EndedBefore time.Time `json:"ended_before"`
	By          string    `json:"by"`
	Reason      string    `json:"reason"`
}

// audit records an operator's action as an ended transaction, and returns its id.
func (j *Journal) audit(ctx context.Context, op, kind, by, reason string, data any) (record string, err error) {
	if by == "" || reason == "" {
		return "", failure.Bug(op, "", "a name and a reason are required")
	}
	text, err := json.Marshal(data)
	if err != nil {
		return "", failure.About(op, "", err)
	}
	record = "interlock." + op + "/" + rand.Text()
	l := &Log{journal: j, head: driver.Head{Transaction: record, Shard: j.ShardOf(record), Type: kind}}
	return record, l.append(ctx, time.Time{}, []Entry{{Kind: op, Data: text}})
}
