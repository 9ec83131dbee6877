package queue_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/guard/once"
	"github.com/interlock-dev/interlock/guard/version"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/internal/virtual"
)

// sizes has the sizes of batches, in the order in which they were handled.
type sizes struct {
	mu  sync.Mutex
	all []int
}

func (s *sizes) add(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, n)
}

// TestBatch: messages that arrive while a batch is handled form the next one. If a message fails or
// panics, every message of its batch is handled alone, and only that one fails.
func TestBatch(t *testing.T) {
	for _, failing := range []func() error{func() error { return nil }, func() error { return errors.New("bad") }, func() error { panic("bad") }} {
		virtual.Test(t, func(t *testing.T) {
			var r record
			var s sizes
			q := memory.NewQueue()
			fill(t, q, 3, "a", "b", "c", "d")
			c := consume(t, q, queue.Batch(func(_ context.Context, all []queue.Received) error {
				s.add(len(all))
				time.Sleep(time.Millisecond)
				var done []string
				for _, m := range all {
					if m.ID == "b1" && m.Attempt == 1 {
						if err := failing(); err != nil {
							return err
						}
					}
					done = append(done, m.ID)
				}
				for _, id := range done {
					r.add(id)
				}
				return nil
			}), queue.Options{MinPause: queue.DefaultMinPause})
			time.Sleep(time.Minute)
			for _, key := range []string{"a", "b", "c", "d"} {
				if got := r.of(key); !slices.Equal(got, []string{key + "0", key + "1", key + "2"}) {
					t.Errorf("handled %v", got)
				}
			}
			if s.all[0] != 1 || slices.Max(s.all) < 3 {
				t.Errorf("batches of %v", s.all)
			}
			ok(t, c.Close(t.Context()))
		})
	}
}

// TestBatchEndsItsGoroutine: the other messages of a batch are handled if the function ends the goroutine.
func TestBatchEndsItsGoroutine(t *testing.T) {
	var r record
	bubble(t, queue.Options{}, queue.Batch(func(_ context.Context, all []queue.Received) error {
		if len(all) > 1 {
			runtime.Goexit()
		}
		time.Sleep(time.Second) // the next batch is complete
		r.add(all[0].ID)
		return nil
	}), func(t *testing.T, q *memory.Queue, _ *queue.Consumer) {
		fill(t, q, 1, "a", "b", "c", "d")
		time.Sleep(time.Minute)
		if ids := r.of(""); len(ids) != 4 {
			t.Errorf("handled %v", ids)
		}
	})
}

// TestBatchEndsWithAnyClaim: the context of a batch ends with the first of the claims.
func TestBatchEndsWithAnyClaim(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		handler := queue.Batch(func(ctx context.Context, all []queue.Received) error {
			switch {
			case all[0].ID == "first":
				time.Sleep(time.Second)
			case len(all) > 1:
				<-ctx.Done()
			}
			return context.Cause(ctx)
		})
		gone := errors.New("the claim ended")
		ctx, cancel := context.WithCancelCause(t.Context())
		var r record
		var wg sync.WaitGroup
		for _, id := range []string{"first", "a", "b"} {
			of := t.Context()
			if id == "b" {
				of = ctx
			}
			wg.Go(func() {
				r.add(fmt.Sprint(id, " ", handler(of, queue.Received{QueueMessage: queue.Message{ID: id}, Attempt: 1})))
			})
			synctest.Wait()
		}
		time.Sleep(time.Minute)
		cancel(gone)
		wg.Wait()
		if slices.Sort(r.ids); !slices.Equal(r.ids, []string{"a <nil>", "b the claim ended", "first <nil>"}) {
			t.Errorf("%v", r.ids)
		}
	})
}

// TestInTxBatch: one transaction has the effects of many messages and removes them. A failing message
// fails no other one.
func TestInTxBatch(t *testing.T) {
	eachDB(t, func(t *testing.T, db *databases.DB) {
		for n := range 30 {
			addIn(t, db, queue.Message{ID: fmt.Sprint("a", n), Key: fmt.Sprint("k", n)}, queue.Message{ID: fmt.Sprint("b", n), Key: fmt.Sprint("k", n)})
		}
		counted := &databases.Counted{BeginnerAt: db}
		var s sizes
		c := consume(t, queue.FromTable(db, table, nil), queue.InTxBatch(counted, func(ctx context.Context, tx driver.SQL, all []queue.Received) error {
			s.add(len(all))
			for _, m := range all {
				if err := effect(ctx, tx, m); err != nil {
					return err
				}
				if m.ID != "a7" && m.Attempt > 1 {
					t.Errorf("%s has attempt %d, and never failed", m.ID, m.Attempt)
				}
				if m.ID == "a7" && m.Attempt < 3 {
					return errors.New("it fails after its effect")
				}
			}
			return nil
		}), queue.Options{})
		allHandled(t, db)
		wantEffects(t, db, 60)
		ok(t, c.Close(t.Context()))
		if n := counted.Commits.Load(); n >= 60 || n > int64(len(s.all)) {
			t.Errorf("%d commits of batches of %v", n, s.all)
		}
	}, databases.Pgx, databases.Maria)
}

