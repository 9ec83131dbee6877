package saga

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ram is a database in memory that holds a journal and counts effects, for tests of this
// package's decisions. Tests on real databases check durability.
type ram struct {
	store   *memory.Journal
	commits []func(commit func() error) error // of the first commits; nil commits
	appends []error                           // of the first appends
	effects []string
}

type ramTx struct {
	driver.Tx[driver.SQL]
	ram     *ram
	keeps   []func(context.Context) error
	appends []driver.Append
	effects []string
}

func (r *ram) Begin(context.Context) (driver.Tx[driver.SQL], error) { return &ramTx{ram: r}, nil }

// AppendIn appends when the transaction of db commits.
func (r *ram) AppendIn(ctx context.Context, db driver.SQL, a driver.Append) error {
	if len(r.appends) > 0 {
		err := r.appends[0]
		if r.appends = r.appends[1:]; err != nil {
			return err
		}
	}
	head, _, err := r.store.Read(ctx, a.Transaction, 0)
	if err == nil && head.Position != a.After {
		return &driver.PositionError{Transaction: a.Transaction, After: a.After, Found: head}
	}
	tx := db.(*ramTx)
	tx.appends = append(tx.appends, a)
	return err
}

// KeepIn keeps a payload when the transaction of db commits.
func (r *ram) KeepIn(_ context.Context, db driver.SQL, id string, sum, payload []byte) error {
	tx := db.(*ramTx)
	tx.keeps = append(tx.keeps, func(ctx context.Context) error { return r.store.PutPayload(ctx, id, sum, payload) })
	return nil
}

func (r *ram) FirstIn(ctx context.Context, _ driver.SQL, id string) (head driver.Head, first driver.Record, err error) {
	head, records, err := r.store.Read(ctx, id, 0)
	if len(records) > 0 {
		first = records[0]
	}
	return head, first, err
}

func (r *ram) PayloadIn(ctx context.Context, _ driver.SQL, id string, sum []byte) ([]byte, error) {
	return r.store.Payload(ctx, id, sum)
}

func (r *ram) ShardsIn(ctx context.Context, _ driver.SQL) (int, error) {
	return r.store.Shards(ctx, 0, 0)
}

func (t *ramTx) Rollback(context.Context) error { return nil }

func (t *ramTx) Commit(ctx context.Context) error {
	commit := func() error {
		t.ram.effects = append(t.ram.effects, t.effects...)
		for _, keep := range t.keeps {
			if err := keep(ctx); err != nil {
				return err
			}
		}
		return errors.Join(t.ram.store.Append(ctx, t.appends)...)
	}
	if len(t.ram.commits) == 0 {
		return commit()
	}
	around := t.ram.commits[0]
	if t.ram.commits = t.ram.commits[1:]; around == nil {
		return commit()
	}
	return around(commit)
}

// step returns a step with an effect of its name, which then returns the errors in fails.
func (r *ram) step(name string, calls *int, fails ...error) Action[string, string] {
	return StepTx(name, r, r, func(_ context.Context, tx driver.Tx[driver.SQL], input string) (string, error) {
		tx.(*ramTx).effects = append(tx.(*ramTx).effects, name)
		if *calls++; *calls <= len(fails) && fails[*calls-1] != nil {
			return "", fails[*calls-1]
		}
		return input + ">" + name, nil
	})
}

func kindOf(kind interlock.ErrorKind) error {
	return &interlock.Error{Op: "commit", Driver: "ram", Kind: kind, Err: errors.New("no answer")}
}

// TestStepInTransactionIsDoneOnce: for any outcome of its commit and of its record, with the
// state before it, and without a wait if the journal has the outcome.
func TestStepInTransactionIsDoneOnce(t *testing.T) {
	elsewhere := &driver.PositionError{Transaction: "1", After: 1, Found: driver.Head{Position: 2}}
	for name, c := range map[string]struct {
		commits []func(commit func() error) error
		appends []error
		fails   []error
		calls   int
		waits   bool
	}{
		"answered":                         {calls: 1},
		"committed and not answered":       {commits: []func(func() error) error{func(commit func() error) error { return errors.Join(commit(), kindOf(interlock.Uncertain)) }}, calls: 1},
		"neither":                          {commits: []func(func() error) error{func(func() error) error { return kindOf(interlock.Uncertain) }}, calls: 2},
		"not committed":                    {commits: []func(func() error) error{func(func() error) error { return kindOf(interlock.Retryable) }}, calls: 2, waits: true},
		"its record is refused":            {appends: []error{elsewhere}, calls: 2},
		"its record is not taken":          {appends: []error{errNetwork}, calls: 2, waits: true},
		"it fails":                         {fails: []error{errNetwork, Retry(errNetwork)}, calls: 3, waits: true},
		"its transaction is of an unknown": {fails: []error{kindOf(interlock.Uncertain)}, calls: 2, waits: true},
	} {
		runBubble(t, name, func(t *testing.T) {
			g, db, calls := &target{}, &ram{store: memory.NewJournal(), commits: c.commits, appends: c.appends}, 0
			d := Define("order", g.undoable("a"), db.step("b", &calls, c.fails...).Uncompensable(), g.act("p").Pivot())
			r := serve(t, &watched{Journal: db.store}, 1, nil, d)
			from := time.Now()
			o, err := d.Do(t.Context(), r.engine, "1", "in")
			ok(t, err)
			same(t, "effects", db.effects, "b")
			same(t, "other effects", g.did(), "1/a/do", "1/p/do")
			same(t, "records", r.records(t, "1"), "begin:", "sent:a", "sent:b", "done:a", "done:b", "sent:p", "done:p", "decide:commit", "end:")
			if out := string(o.Outputs.All()["b"]); calls != c.calls || out != `"in>b"` || time.Since(from) > 0 != c.waits {
				t.Errorf("%d calls in %v, output %s", calls, time.Since(from), out)
			}
		})
	}
}

