package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// A history has the committed messages, in the order of the commits of each key.
type history struct {
	mu   sync.Mutex
	keys map[string][]string
}

// produce adds messages to keys in slow transactions that commit or roll back. It records the
// messages before the transaction ends, while no other transaction can add to the key.
func (h *history) produce(ctx context.Context, db *databases.DB, random *rand.Rand, who string, transactions int) error {
	for n := range transactions {
		keys := []string{fmt.Sprint("key", random.IntN(3)), fmt.Sprint("key", random.IntN(3)), ""}[random.IntN(2):]
		var messages []driver.Message
		for i, key := range keys {
			messages = append(messages, driver.Message{ID: fmt.Sprintf("%s/%d/%d", who, n, i), Topic: "t", Key: key})
		}
		fails := random.IntN(5) == 0
		pause := time.Duration(random.IntN(15)) * time.Millisecond
		err := db.Try(ctx, func(ctx context.Context, sql driver.SQL) error {
			if err := box.Add(ctx, sql, messages...); err != nil {
				return err
			}
			time.Sleep(pause) // the commit is late
			if fails {
				return context.Canceled
			}
			h.enter(messages)
			return nil
		})
		if err != nil && !fails {
			return err
		}
	}
	return nil
}

func (h *history) enter(messages []driver.Message) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range messages {
		h.keys[m.Key] = append(h.keys[m.Key], m.ID)
	}
}

// judge compares the delivered messages with the committed ones.
func (h *history) judge(t *testing.T, messages []driver.Message) {
	t.Helper()
	got := map[string][]string{}
	seen := map[string]bool{}
	for _, m := range messages {
		if !seen[m.ID] {
			seen[m.ID] = true
			got[m.Key] = append(got[m.Key], m.ID)
		}
	}
	for key, want := range h.keys {
		if key == "" {
			slices.Sort(want)
			slices.Sort(got[key])
		}
		if !slices.Equal(got[key], want) {
			t.Errorf("key %q: delivered\n%v, committed\n%v", key, got[key], want)
		}
	}
}

func (h *history) total() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, ids := range h.keys {
		n += len(ids)
	}
	return n
}

// testLateCommits: a row whose transaction commits after later ids were delivered
// is delivered too, and keys are in the order of their commits.
func testLateCommits(t *testing.T, db *databases.DB) {
	h := &history{keys: map[string][]string{}}
	var sink memory.Sink
	random := rand.New(rand.NewPCG(1, 2))
	sink.Refuse(func(driver.Message) error { // some answers are lost
		if random.IntN(30) == 0 {
			return errors.New("no answer")
		}
		return nil
	})
	serve(t, relay(t, db, &sink, outbox.Options{Batch: 4}), grant(1))

	late := db.Begun(t, driver.SessionIsolation)
	ok(t, box.Add(t.Context(), late, driver.Message{ID: "late", Topic: "t"}, driver.Message{ID: "late, of a key", Topic: "t", Key: "own"}))
	h.enter([]driver.Message{{ID: "late"}, {ID: "late, of a key", Key: "own"}})
	var producers sync.WaitGroup
	for p := range 6 {
		producers.Go(func() {
			if err := h.produce(t.Context(), db, rand.New(rand.NewPCG(uint64(p), 7)), fmt.Sprint("producer", p), 25); err != nil {
				t.Error(err)
			}
		})
	}
	producers.Wait()
	delivered(t, &sink, h.total()-2)
	ok(t, late.Commit(t.Context()))
	delivered(t, &sink, h.total())
	empty(t, db)
	h.judge(t, sink.Messages())
}

