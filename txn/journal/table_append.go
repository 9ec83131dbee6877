package journal

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

// append does what may be done of appends, and says in errs what became of those
// that may not; one that has an error already is left out. An error of its own is
// that of the database: then nothing is done, whatever errs says.
func (n tables) append(ctx context.Context, db driver.SQL, appends []driver.Append, errs []error) error {
	epochs, err := n.epochs(ctx, db, appends)
	if err != nil {
		return err
	}
	var asked []int
	for i, a := range appends {
		if errs[i] == nil && a.Epoch != 0 {
			errs[i] = owned("append", a.Shard, epochs[driver.ShardName(a.Shard)], a.Epoch)
		}
		if errs[i] == nil {
			asked = append(asked, i)
		}
	}
	// All who append take rows in the order of their ids.
	slices.SortFunc(asked, func(i, j int) int { return strings.Compare(appends[i].Transaction, appends[j].Transaction) })
	begun, err := n.begin(ctx, db, appends, asked)
	if err != nil {
		return err
	}
	found, err := n.lock(ctx, db, appends, asked, begun)
	if err != nil {
		return err
	}
	var grown []int
	for _, i := range asked {
		a := appends[i]
		if begun[a.Transaction] != 0 {
			grown = append(grown, i)
			continue
		}
		if errs[i] = fits(a, found[a.Transaction]); errs[i] == nil {
			grown = append(grown, i)
		}
	}
	if err := n.move(ctx, db, appends, grown, begun, found); err != nil {
		return err
	}
	return n.write(ctx, db, appends, grown, begun)
}

// epochs shares the marks of the shards whose epochs are presented.
func (n tables) epochs(ctx context.Context, db driver.SQL, appends []driver.Append) (map[string]interlock.Token, error) {
	var shards []string
	for _, a := range appends {
		if name := driver.ShardName(a.Shard); a.Epoch != 0 && !slices.Contains(shards, name) {
			shards = append(shards, name)
		}
	}
	return n.marks.Share(ctx, db, shards...)
}

// owned refuses an epoch that is not the one that has entered.
func owned(op string, shard int, seen, got interlock.Token) error {
	name := driver.ShardName(shard)
	switch {
	case seen > got:
		return &interlock.Error{Op: op, Name: name, Kind: interlock.Definite,
			Err: &interlock.StaleTokenError{Resource: name, Seen: seen, Got: got}}
	case seen < got:
		return failure.Bug(op, name, "nobody has entered with epoch %d", got)
	}
	return nil
}

// fits refuses an append to a transaction that is elsewhere.
func fits(a driver.Append, h driver.Head) error {
	switch {
	case h.Position != a.After || !h.Ended.IsZero():
		return &driver.PositionError{Transaction: a.Transaction, After: a.After, Found: h}
	case h.Shard != a.Shard && h.Position > 0:
		return failure.Bug("append", a.Transaction, "it is in shard %d, not in %d", h.Shard, a.Shard)
	}
	return nil
}

// begin makes the rows of those transactions that do not exist and are to, and tells
// when each of them began.
func (n tables) begin(ctx context.Context, db driver.SQL, appends []driver.Append, asked []int) (map[string]int64, error) {
	v := values{dialect: n.dialect}
	for _, i := range asked {
		if a := appends[i]; a.After == 0 {
			v.head(n, a, a.Type)
		}
	}
	if v.rows == 0 {
		return nil, nil
	}
	into, unless := `insert into `, ` on conflict (id) do nothing`
	if n.dialect == driver.MariaDB {
		into, unless = `insert ignore into `, ``
	}
	begun := map[string]int64{}
	err := db.Query(ctx, into+n.heads+` (`+headColumns+`) values `+v.text.String()+unless+` returning id, began`, v.args, func(scan func(...any) error) error {
		var id []byte
		var began int64
		err := scan(&id, &began)
		begun[string(id)] = began
		return err
	})
	return begun, err
}

