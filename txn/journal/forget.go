package journal

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

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
		timer := time.NewTimer(forgetPause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
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