// TestStepInTransactionUndone: it is undone with its output if it was done, and not at all
// if it failed, because then it had no effect.
func TestStepInTransactionUndone(t *testing.T) {
	for name, c := range map[string]struct {
		fails  []error
		reason string
		undos  []string
	}{
		"a later one is refused":    {nil, "c: no seat", []string{"in>b"}},
		"it is refused":             {[]error{Fail(errSeat)}, "b: no seat", nil},
		"refused after it was busy": {[]error{InProgress(time.Second), Fail(errSeat)}, "b: no seat", nil},
		"nobody knows":              {always(errNetwork), "b: network", nil},
	} {
		runBubble(t, name, func(t *testing.T) {
			g, db, calls := &target{}, &ram{store: memory.NewJournal()}, 0
			var undos []string
			b := db.step("b", &calls, c.fails...).Retry(Policy{Attempts: 2}).Undo("unb", func(_ context.Context, _ string, out *string) error {
				undos = append(undos, *out)
				return nil
			})
			d := Define("order", b, g.act("c", Fail(errSeat)).Pivot())
			r := serve(t, &watched{Journal: db.store}, 1, nil, d)
			o, err := d.Do(t.Context(), r.engine, "1", "in")
			wantKind(t, err, interlock.Definite, ErrCompensated)
			if same(t, "undos", undos, c.undos...); o.Reason != c.reason || len(db.effects) != len(c.undos) {
				t.Errorf("%q after effects %v", o.Reason, db.effects)
			}
		})
	}
}

// TestStepInTransactionBadData: an input of another type, and an output that cannot be kept,
// are reported with the step's name, and nothing is committed.
func TestStepInTransactionBadData(t *testing.T) {
	bubble(t, func(t *testing.T) {
		db, calls := &ram{store: memory.NewJournal()}, 0
		typed := db.step("typed", &calls).Retry(Policy{Attempts: 2}).Uncompensable()
		large := StepTx("large", db, db, func(context.Context, driver.Tx[driver.SQL], string) (string, error) {
			calls++
			return strings.Repeat("x", driver.MaxPayload), nil
		}).Retry(Policy{Attempts: 2}).Uncompensable()
		r := serve(t, &watched{Journal: db.store}, 1, nil, Define("typed", typed), Define("large", large))
		for name, c := range map[string]struct {
			input json.RawMessage
			says  string
			calls int
		}{
			"typed": {json.RawMessage(`1`), `typed: read the input of step "typed": json: `, 0},
			"large": {json.RawMessage(`""`), `large: store the output of step "large": it has `, 2},
		} {
			calls = 0
			ok(t, r.engine.Start(t.Context(), name, name, c.input))
			o, err := r.engine.Wait(t.Context(), name)
			if wantKind(t, err, interlock.Definite, ErrCompensated); !strings.HasPrefix(o.Reason, c.says) || calls != c.calls || len(db.effects) != 0 {
				t.Errorf("%q after %d calls: %v", o.Reason, calls, db.effects)
			}
		}
	})
}

// TestStepInTransactionMisuse: a step without its function, its database or the table is
// reported when the engine is built.
func TestStepInTransactionMisuse(t *testing.T) {
	db, calls := &ram{}, 0
	act := func(context.Context, driver.Tx[driver.SQL], string) (string, error) { return "", nil }
	for name, a := range map[string]Action[string, string]{
		"function": StepTx[string, string, driver.SQL]("s", db, db, nil),
		"database": StepTx("s", nil, db, act),
		"table":    StepTx("s", db, nil, act),
	} {
		_, err := build(nil, &settings{}, Define("order", a.Pivot()))
		if wantKind(t, err, interlock.Bug, nil); err == nil || !strings.Contains(err.Error(), `step "s": it has no action`) {
			t.Errorf("without a %s: %v", name, err)
		}
	}
	group := Parallel(Stage[string](db.step("s", &calls).Uncompensable()))
	_, err := build(nil, &settings{}, Define("order", group))
	if wantKind(t, err, interlock.Bug, nil); err == nil || !strings.Contains(err.Error(), "a step in a transaction stands alone") {
		t.Errorf("in a group: %v", err)
	}
}

