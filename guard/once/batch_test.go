package once_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/once"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// effectsOf adds a row of each message, in one statement.
func effectsOf(ctx context.Context, tx driver.SQL, fresh []once.Message) error {
	var rows []string
	for _, m := range fresh {
		rows = append(rows, "('"+m.ID+"')")
	}
	_, err := tx.Exec(ctx, `insert into effect (message) values `+strings.Join(rows, ","))
	return err
}

func messages(from, to int) (all []once.Message) {
	for n := from; n < to; n++ {
		all = append(all, message(n))
	}
	return all
}

func ids(all []once.Message) (ids []string) {
	for _, m := range all {
		ids = append(ids, m.ID)
	}
	return ids
}

func testBatch(t *testing.T, w world) {
	outcome, err := w.deliver(t.Context(), message(5))
	want(t, outcome, err, once.Done)
	other := once.Message{ID: "m7", Payload: []byte("another")}
	batch := []once.Message{message(9), message(5), message(7), message(9), {ID: "m5", Payload: []byte("another")}, message(1), other}
	var fresh []string
	outcomes, err := once.BatchTx(t.Context(), w.DB, w.inbox, batch, func(ctx context.Context, tx driver.SQL, found []once.Message) error {
		fresh = ids(found)
		return effectsOf(ctx, tx, found)
	})
	ok(t, err)
	if got := fmt.Sprint(fresh); got != "[m9 m7 m1]" {
		t.Errorf("new were %s", got)
	}
	if got := fmt.Sprint(outcomes); got != "[done duplicate done duplicate mismatched done mismatched]" {
		t.Errorf("outcomes %s", got)
	}
	// A mismatch that was reported has left no trace.
	outcomes, err = once.BatchTx(t.Context(), w.DB, w.inbox, messages(5, 8), effectsOf)
	if ok(t, err); fmt.Sprint(outcomes) != "[duplicate done duplicate]" {
		t.Errorf("outcomes %v", outcomes)
	}
	outcomes, err = once.BatchTx(t.Context(), w.DB, w.inbox, messages(5, 8), func(context.Context, driver.SQL, []once.Message) error {
		t.Error("ran without anything new")
		return nil
	})
	if ok(t, err); fmt.Sprint(outcomes) != "[duplicate duplicate duplicate]" {
		t.Errorf("outcomes %v", outcomes)
	}
	outcomes, err = once.BatchTx(t.Context(), w.DB, w.inbox, nil, nothingNew)
	if ok(t, err); len(outcomes) != 0 {
		t.Errorf("an empty batch: %v", outcomes)
	}
	for n := range 10 {
		w.wantEffects(t, message(n).ID, int64(strings.Count("m1 m5 m6 m7 m9", message(n).ID)))
	}
}

func testLargeBatch(t *testing.T, w world) {
	const n = 1201
	_, err := once.BatchTx(t.Context(), w.DB, w.inbox, messages(700, 720), effectsOf)
	ok(t, err)
	outcomes, err := once.BatchTx(t.Context(), w.DB, w.inbox, messages(0, n), effectsOf)
	ok(t, err)
	for i, outcome := range outcomes {
		wanted := once.Done
		if i >= 700 && i < 720 {
			wanted = once.Duplicate
		}
		if outcome != wanted {
			t.Fatalf("message %d: %v", i, outcome)
		}
	}
	if got := databases.One[int64](t, w.DB, `select count(*) from effect`); got != n {
		t.Errorf("%d effects", got)
	}
	if got := databases.One[int64](t, w.DB, `select count(distinct message) from effect`); got != n {
		t.Errorf("effects of %d messages", got)
	}
}

// testBatchesInAnyOrder: eight consumers get overlapping batches, shuffled. They wait for each
// other's records; none may be the victim of a deadlock.
func testBatchesInAnyOrder(t *testing.T, w world) {
	const rounds, size = 6, 60
	for round := range rounds {
		all := messages(round*size, (round+1)*size)
		var running sync.WaitGroup
		for worker := range 8 {
			random := rand.New(rand.NewPCG(uint64(round), uint64(worker)))
			batch := slices.Clone(all)
			random.Shuffle(len(batch), func(i, j int) { batch[i], batch[j] = batch[j], batch[i] })
			batch = batch[:size/2+random.IntN(size/2)]
			running.Go(func() {
				if _, err := once.BatchTx(t.Context(), w.DB, w.inbox, batch, effectsOf); err != nil {
					t.Errorf("round %d: %v", round, err)
				}
			})
		}
		running.Wait()
	}
	total := databases.One[int64](t, w.DB, `select count(*) from effect`)
	if distinct := databases.One[int64](t, w.DB, `select count(distinct message) from effect`); distinct != total || total < rounds*size/2 {
		t.Errorf("%d effects of %d messages", total, distinct)
	}
}

// leaving is a transaction whose caller leaves after its first statement.
type leaving struct {
	driver.SQL
	leave func()
}

func (l leaving) Query(ctx context.Context, query string, args []any, each func(func(...any) error) error) error {
	defer l.leave()
	return l.SQL.Query(ctx, query, args, each)
}

// testHalfABatch: the first part of a batch is recorded, and the second one is not,
// so that the effect does not begin.
func testHalfABatch(t *testing.T, w world) {
	tx := w.Begun(t, driver.SessionIsolation)
	ctx, cancel := context.WithCancel(t.Context())
	outcomes, err := w.inbox.Batch(ctx, leaving{tx, cancel}, messages(0, 501), func(context.Context, []once.Message) error {
		t.Error("the effect began")
		return nil
	})
	if err == nil || outcomes != nil {
		t.Errorf("%v, %v", outcomes, err)
	}
	if tx.Commit(t.Context()) == nil {
		t.Error("it was committed")
	}
	outcomes, err = once.BatchTx(t.Context(), w.DB, w.inbox, messages(0, 2), effectsOf)
	if ok(t, err); fmt.Sprint(outcomes) != "[done done]" {
		t.Errorf("%v", outcomes)
	}
}

func testBatchCosts(t *testing.T, w world) {
	db := &databases.Counted{BeginnerAt: w.DB}
	deliver := func(what string, from, to int, statements, commits int64) {
		t.Helper()
		db.Reset()
		_, err := once.BatchTx(t.Context(), db, w.inbox, messages(from, to), effectsOf)
		ok(t, err)
		if db.Statements.Load() != statements || db.Commits.Load() != commits {
			t.Errorf("%s: %d statements, %d commits, want %d, %d", what, db.Statements.Load(), db.Commits.Load(), statements, commits)
		}
	}
	look := int64(0)
	if w.Dialect == driver.Postgres {
		look = 1
	}
	deliver("500 new ones", 0, 500, 1+1, 1)
	deliver("501 new ones", 500, 1001, 2+1, 1)
	deliver("half of them new", 800, 1200, 1+look+1, 1)
	deliver("none new", 0, 500, 1+look, 0)
}
