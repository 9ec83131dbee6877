package saga

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/txn/journal"
)

// asked counts the requests that read a journal.
type asked struct {
	*memory.Journal
	n int
}

func (a *asked) Heads(ctx context.Context, behind string, limit int) ([]driver.Head, error) {
	a.n++
	return a.Journal.Heads(ctx, behind, limit)
}

func (a *asked) Due(ctx context.Context, shard int, behind driver.Head, limit int) ([]driver.Head, error) {
	a.n++
	return a.Journal.Due(ctx, shard, behind, limit)
}

func (a *asked) Read(ctx context.Context, id string, after int64) (driver.Head, []driver.Record, error) {
	a.n++
	return a.Journal.Read(ctx, id, after)
}

// TestUnfinishedCosts what it returns, however many sagas have ended, also if the journal
// was opened with another number of shards than it has.
func TestUnfinishedCosts(t *testing.T) {
	store := &asked{Journal: memory.NewJournal()}
	open := func(shards int) *journal.Journal {
		j, err := journal.New(store, &journal.Options{Shards: shards})
		ok(t, err)
		t.Cleanup(func() { ok(t, j.Close()) })
		return j
	}
	j := open(64)
	for i := range 1500 {
		log, err := j.Begin(t.Context(), fmt.Sprintf("ended%04d", i), protocol+":order", time.Now(), letters["begin"])
		ok(t, err)
		ok(t, log.End(t.Context(), record(recordDecide, decideAbort, why{}), letters["end"]))
	}
	for i := range 3 {
		_, err := j.Begin(t.Context(), fmt.Sprint("running", i), protocol+":order", time.Now().Add(time.Hour), letters["begin"])
		ok(t, err)
	}
	for _, shards := range []int{64, 5} {
		store.n = 0
		list := func(behind string) (all []string) {
			for o, err := range NewOperator(open(shards)).List(t.Context(), Filter{Unfinished: true, After: behind}) {
				ok(t, err)
				all = append(all, o.ID)
			}
			return all
		}
		if same(t, "unfinished", list(""), "running0", "running1", "running2"); store.n > 12 {
			t.Errorf("%d requests to find three of 1503", store.n)
		}
		same(t, "the next", list("running0"), "running1", "running2")
	}
}
