package journal_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/journal"
)

// TestHeldIDsHurtNobody: while transactions of the user's hold ids, of new and of old
// transactions, and the mark of a shard, appends to others are done; those to the same
// are held up alone, and go on when the user's transactions have ended.
func TestHeldIDsHurtNobody(t *testing.T) {
	databases.Each(t, func(t *testing.T, openDB func(testing.TB) *databases.DB) {
		db := openDB(t)
		table := journal.NewTable(db, "")
		db.Do(t, table.Create)
		j := open(t, table, &journal.Options{Patience: time.Minute})
		old, err := j.Begin(t.Context(), "old", "order", due, says("begin")...)
		ok(t, err)
		var held []driver.Tx[driver.SQL]
		for _, a := range []driver.Append{
			{Transaction: "new1", Records: []driver.Record{{Kind: "begin"}}, Due: due},
			{Transaction: "new2", Records: []driver.Record{{Kind: "begin"}}, Due: due},
			{Transaction: "old", Shard: j.ShardOf("old"), After: 1, Records: []driver.Record{{Kind: "done"}}, Due: due},
		} {
			tx := db.Begun(t, driver.ReadCommitted)
			ok(t, table.AppendIn(t.Context(), tx, a))
			held = append(held, tx)
		}
		begun := make(chan error, 3)
		for _, id := range []string{"new1", "new2"} {
			go func() {
				_, err := j.Begin(t.Context(), id, "order", due, says("begin")...)
				begun <- err
			}()
		}
		go func() { begun <- old.Append(t.Context(), due, says("sent")...) }()
		// More than one request's worth, while those wait.
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var work sync.WaitGroup
		from := time.Now()
		for i := range 20 {
			work.Go(func() {
				for k := range 5 {
					_, err := j.Begin(ctx, fmt.Sprintf("free%d.%d", i, k), "order", due, says("begin")...)
					if err != nil {
						t.Errorf("beside ids that are held: %v", err)
					}
				}
			})
		}
		work.Wait()
		t.Logf("100 beside three held ids took %v", time.Since(from))
		select {
		case err := <-begun:
			t.Fatalf("one that is held ended: %v", err)
		default:
		}
		for _, tx := range held {
			ok(t, tx.Commit(t.Context()))
		}
		for range held {
			err := <-begun
			if !errors.Is(err, journal.ErrExists) && !errors.Is(err, journal.ErrConflict) {
				t.Errorf("after the user's transactions: %v", err)
			}
		}
	})
}

// TestEnteringHoldsUpOneShard: while somebody enters a shard, and waits there for a
// transaction of the former owner's, appends to other shards that travel with one to this
// shard are done.
func TestEnteringHoldsUpOneShard(t *testing.T) {
	databases.Each(t, func(t *testing.T, openDB func(testing.TB) *databases.DB) {
		db := openDB(t)
		table := journal.NewTable(db, "")
		db.Do(t, table.Create)
		ok(t, table.Enter(t.Context(), 0, token(1)))
		ok(t, table.Enter(t.Context(), 1, token(1)))
		entering := db.Begun(t, driver.ReadCommitted)
		_, err := entering.Exec(t.Context(), `update interlock_journal_shard set source = 'x' where resource = '`+driver.ShardName(0)+`'`)
		ok(t, err)
		appends := []driver.Append{
			{Transaction: "a", Shard: 0, Epoch: token(1), Records: []driver.Record{{Kind: "begin"}}, Due: due},
			{Transaction: "b", Shard: 1, Epoch: token(1), Records: []driver.Record{{Kind: "begin"}}, Due: due},
			{Transaction: "c", Shard: 2, Epoch: token(1), Records: []driver.Record{{Kind: "begin"}}, Due: due},
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		errs := table.Append(ctx, appends)
		wantKind(t, errs[0], interlock.Retryable, interlock.ErrHeld)
		ok(t, errs[1])
		wantKind(t, errs[2], interlock.Bug, nil)
		ok(t, entering.Rollback(t.Context()))
		ok(t, table.Append(t.Context(), appends[:1])[0])
	}, databases.Pgx, databases.Maria)
}