// TestStartInTransaction: the saga begins if the transaction commits; a second start attaches
// or is refused; and an invalid saga does not start.
func TestStartInTransaction(t *testing.T) {
	bubble(t, func(t *testing.T) {
		g, db, ctx := &target{}, &ram{store: memory.NewJournal()}, t.Context()
		d := Define("order", g.undoable("a"))
		unlisted := DefineList("unlisted", func(string) ([]Stage[string], error) { return nil, errSeat })
		r := serve(t, &watched{Journal: db.store}, 1, nil, d, unlisted)
		start := func(d Definition[string], id, input string, commit bool) error {
			tx := &ramTx{ram: db}
			err := d.StartTx(ctx, r.engine, db, tx, id, input)
			if err == nil && commit {
				ok(t, tx.Commit(ctx))
			}
			return err
		}
		ok(t, start(d, "1", "in", false))
		_, err := r.engine.Look(ctx, "1")
		wantKind(t, err, interlock.Definite, ErrNone)
		ok(t, start(d, "1", "in", true))
		ok(t, txntest.Second(r.engine.Wait(ctx, "1")))
		ok(t, start(d, "1", "in", true))
		wantKind(t, start(d, "1", "else", true), interlock.Bug, ErrMismatch)
		wantKind(t, start(Define("stranger", g.undoable("a")), "2", "in", true), interlock.Bug, nil)
		if err := start(unlisted, "2", "in", true); !errors.Is(err, errSeat) {
			t.Errorf("a list that fails: %v", err)
		}
		db.appends = []error{errNetwork}
		if err := start(d, "2", "in", true); !errors.Is(err, errNetwork) {
			t.Errorf("a table that fails: %v", err)
		}
		synctest.Wait()
		same(t, "effects", g.did(), "1/a/do")
		_, err = r.engine.Look(ctx, "2")
		wantKind(t, err, interlock.Definite, ErrNone)
	})
}

// addition is a step that is not repeatable: it adds n to the only account.
func addition(name string, db driver.Beginner[driver.SQL], table Appender, n int) Action[string, int] {
	return StepTx(name, db, table, func(ctx context.Context, tx driver.Tx[driver.SQL], _ string) (int, error) {
		_, err := tx.Exec(ctx, fmt.Sprintf(`update account set n = n + %d`, n))
		return n, err
	})
}

func forbidden(context.Context, string, *int) error { return errors.New("there is nothing to undo") }

// localEngine books and starts a saga in one transaction, then serves until the saga has
// ended.
func localEngine(ctx context.Context, at *crash.Points, args []string) error {
	db, closed, err := databases.Connect(ctx, args[0], args[1])
	if err != nil {
		return err
	}
	defer closed()
	table, steps := journal.NewTable(db, ""), crash.Beginner(db, at)
	j, err := journal.New(crash.Journal(table, at), &journal.Options{Shards: 1})
	if err != nil {
		return err
	}
	defer j.Close()
	d := Define("order", addition("a", steps, table, 1).Undo("una", forbidden), addition("p", steps, table, 10).Pivot())
	e, err := build(j, &settings{Options: coordinator.Options{Poll: 20 * time.Millisecond}}, d)
	if err != nil {
		return err
	}
	if err := book(ctx, steps, func(tx driver.SQL) error { return d.StartTx(ctx, e, table, tx, "1", "in") }); err != nil {
		return err
	}
	defer txntest.Run(ctx, e.coordinator.Run)()
	_, err = e.Wait(ctx, "1")
	return err
}

