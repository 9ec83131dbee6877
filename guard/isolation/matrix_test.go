package isolation_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/generated"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// An anomaly is a schedule, and how to tell that it happened. Transaction 0 is the
// first, accounts 1 and 2 have 10 each.
type anomaly struct {
	name, meaning string
	schedule      func() (turns []turn, happened func(final func(string) int64) bool)
}

const (
	readOne = `select v from account where id = 1`
	readTwo = `select v from account where id = 2`
	readSum = `select sum(v) from account`
	count   = `select count(*) from account where v >= 0`
)

var anomalies = []anomaly{
	{"dirty read", "a transaction reads a change that is rolled back later", func() ([]turn, func(func(string) int64) bool) {
		var seen int64
		return []turn{
			{0, write(`update account set v = 99 where id = 1`)}, {1, read(&seen, readOne)}, {0, rollback}, {1, commit},
		}, func(func(string) int64) bool { return seen == 99 }
	}},
	{"non-repeatable read", "a row read twice has two values", func() ([]turn, func(func(string) int64) bool) {
		var before, after int64
		return []turn{
			{0, read(&before, readOne)}, {1, write(`update account set v = 11 where id = 1`)}, {1, commit},
			{0, read(&after, readOne)}, {0, commit},
		}, func(func(string) int64) bool { return before != after }
	}},
	{"read skew", "two rows are read, one before and one after a change of both", func() ([]turn, func(func(string) int64) bool) {
		var one, two int64
		return []turn{
			{0, read(&one, readOne)}, {1, write(`update account set v = 11 where id = 1`)},
			{1, write(`update account set v = 9 where id = 2`)}, {1, commit}, {0, read(&two, readTwo)}, {0, commit},
		}, func(func(string) int64) bool { return one+two != 20 }
	}},
	{"phantom", "a repeated search finds a new row", func() ([]turn, func(func(string) int64) bool) {
		var before, after int64
		return []turn{
			{0, read(&before, count)}, {1, write(`insert into account (id, v) values (3, 10)`)}, {1, commit},
			{0, read(&after, count)}, {0, commit},
		}, func(func(string) int64) bool { return before != after }
	}},
	{"lost update", "two transactions read a value and write it back changed, and one change is lost", func() ([]turn, func(func(string) int64) bool) {
		var a, b int64
		return []turn{
			{0, read(&a, readOne)}, {1, read(&b, readOne)},
			{0, write(`update account set v = 10 + 1 where id = 1`)}, {0, commit},
			{1, write(`update account set v = 10 + 5 where id = 1`)}, {1, commit},
		}, func(final func(string) int64) bool { return final(readOne) == 15 && a == 10 && b == 10 }
	}},
	{"write skew", "two transactions check a rule over several rows, each changes another row, and together they break the rule", func() ([]turn, func(func(string) int64) bool) {
		var a, b int64
		return []turn{
			{0, read(&a, readSum)}, {1, read(&b, readSum)},
			{0, write(`update account set v = v - 10 where id = 1`)}, {1, write(`update account set v = v - 10 where id = 2`)},
			{0, commit}, {1, commit},
		}, func(final func(string) int64) bool { return final(readSum) == 0 && a == 20 && b == 20 }
	}},
}

var levels = []driver.Isolation{driver.ReadUncommitted, driver.ReadCommitted, driver.RepeatableRead, driver.Serializable}

// TestMatrix plays each anomaly at each level, and compares with docs/reference/isolation.md.
func TestMatrix(t *testing.T) {
	t.Parallel()
	cells := map[string]string{} // by dialect, anomaly and level
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		db.Exec(t, `create table account (id bigint primary key, v bigint not null)`)
		for _, a := range anomalies {
			for _, level := range levels {
				cells[string(db.Dialect)+a.name+level.String()] = a.cell(t, db, level)
			}
		}
	}, databases.Pgx, databases.Maria)
	if t.Failed() || len(cells) < 2*len(anomalies)*len(levels) {
		return // one of the databases was skipped
	}
	generated.Check(t, "../../docs/reference/isolation.md", markdown(cells))
}

// cell plays an anomaly and names the outcome in a word.
func (a anomaly) cell(t *testing.T, db *databases.DB, level driver.Isolation) string {
	t.Helper()
	db.Exec(t, `delete from account`, `insert into account (id, v) values (1, 10), (2, 10)`)
	turns, happened := a.schedule()
	c := play(t, db, level, turns)
	yes := happened(func(query string) int64 { return databases.One[int64](t, db, query) })
	failed := ""
	for _, err := range c.errs {
		if err != nil {
			failed = code(err)
		}
	}
	switch {
	case yes && failed == "":
		return "**happens**"
	case failed != "" && c.waited:
		return "waits, then error " + failed
	case failed != "":
		return "error " + failed
	case c.waited:
		return "waits"
	}
	return "not visible"
}

// markdown returns the page.
func markdown(cells map[string]string) string {
	var b strings.Builder
	b.WriteString(`# What each isolation level permits

<!-- Written by: go test ./guard/isolation -run TestMatrix -update -->

Two transactions run at the same level, in an order that causes the anomaly if the level permits it. The servers are
PostgreSQL 15 and MariaDB 10.11 with their default settings. The same test compares this page with the servers.

- **happens**: both were committed, and the anomaly occurred.
- *not visible*: both were committed; the reader saw the former state.
- *waits*: one of them waited until the other had ended.
- *error*: one of them was rolled back and must run again, as ` + "`guard/isolation`" + ` does.

`)
	for _, db := range []struct{ id, title, note string }{
		{string(driver.Postgres), "PostgreSQL 15", "READ UNCOMMITTED is READ COMMITTED there, which is the default."},
		{string(driver.MariaDB), "MariaDB 10.11", `REPEATABLE READ is the default there. It reads from a snapshot, and overwrites rows that the snapshot does not show. A
lost update is not detected, unless the read locks (` + "`for update`" + `) or innodb_snapshot_isolation is on. At SERIALIZABLE
every read takes a shared lock; two transactions that then both write are a deadlock.`},
	} {
		fmt.Fprintf(&b, "## %s\n\n|", db.title)
		for _, level := range levels {
			fmt.Fprintf(&b, " | %s", level)
		}
		b.WriteString(" |\n|---" + strings.Repeat("|---", len(levels)) + "|\n")
		for _, a := range anomalies {
			fmt.Fprintf(&b, "| %s", a.name)
			for _, level := range levels {
				fmt.Fprintf(&b, " | %s", cells[db.id+a.name+level.String()])
			}
			b.WriteString(" |\n")
		}
		fmt.Fprintf(&b, "\n%s\n\n", db.note)
	}
	b.WriteString("## The anomalies\n\n")
	for _, a := range anomalies {
		fmt.Fprintf(&b, "- **%s**: %s.\n", a.name, a.meaning)
	}
	return b.String()
}
