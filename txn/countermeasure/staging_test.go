package countermeasure_test

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/countermeasure"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
)

func (w world) staged(transaction string, rows ...[]any) {
	w.Helper()
	w.DB.Do(w.T, func(ctx context.Context, db driver.SQL) error {
		for _, row := range rows {
			if err := w.stage.Stage(ctx, db, transaction, row...); err != nil {
				return err
			}
		}
		return nil
	})
}

// createAndPublish creates the table of s, and stages and publishes rows in one transaction.
func (w world) createAndPublish(s countermeasure.Staging, transaction string, rows ...[]any) (n int64) {
	w.Helper()
	w.DB.Do(w.T, s.Create)
	w.DB.Do(w.T, func(ctx context.Context, db driver.SQL) (err error) {
		for _, row := range rows {
			if err := s.Stage(ctx, db, transaction, row...); err != nil {
				return err
			}
		}
		n, err = s.Publish(ctx, db, transaction)
		return err
	})
	return n
}

func (w world) published(transaction string) (n int64, err error) {
	err = w.in(func(ctx context.Context, db driver.SQL) (err error) {
		n, err = w.stage.Publish(ctx, db, transaction)
		return err
	})
	return n, err
}

func (w world) dropped(transaction string) (n int64) {
	w.Helper()
	w.DB.Do(w.T, func(ctx context.Context, db driver.SQL) (err error) {
		n, err = w.stage.Drop(ctx, db, transaction)
		return err
	})
	return n
}

// items returns the items of readers: price and name of each, and the column that is not staged.
func (w world) items() string {
	w.Helper()
	var all []string
	w.DB.Do(w.T, func(ctx context.Context, db driver.SQL) error {
		query := on(w, `concat(id, ' ', price, ' ', name, ' ', coalesce(note, '-'))`, `concat(id, ' ', price, ' ', coalesce(name, '-'), ' ', coalesce(note, '-'))`)
		return db.Query(ctx, `select `+query+` from item order by id`, nil, func(scan func(...any) error) error {
			var item string
			err := scan(&item)
			all = append(all, item)
			return err
		})
	})
	return strings.Join(all, ", ")
}

// testStagedRowsAreSeenAtOnce: staged rows are visible together when they are published, or never.
func testStagedRowsAreSeenAtOnce(w world) {
	want := func(items string) {
		w.Helper()
		txntest.Equal(w, "readers see", w.items(), items)
	}
	w.staged("s1", []any{1, 11, "stool"}, []any{2, 22, "table"})
	w.staged("s1", []any{2, 20, "desk"}) // again, and otherwise
	w.staged("s2", []any{1, 99, "throne"}, []any{3, 33, "bed"})
	want("1 10 chair kept")
	if n, err := w.published("s1"); n != 2 || err != nil {
		w.Errorf("%d published, %v", n, err)
	}
	want("1 11 stool kept, 2 20 desk -")
	for range 2 { // the second time after a change by others
		w.Exec(w.T, `update item set price = 12 where id = 1`)
		if n, err := w.published("s1"); n != 0 || err != nil {
			w.Errorf("%d published again, %v", n, err)
		}
	}
	if a, b := w.dropped("s2"), w.dropped("s2"); a != 2 || b != 0 {
		w.Errorf("%d and %d dropped", a, b)
	}
	if n, err := w.published("s2"); n != 0 || err != nil {
		w.Errorf("%d published of what was dropped, %v", n, err)
	}
	want("1 12 stool kept, 2 20 desk -")
}

// testPublishedOnce: of two publications of the same, the second finds nothing, and does not
// overwrite rows that another saga has published in between.
func testPublishedOnce(w world) {
	for _, level := range []driver.Isolation{driver.ReadCommitted, driver.RepeatableRead} {
		w.staged("s1", []any{1, 11, "stool"})
		w.staged("s2", []any{1, 12, "bench"})
		first := w.Begun(w.T, driver.ReadCommitted)
		if n, err := w.stage.Publish(w.Context(), first, "s1"); n != 1 || err != nil {
			w.Fatal(n, err)
		}
		again := w.Begun(w.T, level)
		var n int64
		second := testbed.Later(w, bound, func() (err error) {
			if n, err = w.stage.Publish(context.Background(), again, "s1"); err != nil {
				return err
			}
			return again.Commit(context.Background())
		})
		w.blocked("who publishes it again")
		if n, err := w.stage.Publish(w.Context(), first, "s2"); n != 1 || err != nil {
			w.Fatal(n, err)
		}
		ok(w, first.Commit(w.Context()))
		if err := second(); interlock.Kind(err) != interlock.Retryable && err != nil || n != 0 {
			w.Errorf("%v: %d published again, %v", level, n, err)
		}
		ok(w, again.Rollback(w.Context()))
		if p := w.price(); p != 12 {
			w.Errorf("%v: the price is %d", level, p)
		}
	}
}