// TestBatchOfUnknownOutcome: the messages of a batch whose commit was not answered are retried, not
// handled alone, and none counts as a failure.
func TestBatchOfUnknownOutcome(t *testing.T) {
	eachDB(t, func(t *testing.T, db *databases.DB) {
		for n := range 9 {
			addIn(t, db, queue.Message{Key: fmt.Sprint(n)})
		}
		var s sizes
		began := make(chan struct{})
		lossy := databases.Unanswered(db, func() bool { return true })
		c := consume(t, queue.FromTable(db, table, nil), queue.InTxBatch(lossy, func(_ context.Context, _ driver.SQL, all []queue.Received) error {
			s.add(len(all))
			if len(all) == 1 {
				<-began // while the others gather
			}
			return nil
		}), queue.Options{Failing: queue.Pause, Attempts: 1})
		testbed.Eventually(t, "all are leased", bound, func() bool {
			return databases.One[int64](t, db, `select count(*) from interlock_queue_group where owner <> ''`) == 9
		})
		close(began)
		testbed.Eventually(t, "all messages are gone", bound, func() bool {
			return databases.One[int64](t, db, `select count(*) from interlock_queue_group where ready_at < 4611686018427387904`) == 0
		})
		ok(t, c.Close(t.Context()))
		n := 0
		for _, size := range s.all {
			n += size
		}
		if parked := databases.One[int64](t, db, `select count(*) from interlock_queue_group where state <> 0`); n != 9 || parked != 0 {
			t.Errorf("batches of %v, %d keys parked", s.all, parked)
		}
	}, databases.Pgx)
}

// TestFinishMany: one call finishes all messages or none.
func TestFinishMany(t *testing.T) {
	eachDB(t, func(t *testing.T, db *databases.DB) {
		addIn(t, db, queue.Message{ID: "1", Key: "a"}, queue.Message{ID: "2", Key: "b"}, queue.Message{ID: "3"})
		c, err := queue.FromTable(db, table, nil).Join(t.Context(), "q", driver.QueueOptions{})
		ok(t, err)
		some := receive(t, c, 3)
		finish := func(all ...queue.Received) error {
			tx := db.Begun(t, driver.SessionIsolation)
			defer func() { ok(t, tx.Commit(t.Context())) }()
			if err := queue.Finish(t.Context(), tx, all...); err != nil {
				ok(t, tx.Rollback(t.Context()))
				tx = db.Begun(t, driver.SessionIsolation)
				return err
			}
			return nil
		}
		rows := func() int64 { return databases.One[int64](t, db, `select count(*) from interlock_queue`) }
		db.Exec(t, `update interlock_queue_group set token = token + 1 where lane = `+fmt.Sprint(databases.One[int64](t, db, `select lane from interlock_queue where message_id = '2'`)))
		if err := finish(some...); !errors.Is(err, interlock.ErrLost) || interlock.Kind(err) != interlock.Definite || rows() != 3 {
			t.Errorf("one claim is lost: %v, %d rows", err, rows())
		}
		some = slices.DeleteFunc(some, func(m queue.Received) bool { return m.ID == "2" })
		ok(t, finish(some...))
		if err := finish(some[0]); !errors.Is(err, interlock.ErrLost) || rows() != 1 {
			t.Errorf("finished twice: %v, %d rows", err, rows())
		}
		ok(t, finish())
		ok(t, c.Close(t.Context()))
	}, databases.Pgx, databases.Maria)
	q := memory.NewQueue()
	ok(t, q.Add("q", queue.Message{ID: "1"}))
	c, err := q.Join(t.Context(), "q", driver.QueueOptions{})
	ok(t, err)
	if err := queue.Finish(t.Context(), nil, receive(t, c, 1)...); interlock.Kind(err) != interlock.Bug {
		t.Errorf("in memory: %v", err)
	}
	ok(t, c.Close(t.Context()))
}

