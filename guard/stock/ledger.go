package stock

import (
	"context"
	"strconv"
	"strings"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/observe"
)

// ledger is the tables in one transaction. Statements that both databases
// understand are written once, with ? for parameters; {items}, {lines},
// {operations} are the tables, {now} is the time at which the statement began,
// {ago} is one before it, and {by INDEX} says how rows are found.
type ledger struct {
	driver.SQL
	dialect
	names
	words   *strings.Replacer
	observe observe.Stock
}

// dialect is what the databases do not have in common.
type dialect interface {
	// now is the time in SQL; ago is so many seconds before, as a parameter.
	now() string
	ago() string
	// hint makes a statement find its rows by an index of the table of reservations.
	hint(index string) string
	// create is the statements that make the tables.
	create() []string
	// hold records a reservation, and takes its units if there are enough of each
	// item. It is not fresh if it was recorded before; then nothing is done.
	hold(ctx context.Context, l *ledger, r reservation) (fresh, taken bool, err error)
	// upsertion is the statement that sets a supply unless more is held and sold,
	// and gives what it is then. Its parameters are item and supply.
	upsertion() string
	// expired finds and locks the reservations of an item that expired first, but
	// for one, until they have n units. The item is locked, and stands so.
	expired(ctx context.Context, l *ledger, item standing, n int64, but string) (gifts []gift, sum int64, err error)
	// adjust records an operation, and applies it if there are units enough.
	adjust(ctx context.Context, l *ledger, a Adjustment) (fresh, done bool, err error)
}

var dialects = map[driver.Dialect]dialect{driver.Postgres: postgres{}, driver.MariaDB: mariadb{}}

// open opens the tables in a transaction.
func (t Table) open(op string, db driver.SQL) (*ledger, error) {
	d, ok := dialects[db.Dialect()]
	if !ok {
		return nil, failure.Bug(op, "", "SQL of %q is not spoken", string(db.Dialect()))
	}
	n, err := t.quoted(db.Dialect())
	if err != nil {
		return nil, err
	}
	words := strings.NewReplacer("{items}", n.items, "{lines}", n.lines, "{operations}", n.operations,
		"{due}", n.due, "{old}", n.old, "{done}", n.done, "{now}", d.now(),
		"{by primary}", d.hint("primary"), "{by due}", d.hint("due"), "{by old}", d.hint("old"), "{by done}", d.hint("done"))
	return &ledger{SQL: db, dialect: d, names: n, words: words, observe: t.Observe}, nil
}

// text is a statement in the database's own words.
func (l *ledger) text(query string) string {
	query = strings.ReplaceAll(query, "{ago}", l.ago())
	if l.Dialect() == driver.Postgres {
		parts := strings.Split(query, "?")
		for i := range parts[1:] {
			parts[i] += "$" + strconv.Itoa(i+1)
		}
		query = strings.Join(parts, "")
	}
	return l.words.Replace(query)
}

func (l *ledger) exec(ctx context.Context, query string, args ...any) (affected int64, err error) {
	return l.Exec(ctx, l.text(query), args...)
}

// each calls fn for every row.
func (l *ledger) each(ctx context.Context, query string, args []any, fn func(scan func(...any) error) error) error {
	return l.Query(ctx, l.text(query), args, fn)
}

// row scans the only row that there may be.
func (l *ledger) row(ctx context.Context, query string, args []any, dest ...any) (found bool, err error) {
	err = l.each(ctx, query, args, func(scan func(...any) error) error {
		found = true
		return scan(dest...)
	})
	return found, err
}

func (l *ledger) upsert(ctx context.Context, item string, n int64) (is int64, err error) {
	_, err = l.row(ctx, l.upsertion(), []any{item, n}, &is)
	return is, err
}

// move changes the numbers of an item by differences. Column changes makes every
// change of an item, and of what is held of it, a visible one.
//
// It has no condition, so the CHECK must hold in every version of the item that the
// statement may see first (see [holdPostgres]). Either an earlier statement locked
// the item, and there is one version only; or what is taken from held is that of
// lines that an earlier statement locked as held, and is held in all versions.
func (l *ledger) move(ctx context.Context, item string, supply, held, sold int64) error {
	_, err := l.exec(ctx, `update {items} set supply = supply + ?, held = held + ?, sold = sold + ?, changes = changes + 1 where item = ?`,
		supply, held, sold, item)
	return err
}

func (l *ledger) show(ctx context.Context, item string) (level driver.StockLevel, err error) {
	_, err = l.row(ctx, `select supply, held - (select coalesce(sum(n), 0) from {lines}
			where item = i.item and state = 'held' and expires_at <= {now}), sold
		from {items} i where item = ?`, []any{item}, &level.Supply, &level.Held, &level.Sold)
	return level, err
}