// testPublishedUnderItsKey: a row that collides with another one by a key other than Key is refused,
// and overwrites nothing.
func testPublishedUnderItsKey(w world) {
	w.Exec(w.T, `create table guest (id bigint primary key, room bigint unique, name varchar(20))`)
	w.Exec(w.T, `insert into guest values (1, 101, 'first')`)
	guests := countermeasure.Staging{Table: "guest", Key: []string{"id"}, Columns: []string{"room", "name"}}
	w.DB.Do(w.T, guests.Create)
	for id, rows := range map[string][][]any{
		"one that is there": {{2, 101, "second"}},
		"each other":        {{3, 103, "third"}, {4, 103, "fourth"}},
		"one of two":        {{1, 105, "first"}, {5, 105, "fifth"}},
	} {
		err := w.in(func(ctx context.Context, db driver.SQL) error {
			for _, row := range rows {
				if err := guests.Stage(ctx, db, id, row...); err != nil {
					return err
				}
			}
			n, err := guests.Publish(ctx, db, id)
			if err == nil {
				w.Errorf("%s: %d published", id, n)
			}
			return err
		})
		wantKind(w, err, interlock.Definite, nil)
	}
	if n := databases.One[int64](w.T, w.DB, `select count(*) from guest where id = 1 and room = 101 and name = 'first'`); n != 1 {
		w.Error("the guest who was there is not any more")
	}
	txntest.Equal(w, "guests", databases.One[int64](w.T, w.DB, `select count(*) from guest`), 1)
}

// testOtherSchema: tables may be in another schema than the session's.
func testOtherSchema(w world) {
	schema := "elsewhere_" + databases.One[string](w.T, w.DB, `select `+on(w, "current_database()", "database()"))
	w.Exec(w.T, `create schema `+schema)
	defer w.Exec(w.T, `drop schema `+schema+on(w, " cascade", ""))
	w.Exec(w.T, `create table `+schema+`.item (id bigint primary key, price bigint)`)
	s := countermeasure.Staging{Table: schema + ".item", Key: []string{"id"}, Columns: []string{"price"}}
	txntest.Equal(w, "published", w.createAndPublish(s, "t", []any{1, 7}), 1)
	txntest.Equal(w, "price", databases.One[int64](w.T, w.DB, `select price from `+schema+`.item`), 7)
}

// testRacingPublishers: readers see both rows of a saga, or none, with any publisher.
func testRacingPublishers(w world) {
	const sagas = 12
	w.Exec(w.T, `insert into item values (2, 10, 'chair', '')`)
	stop := make(chan struct{})
	torn := make(chan string, 1)
	reader := testbed.Later(w, bound, func() error {
		for {
			select {
			case <-stop:
				return nil
			default:
			}
			n, err := int64(0), error(nil)
			err = w.in(func(ctx context.Context, db driver.SQL) (err error) {
				n, err = databases.Value[int64](ctx, db, `select count(distinct price) from item where id in (1, 2)`)
				return err
			})
			if err != nil {
				return err
			}
			if n != 1 {
				torn <- "half of a saga was read"
				return nil
			}
		}
	})
	var running sync.WaitGroup
	for n := range sagas {
		running.Go(func() {
			id := string(rune('a' + n))
			w.staged(id, []any{1, 100 + n, id})
			w.staged(id, []any{2, 100 + n, id})
			for {
				got, err := w.published(id)
				if err == nil && got == 2 {
					return
				}
				if interlock.Kind(err) != interlock.Retryable || err == nil {
					w.Errorf("%d, %v", got, err)
					return
				}
			}
		})
	}
	running.Wait()
	close(stop)
	ok(w, reader())
	if len(torn) > 0 {
		w.Error(<-torn)
	}
	if n := databases.One[int64](w.T, w.DB, `select count(*) from item_staged`); n != 0 || w.price() < 100 {
		w.Errorf("%d rows are left, the price is %d", n, w.price())
	}
}