// book writes a booking and calls start in the same transaction, unless there is a
// booking.
func book(ctx context.Context, db driver.Beginner[driver.SQL], start func(tx driver.SQL) error) error {
	tx, err := db.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if n, err := databases.Value[int64](ctx, tx, `select count(*) from booking`); err != nil || n > 0 {
		return err
	}
	if _, err := tx.Exec(ctx, `insert into booking values (1)`); err != nil {
		return err
	}
	if err := start(tx); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

func accounts(tb testing.TB, db *databases.DB) {
	tb.Helper()
	db.Do(tb, journal.NewTable(db, "").Create)
	db.Exec(tb, `create table booking (id bigint)`, `create table account (n bigint)`, `insert into account values (0)`)
}

// booking returns a database for one saga that begins in a transaction, and checks its
// final state.
func booking(tb testing.TB, db *databases.DB) crash.Scene {
	tb.Helper()
	accounts(tb, db)
	return crash.Scene{Args: []string{db.Client, db.URL}, Want: func(tb testing.TB) {
		tb.Helper()
		sum, booked := databases.One[int64](tb, db, `select n from account`), databases.One[int64](tb, db, `select count(*) from booking`)
		head, records, err := journal.NewTable(db, "").Read(tb.Context(), "1", 0)
		if sum != 11 || booked != 1 || err != nil || head.Ended.IsZero() {
			tb.Errorf("%d added, %d booked, %+v, %v; %d records", sum, booked, head, err, len(records))
		}
	}}
}

// TestKilledInTransaction: a saga begins if and only if the booking was made, and each
// of its steps adds exactly once, wherever the process is killed.
func TestKilledInTransaction(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		t.Parallel()
		crash.Share(t, "local", crash.Part(t), 2, func(tb testing.TB) crash.Scene { return booking(tb, open(tb)) })
	}, databases.Pgx, databases.Maria)
}

// TestHeirOfTransaction: an owner that takes over too late to call anything undoes steps with an
// unknown outcome. It undoes no step that would have its record if it had happened.
func TestHeirOfTransaction(t *testing.T) {
	db := &ram{} // no transaction begins
	g := &target{}
	d := Define("order", g.undoable("a"), addition("b", db, db, 1).Undo("unb", forbidden), g.undoable("c")).Timeout(time.Minute)
	p := d.defined()
	opening, err := p.opening("1", []byte(`"in"`), began, time.Time{})
	ok(t, err)
	c, err := newExecution(p, driver.Head{Transaction: "1"}, opening.opened(), false)
	ok(t, err)
	defer c.close()
	if m, err := c.next(began.Add(time.Hour)); err != nil || !m.write {
		t.Fatalf("%+v, %v", m, err)
	}
	var undone []string
	for _, p := range c.m.steps {
		if p.undoable() {
			undone = append(undone, p.key)
		}
	}
	same(t, "to be undone", undone, "a", "c")
}

// TestSmallPool: a pool has one connection for each of the user's transactions. Each of these
// can start a saga with a large input, start it again, and run a step with a large output. None
// needs a second connection.
func TestSmallPool(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		db.Do(t, journal.NewTable(db, "").Create)
		if db.Dialect == driver.Postgres {
			config, err := pgxpool.ParseConfig(db.URL)
			ok(t, err)
			config.MaxConns = 4
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			ok(t, err)
			defer pool.Close()
			smallPool(t, postgres.Pool(pool))
			return
		}
		pool, err := sql.Open("mysql", db.URL)
		ok(t, err)
		defer pool.Close()
		pool.SetMaxOpenConns(4)
		smallPool(t, mysql.DB(pool))
	}, databases.Pgx, databases.Maria)
}

func smallPool[T any](t *testing.T, db driver.BeginnerAt[T]) {
	table, large := journal.NewTable(db, ""), strings.Repeat("x", 10_000)
	j, err := journal.New(table, &journal.Options{Shards: 1})
	ok(t, err)
	defer j.Close()
	const all = 4
	var together sync.WaitGroup // all steps are in their transactions
	together.Add(all)
	step := StepTx("large", db, table, func(_ context.Context, _ driver.Tx[T], input string) (string, error) {
		together.Done()
		together.Wait()
		return input + large, nil
	}).Uncompensable()
	d := Define("order", step)
	e, err := build(j, &settings{Options: coordinator.Options{Poll: 20 * time.Millisecond}}, d)
	ok(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for _, round := range []struct {
		input  string
		target error
	}{{large, nil}, {large, nil}, {large + "else", ErrMismatch}} {
		var work, begun sync.WaitGroup
		begun.Add(all)
		for i := range all {
			work.Go(func() {
				tx, err := db.Begin(ctx)
				begun.Done()
				if err != nil {
					t.Error(err)
					return
				}
				defer func() { _ = tx.Rollback(ctx) }()
				begun.Wait()
				err = d.StartTx(ctx, e, table, tx, fmt.Sprint(i), round.input)
				if err == nil {
					err = tx.Commit(ctx)
				}
				if !errors.Is(err, round.target) {
					t.Errorf("start %d: %v, want %v", i, err, round.target)
				}
			})
		}
		work.Wait()
		if t.Failed() {
			return
		}
	}
	defer txntest.Run(ctx, e.coordinator.Run)()
	for i := range all {
		o, err := e.Wait(ctx, fmt.Sprint(i))
		if err != nil || len(o.Outputs.All()["large"]) != 20_002 {
			t.Errorf("%d: %v", i, err)
		}
	}
}
