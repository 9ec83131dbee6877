package databases

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// Counted counts the operations of transactions that it began or of SQL that it wraps.
// A Bound counts as a statement.
type Counted struct {
	driver.BeginnerAt[driver.SQL]
	Begun, Statements, Commits, Rollbacks atomic.Int64
	Committed                             atomic.Int64 // statements, without Bounds, of committed transactions
}

// Reset sets the counts to 0.
func (c *Counted) Reset() {
	for _, n := range []*atomic.Int64{&c.Begun, &c.Statements, &c.Commits, &c.Rollbacks, &c.Committed} {
		n.Store(0)
	}
}

// SQL counts the statements of a transaction that another beginner began.
func (c *Counted) SQL(db driver.SQL) driver.SQL { return countedSQL{db, c} }

// Begin begins a counted transaction.
func (c *Counted) Begin(ctx context.Context) (driver.Tx[driver.SQL], error) {
	return c.BeginAt(ctx, driver.SessionIsolation)
}

// BeginAt begins a counted transaction.
func (c *Counted) BeginAt(ctx context.Context, level driver.Isolation) (driver.Tx[driver.SQL], error) {
	tx, err := c.BeginnerAt.BeginAt(ctx, level)
	if err != nil {
		return nil, err
	}
	c.Begun.Add(1)
	return countedTx{tx, c, new(atomic.Int64)}, nil
}

type countedSQL struct {
	driver.SQL
	c *Counted
}

func (s countedSQL) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	s.c.Statements.Add(1)
	return s.SQL.Exec(ctx, query, args...)
}

func (s countedSQL) Query(ctx context.Context, query string, args []any, each func(func(...any) error) error) error {
	s.c.Statements.Add(1)
	return s.SQL.Query(ctx, query, args, each)
}

type countedTx struct {
	driver.Tx[driver.SQL]
	c          *Counted
	statements *atomic.Int64
}

func (t countedTx) Native() driver.SQL { return t }

func (t countedTx) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	t.statements.Add(1)
	return t.c.SQL(t.Tx).Exec(ctx, query, args...)
}

func (t countedTx) Query(ctx context.Context, query string, args []any, each func(func(...any) error) error) error {
	t.statements.Add(1)
	return t.c.SQL(t.Tx).Query(ctx, query, args, each)
}

func (t countedTx) Bound(ctx context.Context, idle, statement time.Duration) error {
	t.c.Statements.Add(1)
	return t.Tx.Bound(ctx, idle, statement)
}

func (t countedTx) Commit(ctx context.Context) error {
	t.c.Commits.Add(1)
	t.c.Committed.Add(t.statements.Load())
	return t.Tx.Commit(ctx)
}

func (t countedTx) Rollback(ctx context.Context) error {
	t.c.Rollbacks.Add(1)
	return t.Tx.Rollback(ctx)
}

// Planned plans the statements of transactions that it begins on PostgreSQL, without scans of whole
// tables, and does not execute them.
type Planned struct {
	driver.BeginnerAt[driver.SQL]
	plans []string
}

// Begin begins a transaction.
func (p *Planned) Begin(ctx context.Context) (driver.Tx[driver.SQL], error) {
	return p.BeginAt(ctx, driver.SessionIsolation)
}

// BeginAt begins a transaction.
func (p *Planned) BeginAt(ctx context.Context, level driver.Isolation) (driver.Tx[driver.SQL], error) {
	tx, err := p.BeginnerAt.BeginAt(ctx, level)
	if err == nil {
		_, err = tx.Exec(ctx, `set local enable_seqscan = off`)
	}
	return plannedTx{tx, p}, err
}

// Do runs fn in a transaction, and rolls it back.
func (p *Planned) Do(t testing.TB, fn func(ctx context.Context, db driver.SQL) error) {
	t.Helper()
	tx, err := p.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if err := fn(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
}

// Want requires one statement for each column, which reads only a part of an index by a condition on
// the column.
func (p *Planned) Want(t testing.TB, columns ...string) {
	t.Helper()
	if len(p.plans) != len(columns) {
		t.Fatalf("%d statements, want %d", len(p.plans), len(columns))
	}
	for i, plan := range p.plans {
		if !regexp.MustCompile(`Index Cond: .*\b` + columns[i] + ` <`).MatchString(plan) {
			t.Errorf("it does not read an index by %s:\n%s", columns[i], plan)
		}
	}
}

type plannedTx struct {
	driver.Tx[driver.SQL]
	p *Planned
}

var parameter = regexp.MustCompile(`\$\d+`)

func (t plannedTx) Query(ctx context.Context, query string, args []any, _ func(func(...any) error) error) error {
	query = parameter.ReplaceAllStringFunc(query, func(name string) string {
		n, _ := strconv.Atoi(name[1:])
		if text, ok := args[n-1].(string); ok {
			return `'` + strings.ReplaceAll(text, `'`, `''`) + `'`
		}
		return fmt.Sprint(args[n-1])
	})
	plan := query + "\n"
	err := t.Tx.Query(ctx, "explain "+query, nil, func(scan func(...any) error) error {
		var line string
		err := scan(&line)
		plan += line + "\n"
		return err
	})
	t.p.plans = append(t.p.plans, plan)
	return err
}

func (t plannedTx) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	return 0, t.Query(ctx, query, args, nil)
}
