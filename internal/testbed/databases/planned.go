package databases

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/driver"
)

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