// receive receives messages, n at most.
func receive(t *testing.T, c driver.QueueConsumer, n int) (all []queue.Received) {
	some, err := c.Receive(t.Context(), driver.QueueLimit{Messages: n, Bytes: 100})
	ok(t, err)
	for _, m := range some {
		all = append(all, *m)
	}
	return all
}

// TestFailingInTx: the policy for failures applies to handlers in transactions.
func TestFailingInTx(t *testing.T) {
	eachDB(t, func(t *testing.T, db *databases.DB) {
		addIn(t, db, queue.Message{ID: "1", Key: "a"})
		c := consume(t, queue.FromTable(db, table, nil), queue.InTx(db, func(context.Context, driver.SQL, queue.Received) error {
			return errors.New("bad")
		}), queue.Options{Failing: queue.Skip, Attempts: 2})
		testbed.Eventually(t, "it is a dead letter", bound, func() bool {
			return databases.One[int64](t, db, `select count(*) from interlock_queue_dead`) == 1
		})
		ok(t, c.Close(t.Context()))
	}, databases.Pgx)
}

// TestBatchWithInbox: the queue is in another system. An inbox in the database of the effects prevents
// second effects of repeated messages and of batches whose outcome was lost.
func TestBatchWithInbox(t *testing.T) {
	eachDB(t, func(t *testing.T, db *databases.DB) {
		inbox := once.Inbox{Consumer: "billing"}
		db.Do(t, inbox.Create)
		q := memory.NewQueue()
		fill(t, q, 5, "a", "b", "c", "d", "e", "f")
		ok(t, q.Add("q", queue.Message{ID: "a0", Key: "again"}, queue.Message{ID: "a1", Key: "other", Payload: []byte("another payload")}))
		var lost atomic.Int64
		c := consume(t, q, queue.Batch(func(ctx context.Context, all []queue.Received) error {
			var messages []once.Message
			for _, m := range all {
				messages = append(messages, once.Message{ID: m.ID, Payload: m.Payload})
			}
			outcomes, err := once.BatchTx(ctx, db, inbox, messages, func(ctx context.Context, tx driver.SQL, fresh []once.Message) error {
				for _, m := range fresh {
					if err := effect(ctx, tx, queue.Received{QueueMessage: queue.Message{ID: m.ID}}); err != nil {
						return err
					}
				}
				return nil
			})
			switch {
			case slices.Contains(outcomes, once.Mismatched):
				return queue.Dead(errors.New("another payload"))
			case err == nil && lost.Add(1)%3 == 0:
				return errors.New("the answer is lost")
			}
			return err
		}), queue.Options{})
		testbed.Eventually(t, "all messages are handled", bound, func() bool {
			return databases.One[int64](t, db, `select count(distinct id) from effect`) == 30 && len(q.DeadLetters("q")) == 1
		})
		ok(t, c.Close(t.Context()))
		wantEffects(t, db, 30)
	}, databases.Pgx, databases.Maria)
}

// TestOffsetsInDatabase: the database keeps the last offset of each key, in the transaction of the
// effect. A message that is delivered again has no second effect.
func TestOffsetsInDatabase(t *testing.T) {
	eachDB(t, func(t *testing.T, db *databases.DB) {
		offsets := version.Table{}
		db.Do(t, offsets.Create)
		q := memory.NewQueue()
		fill(t, q, 5, "a", "b", "c", "d", "e", "f")
		var lost atomic.Int64
		c := consume(t, q, func(ctx context.Context, m queue.Received) error {
			err := db.Try(ctx, func(ctx context.Context, tx driver.SQL) error {
				// On Kafka the entity begins with m.Claim.Name(), the partition.
				change := version.Change{Entity: m.Queue + "/" + m.Key, Stamp: version.Stamp{Version: m.Place + 1}}
				if outcome, err := offsets.Apply(ctx, tx, change); err != nil || outcome != version.Applied {
					return err
				}
				return effect(ctx, tx, m)
			})
			if err == nil && lost.Add(1)%3 == 0 {
				return errors.New("the answer is lost")
			}
			return err
		}, queue.Options{})
		testbed.Eventually(t, "all messages are handled", bound, func() bool {
			return databases.One[int64](t, db, `select count(distinct id) from effect`) == 30
		})
		ok(t, c.Close(t.Context()))
		if wantEffects(t, db, 30); lost.Load() <= 30 {
			t.Errorf("30 messages were handled %d times", lost.Load())
		}
	}, databases.Pgx, databases.Maria)
}