// lock finds and locks the transactions that exist, in the order of their ids. On
// PostgreSQL it asks for each by itself: a list of ids that it meets while the table is
// small it looks for in the whole table, and goes on so while that grows, until it is
// analyzed.
func (n tables) lock(ctx context.Context, db driver.SQL, appends []driver.Append, asked []int, begun map[string]int64) (map[string]driver.Head, error) {
	v := values{dialect: n.dialect}
	for _, i := range asked {
		if id := appends[i].Transaction; begun[id] == 0 {
			v.row("", id)
		}
	}
	found := map[string]driver.Head{}
	if v.rows == 0 {
		return found, nil
	}
	query := `select h.* from (values ` + v.text.String() + `) v (id)
		cross join lateral (select ` + headColumns + ` from ` + n.heads + ` where id = v.id for update) h`
	if n.dialect == driver.MariaDB {
		query = `select ` + headColumns + ` from ` + n.heads + ` where id in (` + v.text.String() + `) order by id for update`
	}
	heads, err := n.scan(ctx, db, query, v.args)
	for _, h := range heads {
		found[h.Transaction] = h
	}
	return found, err
}

// move writes where the transactions stand now.
func (n tables) move(ctx context.Context, db driver.SQL, appends []driver.Append, grown []int, begun map[string]int64, found map[string]driver.Head) error {
	v := values{dialect: n.dialect}
	for _, i := range grown {
		if a := appends[i]; begun[a.Transaction] == 0 {
			v.head(n, a, found[a.Transaction].Type)
		}
	}
	if v.rows == 0 {
		return nil
	}
	query := `insert into ` + n.heads + ` (` + headColumns + `) values ` + v.text.String() + ` on conflict (id) do update set
		position = excluded.position, sum = excluded.sum, due = excluded.due, claimed = 0, ended = excluded.ended`
	if n.dialect == driver.MariaDB {
		query = `insert into ` + n.heads + ` (` + headColumns + `) values ` + v.text.String() + ` on duplicate key update
			position = values(position), sum = values(sum), due = values(due), claimed = 0, ended = values(ended)`
	}
	_, err := db.Exec(ctx, query, v.args...)
	return err
}

// write writes the records. The first of a transaction are written when that began.
func (n tables) write(ctx context.Context, db driver.SQL, appends []driver.Append, grown []int, begun map[string]int64) error {
	v := values{dialect: n.dialect}
	for _, i := range grown {
		a := appends[i]
		for k, r := range a.Records {
			written, args := n.now, []any{a.Transaction, a.After + int64(k) + 1, []byte(r.Kind), []byte(r.Step), r.Data, r.Sum, int64(a.Epoch)}
			if began := begun[a.Transaction]; began != 0 {
				written, args = "", append(args, began)
			}
			v.row(written, args...)
		}
	}
	if v.rows == 0 {
		return nil
	}
	_, err := db.Exec(ctx, `insert into `+n.records+` (id, position, kind, step, data, sum, epoch, written) values `+v.text.String(), v.args...)
	return err
}

// values is the rows of a VALUES list.
type values struct {
	dialect driver.Dialect
	text    strings.Builder
	args    []any
	rows    int
}

// row adds a row of parameters, behind which expressions may stand.
func (v *values) row(last string, args ...any) {
	if v.rows > 0 {
		v.text.WriteByte(',')
	}
	v.rows++
	v.text.WriteByte('(')
	for i, a := range args {
		if i > 0 {
			v.text.WriteByte(',')
		}
		v.args = append(v.args, a)
		if v.dialect == driver.MariaDB {
			v.text.WriteByte('?')
		} else {
			fmt.Fprintf(&v.text, "$%d", len(v.args))
		}
	}
	if last != "" {
		v.text.WriteString("," + last)
	}
	v.text.WriteByte(')')
}

// head adds the row of a transaction as it is after an append.
func (v *values) head(n tables, a driver.Append, kind string) {
	ended := "null"
	if a.Due.IsZero() {
		ended = n.now
	}
	v.row(ended+`,`+n.now, a.Transaction, int64(a.Shard), []byte(kind), a.After+int64(len(a.Records)), a.Records[len(a.Records)-1].Sum, due(a.Due), int64(0))
}

// due is a time in milliseconds since 1970, or null.
func due(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMilli()
}
