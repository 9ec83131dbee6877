package countermeasure

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// Sweep forgets at most limit resources that have been nobody's for longer than age,
// by the database's clock, and returns how many. It touches no flag. On MariaDB age is
// to be longer than any transaction lasts: one that began before the row went gets no
// error that it reads from before.
func (l SemanticLock) Sweep(ctx context.Context, db driver.SQL, age time.Duration, limit int) (swept int64, err error) {
	f, err := l.open("sweep flags", "", db)
	if err != nil {
		return 0, err
	}
	if age < 0 || limit < 1 {
		return 0, f.bug("an age of %v and a limit of %d", age, limit)
	}
	none := `''`
	if f.maria() {
		none = `x''`
	}
	return f.sweep(ctx, `owner = `+none+` and until_at < `+f.ago(), age.Microseconds(), limit)
}

// Sweep forgets at most limit operations, of any records, that were logged or cancelled
// last longer than age ago by the database's clock, and returns how many. A repeated call
// for one of them is taken for the first, and Standing does not show them; so age
// is to be longer than any transaction is retried, and than a replay is wanted.
func (v VersionFile) Sweep(ctx context.Context, db driver.SQL, age time.Duration, limit int) (swept int64, err error) {
	l, err := v.log("sweep version file", "", db)
	if err != nil {
		return 0, err
	}
	if age < 0 || limit < 1 {
		return 0, l.bug("an age of %v and a limit of %d", age, limit)
	}
	return l.sweep(ctx, age.Microseconds(), limit)
}

// sweep does as that of flags does.
func (l oplog) sweep(ctx context.Context, age int64, limit int) (swept int64, err error) {
	var keys []any // a record and a position each
	err = l.each(ctx, `select record, position from {log} where logged_at < `+l.ago()+` order by logged_at limit ?`, []any{age, limit},
		func(scan func(...any) error) error {
			var record string
			var position int64
			err := scan(&record, &position)
			keys = append(keys, record, position)
			return err
		})
	for some := range slices.Chunk(keys, 2*sweptAtOnce) {
		if err != nil {
			break
		}
		var n int64
		these := strings.TrimSuffix(strings.Repeat("record = ? and position = ? or ", len(some)/2), " or ")
		n, err = l.exec(ctx, `delete from {log} where (`+these+`) and logged_at < `+l.ago(), append(some, age)...)
		swept += n
	}
	return swept, err
}

// sweptAtOnce is how many rows one statement deletes.
const sweptAtOnce = 200

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