// testLeftovers: staged rows are found by their age, except those of a running saga.
func testLeftovers(w world) {
	leftover := func(age time.Duration, limit int) (all []string) {
		w.DB.Do(w.T, func(ctx context.Context, db driver.SQL) (err error) {
			all, err = w.stage.Leftover(ctx, db, age, limit)
			return err
		})
		return all
	}
	w.staged("old", []any{1, 11, "a"}, []any{2, 11, "a"})
	w.staged("goes on", []any{1, 12, "b"})
	w.Exec(w.T, `update item_staged set staged_at = staged_at - interval `+on(w, `'2 hours'`, `2 hour`))
	w.staged("goes on", []any{2, 12, "b"})
	w.staged("new", []any{1, 13, "c"})
	if got := leftover(time.Hour, 9); len(got) != 1 || got[0] != "old" {
		w.Errorf("%q", got)
	}
	if got := leftover(0, 2); len(got) != 2 || got[0] != "old" {
		w.Errorf("%q", got)
	}
}

// testBadStaging: invalid arguments return a clear error.
func testBadStaging(w world) {
	stage := func(s countermeasure.Staging, transaction string, values ...any) error {
		return w.in(func(ctx context.Context, db driver.SQL) error { return s.Stage(ctx, db, transaction, values...) })
	}
	for name, err := range map[string]error{
		"no transaction":  stage(w.stage, "", 1, 2, "x"),
		"a long one":      stage(w.stage, strings.Repeat("x", driver.MaxTransaction+1), 1, 2, "x"),
		"too few values":  stage(w.stage, "t", 1, 2),
		"too many values": stage(w.stage, "t", 1, 2, "x", 4),
		"no key":          stage(countermeasure.Staging{Table: "item", Columns: []string{"price"}}, "t", 1),
		"no table":        stage(countermeasure.Staging{Key: []string{"id"}}, "t", 1),
		"an empty column": stage(countermeasure.Staging{Table: "item", Key: []string{""}}, "t", 1),
		"no database":     w.stage.Stage(w.Context(), nil, "t", 1, 2, "x"),
		"a negative age": w.in(func(ctx context.Context, db driver.SQL) error {
			_, err := w.stage.Leftover(ctx, db, -1, 1)
			return err
		}),
	} {
		if err == nil || interlock.Kind(err) != interlock.Bug {
			w.Errorf("%s: %v", name, err)
		}
	}
	err := stage(countermeasure.Staging{Table: "item", Key: []string{"id"}, Staged: "nowhere"}, "t", 1)
	if wantKind(w, err, interlock.Definite, nil); !strings.Contains(err.Error(), "Create") {
		w.Error(err)
	}
	if err := stage(w.stage, "t", 1, "no number", "x"); err == nil || interlock.Kind(err) == interlock.Retryable {
		w.Errorf("%v", err)
	}
	txntest.Equal(w, "staged rows", databases.One[int64](w.T, w.DB, `select count(*) from item_staged`), 0)
}

// testOddNames: names of columns are taken as they are, and values are data.
func testOddNames(w world) {
	odd := on(w, `"what? {key}"`, "`what? {key}`")
	w.Exec(w.T, `create table odd (id bigint primary key, `+odd+` bigint)`)
	s := countermeasure.Staging{Table: "odd", Key: []string{"id"}, Columns: []string{"what? {key}"}, Staged: "other_place"}
	txntest.Equal(w, "published", w.createAndPublish(s, "'; drop table odd --", []any{1, 7}), 1)
	txntest.Equal(w, "the column", databases.One[int64](w.T, w.DB, `select `+odd+` from odd`), 7)
	sum := countermeasure.Sum{Table: "odd", Key: "id", Column: "what? {key}"}
	ok(w, w.add(sum, "1", 3))
	w.createAndPublish(countermeasure.Staging{Table: "odd", Key: []string{"id"}, Staged: "only_keys"}, "t", []any{1}, []any{2})
	txntest.Equal(w, "rows", databases.One[int64](w.T, w.DB, `select count(*) from odd`), 2)
}
