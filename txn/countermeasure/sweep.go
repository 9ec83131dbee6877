package countermeasure

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// Create makes the table, unless it exists. Several processes may do it at once. It
// takes effect when the transaction commits, on MariaDB at once: there it commits what
// was done in the transaction before.
func (l SemanticLock) Create(ctx context.Context, db driver.SQL) error {
	f, err := l.open("create table of flags", "", db)
	if err != nil {
		return err
	}
	return f.create(ctx)
}

// Sweep forgets at most limit resources that have been nobody's for longer than age,
// by the database's clock, and returns how many. It touches no flag. On MariaDB age is
// to be longer than any transaction lasts: one that began before the row went cannot
// be told that it reads from before.
func (l SemanticLock) Sweep(ctx context.Context, db driver.SQL, age time.Duration, limit int) (swept int64, err error) {
	f, err := l.open("sweep flags", "", db)
	if err != nil {
		return 0, err
	}
	if age < 0 || limit < 1 {
		return 0, f.bug("an age of %v and a limit of %d", age, limit)
	}
	old := `owner = '' and until_at < clock_timestamp() - ?::bigint * interval '1 microsecond'`
	if f.maria() {
		old = `owner = x'' and until_at < utc_timestamp(6) - interval ? microsecond`
	}
	return f.sweep(ctx, old, age.Microseconds(), limit)
}

// sweptAtOnce is how many rows one statement deletes: it takes 65,535 parameters.
const sweptAtOnce = 1000

// sweep looks without locks and deletes by key: deleting by age would lock rows and
// gaps that it only passes by. Who was faster counts, see the condition.
func (f flags) sweep(ctx context.Context, old string, age int64, limit int) (swept int64, err error) {
	var names []any
	err = f.each(ctx, `select resource from {flags} where `+old+` order by until_at limit ?`, []any{age, limit},
		func(scan func(...any) error) error {
			var name string
			err := scan(&name)
			names = append(names, name)
			return err
		})
	for some := range slices.Chunk(names, sweptAtOnce) {
		if err != nil {
			break
		}
		var n int64
		list := strings.TrimSuffix(strings.Repeat("?,", len(some)), ",")
		n, err = f.exec(ctx, `delete from {flags} where resource in (`+list+`) and `+old, append(some, age)...)
		swept += n
	}
	return swept, err
}
