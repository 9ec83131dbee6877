package journal_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/journal"
)

// stopping begins transactions of a process that is stopped just before it commits.
type stopping struct {
	driver.BeginnerAt[driver.SQL]
	stopped chan struct{} // one value for each that is stopped
	wake    chan struct{}
}

func (s stopping) BeginAt(ctx context.Context, level driver.Isolation) (driver.Tx[driver.SQL], error) {
	tx, err := s.BeginnerAt.BeginAt(ctx, level)
	return stoppingTx{tx, s}, err
}

type stoppingTx struct {
	driver.Tx[driver.SQL]
	at stopping
}

func (t stoppingTx) Commit(ctx context.Context) error {
	t.at.stopped <- struct{}{}
	<-t.at.wake
	return t.Tx.Commit(ctx)
}

const bound = 20 * time.Second

// wait waits until another one is stopped.
func (s stopping) wait(t *testing.T) {
	t.Helper()
	select {
	case <-s.stopped:
	case <-time.After(bound):
		t.Fatal("nothing came to its commit")
	}
}

// TestStoppedOwner: an owner that is stopped within a transaction of the journal's, its own
// or one that was lent, does not keep the next one from entering the shard, and what it
// commits when it wakes up fails.
func TestStoppedOwner(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		t.Parallel()
		db := open(t)
		next := journal.NewTable(db, "")
		db.Do(t, next.Create)
		for shard := range 3 {
			ok(t, next.Enter(t.Context(), shard, token(1)))
		}
		record := func(id string, shard int) driver.Append {
			return driver.Append{Transaction: id, Shard: shard, Epoch: token(1), Records: []driver.Record{{Kind: "begin"}}, Due: due}
		}
		ok(t, next.Append(t.Context(), []driver.Append{record("claimed", 1)})[0])

		s := stopping{db, make(chan struct{}, 2), make(chan struct{})}
		awake := sync.OnceFunc(func() { close(s.wake) })
		defer awake()
		owner := journal.NewTable[driver.SQL](s, "")
		owner.EndIdleAfter(time.Second)
		appended := testbed.Later(t, bound, func() error { return owner.Append(context.Background(), []driver.Append{record("appended", 0)})[0] })
		s.wait(t)
		claimed := testbed.Later(t, bound, func() error {
			_, err := owner.Claim(context.Background(), 1, token(1), due, due.Add(time.Hour), 10)
			return err
		})
		s.wait(t)
		lent := db.Begun(t, driver.ReadCommitted)
		ok(t, owner.AppendIn(t.Context(), lent, record("lent", 2)))

		ctx, cancel := context.WithTimeout(t.Context(), bound)
		defer cancel()
		for shard := range 3 {
			ok(t, next.Enter(ctx, shard, token(2)))
		}
		awake()
		for what, err := range map[string]error{"append": appended(), "claim": claimed(), "lent": lent.Commit(t.Context())} {
			if err == nil {
				t.Errorf("%s: it is committed behind the next owner's back", what)
			}
		}
		for id, position := range map[string]int64{"appended": 0, "claimed": 1, "lent": 0} {
			head, _, err := next.Read(t.Context(), id, 0)
			if ok(t, err); head.Position != position || head.Claimed {
				t.Errorf("%s: %+v", id, head)
			}
		}
	}, databases.Pgx, databases.Maria)
}
