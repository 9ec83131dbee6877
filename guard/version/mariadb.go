package version

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/sqltext"
)

// mariadb keeps stamps in MariaDB.
//
// In a table the stamp is one text of bytes: "0", or "1" if the state is
// terminal, the version in 19 digits, and the tie. Texts are ordered as stamps
// are, and one column can be assigned last: an assignment may see those before
// it, or not, as the sql_mode has it. Column repeated counts how often the stored
// change came again, and so tells a change that was applied from one that was
// there.
//
// No count of affected rows is relied on: whether it counts the rows that were
// found or those that were changed is an option of the client. No empty text is
// written into a table of ours: there is a sql_mode that makes it NULL. A column
// of the user's may have that NULL, which is read as no tie.
type mariadb struct{}

// create compares entities by their bytes. CREATE ends the transaction.
func (mariadb) create(table, _ string) []string {
	return []string{`create table if not exists ` + table + ` (
		entity varbinary(512) not null primary key,
		stamp varbinary(275) not null,
		deleted tinyint not null,
		repeated bigint not null,
		changed_at datetime(6) not null,
		index (deleted, changed_at)) engine = InnoDB default charset = utf8mb4`}
}

// letsMaria is Versioned.Judge in SQL, and winsMaria that of a change with
// TerminalWins: the text of a terminal change is above all that are not.
const (
	letsMaria = `stamp < '1' and substr(stamp, 2) < substr(values(stamp), 2)`
	winsMaria = `stamp < '1' and stamp < values(stamp) and substr(stamp, 2) <> substr(values(stamp), 2)`
)

const applyMaria = `
insert into %[1]s (entity, stamp, deleted, repeated, changed_at)
values (?, ?, ?, 0, utc_timestamp(6))
on duplicate key update
	deleted = if(%[2]s, values(deleted), deleted),
	changed_at = if(%[2]s, values(changed_at), changed_at),
	repeated = if(%[2]s, 0, repeated + if(substr(stamp, 2) = substr(values(stamp), 2), 1, 0)),
	stamp = if(%[2]s, values(stamp), stamp)
returning stamp, repeated`

func (mariadb) apply(ctx context.Context, db driver.SQL, table string, c Change) (Outcome, error) {
	var text string
	var repeated int64
	lets := letsMaria
	if c.TerminalWins {
		lets = winsMaria
	}
	_, err := row(ctx, db, fmt.Sprintf(applyMaria, table, lets), []any{c.Entity, stampText(c), asInt(c.Deleted)}, &text, &repeated)
	if err != nil {
		return Stale, err
	}
	stored, err := parseStamp(text)
	if err != nil {
		return Stale, err
	}
	if o := c.state().Judge(stored); o != Duplicate || repeated > 0 {
		return o, nil
	}
	return Applied, nil // it was the same for the first time
}

func stampText(c Change) string {
	return strconv.Itoa(asInt(c.Terminal)) + driver.FormatPadded(c.Stamp.Version) + c.Stamp.Tie
}

func parseStamp(text string) (v driver.Versioned, err error) {
	if len(text) < 20 {
		return v, fmt.Errorf("%q is not a stamp", text)
	}
	v.Stamp.Version, err = driver.ParsePadded(text[1:20])
	v.Stamp.Tie, v.Terminal = text[20:], strings.HasPrefix(text, "1")
	if err == nil && stampText(Change{Stamp: v.Stamp, Terminal: v.Terminal}) != text {
		err = fmt.Errorf("%q is not a stamp", text)
	}
	return v, err
}

func asInt(set bool) int {
	if set {
		return 1
	}
	return 0
}

func (mariadb) show(ctx context.Context, db driver.SQL, table, entity string) (State, error) {
	var text string
	var deleted bool
	var changed int64
	found, err := row(ctx, db, `select stamp, deleted, timestampdiff(microsecond, '1970-01-01', changed_at) from `+table+` where entity = ?`,
		[]any{entity}, &text, &deleted, &changed)
	if err != nil || !found {
		return State{}, err
	}
	v, err := parseStamp(text)
	return State{Stamp: v.Stamp, Deleted: deleted, Terminal: v.Terminal, Changed: time.UnixMicro(changed).UTC()}, err
}

// purgedAtOnce is how many tombstones one statement deletes: one with parameters
// takes 65,535 of them.
const purgedAtOnce = 1000

// purge looks without locks and deletes by key, since deleting by age would lock
// the gaps into which new tombstones go. Who was faster counts: see the condition.
func (mariadb) purge(ctx context.Context, db driver.SQL, table string, age time.Duration, limit int) (int64, error) {
	const old = `deleted = 1 and changed_at < utc_timestamp(6) - interval ? microsecond`
	var args []any
	err := db.Query(ctx, `select entity from `+table+` where `+old+` order by changed_at limit ?`, []any{age.Microseconds(), limit},
		func(scan func(...any) error) error {
			var entity string
			err := scan(&entity)
			args = append(args, entity)
			return err
		})
	if err != nil {
		return 0, err
	}
	var purged int64
	for some := range slices.Chunk(args, purgedAtOnce) {
		list := strings.TrimSuffix(strings.Repeat("?,", len(some)), ",")
		n, err := db.Exec(ctx, `delete from `+table+` where entity in (`+list+`) and `+old, append(some, age.Microseconds())...)
		if err != nil {
			return 0, err
		}
		purged += n
	}
	return purged, nil
}

// applyColumn locks the row by a look, which sees what was committed last.
func (m mariadb) applyColumn(ctx context.Context, db driver.SQL, q columns, c Change) (rows int, o Outcome, err error) {
	tie, terminal := "null", "0"
	set, args := q.version+" = ?", []any{c.Stamp.Version}
	if q.tie != "" {
		tie = "convert(" + q.tie + " using utf8mb4)"
		set, args = set+", "+q.tie+" = ?", append(args, c.Stamp.Tie)
	}
	if q.terminal != "" {
		terminal = "if(" + q.terminal + ", 1, 0)"
		set, args = set+", "+q.terminal+" = ?", append(args, asInt(c.Terminal))
	}
	where, key := m.thisRow(q.key, 0, c.Entity)
	var stored driver.Versioned
	var was *string
	query := fmt.Sprintf(`select coalesce(%s, 0), %s, %s from %s where %s for update`, q.version, tie, terminal, q.table, where)
	err = db.Query(ctx, query, key, func(scan func(...any) error) error {
		rows++
		return scan(&stored.Stamp.Version, &was, &stored.Terminal)
	})
	if was != nil {
		stored.Stamp.Tie = *was
	}
	if o = c.state().Judge(stored); err != nil || rows != 1 || o != Applied {
		return rows, o, err
	}
	_, err = db.Exec(ctx, fmt.Sprintf(`update %s set %s where %s`, q.table, set, where), append(args, key...)...)
	return rows, o, err
}

func (mariadb) placeholder(int) string { return "?" }

func (mariadb) thisRow(key string, _ int, value string) (string, []any) {
	return sqltext.ExactlyMaria(key), []any{value, value}
}