// testLongTransactions: an open transaction, whether it has added
// messages or not, delays only those that add to the same key.
func testLongTransactions(t *testing.T, db *databases.DB) {
	var sink memory.Sink
	open := db.Begun(t, driver.RepeatableRead)
	_, err := databases.Value[int64](t.Context(), open, `select count(*) from interlock_outbox`)
	ok(t, err)
	ok(t, box.Add(t.Context(), open, keyed("held", 1, 2)...))
	serve(t, relay(t, db, &sink, outbox.Options{}), grant(1))
	for i := range 10 {
		add(t, db, keyed("free", 20*i+1, 20*i+20)...)
		delivered(t, &sink, 20*i+20)
	}
	inOrder(t, "free", firsts(sink.Messages()), 200)
	ok(t, open.Commit(t.Context()))
	inOrder(t, "held", delivered(t, &sink, 202), 2)
}

// testIDsAfterLocks: a transaction that waits for a key has no id yet.
func testIDsAfterLocks(t *testing.T, db *databases.DB) {
	first := db.Begun(t, driver.SessionIsolation)
	ok(t, box.Add(t.Context(), first, slices.Concat(keyed("b", 1, 1), keyed("a", 1, 1))...))
	second := make(chan error, 1)
	go func() {
		second <- db.Try(t.Context(), func(ctx context.Context, sql driver.SQL) error {
			return box.Add(ctx, sql, slices.Concat(keyed("c", 1, 1), keyed("a", 2, 2), keyed("d", 1, 1))...)
		})
	}()
	blocked(t, db)
	add(t, db, keyed("e", 1, 1)...) // no transaction waits for this one
	ok(t, first.Commit(t.Context()))
	ok(t, <-second)
	id := func(message string) int64 {
		return databases.One[int64](t, db, `select id from interlock_outbox where message_id = '`+message+`'`)
	}
	e := id("e/1")
	for _, m := range []string{"c/1", "a/2", "d/1"} {
		if id(m) < e {
			t.Errorf("%s was numbered %d, while it waited, and %d came meanwhile", m, id(m), e)
		}
	}
	if id("a/1") > e || id("a/2") <= id("c/1") || id("d/1") <= id("a/2") {
		t.Error("ids of one call are not in its order")
	}
}

// blocked waits until a session of the database waits for a lock.
func blocked(t *testing.T, db *databases.DB) {
	t.Helper()
	testbed.Eventually(t, "a session waits", bound, func() bool { return db.Waiting(t) > 0 })
}

// testCrossedAdds: transactions that add to the same keys by one call each never deadlock; by
// several calls they may, which is Retryable.
func testCrossedAdds(t *testing.T, db *databases.DB) {
	var adding sync.WaitGroup
	for p := range 8 {
		adding.Go(func() {
			random := rand.New(rand.NewPCG(uint64(p), 3))
			for n := range 15 {
				var messages []driver.Message
				for _, key := range random.Perm(6)[:4] {
					messages = append(messages, driver.Message{ID: fmt.Sprintf("%d/%d/%d", p, n, key), Topic: "t", Key: fmt.Sprint(key)})
				}
				err := db.Try(t.Context(), func(ctx context.Context, sql driver.SQL) error { return box.Add(ctx, sql, messages...) })
				// InnoDB may find a deadlock if several transactions insert a row first.
				if err != nil && (db.Dialect == driver.Postgres || interlock.Kind(err) != interlock.Retryable) {
					t.Error(err)
				}
			}
		})
	}
	adding.Wait()
	one, other := db.Begun(t, driver.SessionIsolation), db.Begun(t, driver.SessionIsolation)
	ok(t, box.Add(t.Context(), one, keyed("x", 1, 1)...))
	ok(t, box.Add(t.Context(), other, keyed("y", 1, 1)...))
	crossed := make(chan error, 2)
	go func() {
		crossed <- errors.Join(box.Add(t.Context(), one, keyed("y", 2, 2)...), one.Rollback(t.Context()))
	}()
	go func() {
		crossed <- errors.Join(box.Add(t.Context(), other, keyed("x", 2, 2)...), other.Rollback(t.Context()))
	}()
	err := errors.Join(<-crossed, <-crossed)
	wantKind(t, err, interlock.Retryable)
}
