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

// append does what may be done of appends, and puts in errs the errors of those
// that may not; one that has an error already is left out. An error of its own is
// that of the database: then nothing is done, whatever errs says.
//
// But in a lent transaction it does not wait for row locks: what another transaction
// holds is an [interlock.ErrHeld] of that append, and on MariaDB, for one that begins
// what that transaction has begun, of all of them.
func (n tables) append(ctx context.Context, appends []driver.Append, errs []error) error {
	epochs, err := n.epochs(ctx, appends)
	if err != nil {
		return err
	}
	var asked []int
	for i, a := range appends {
		if errs[i] == nil {
			errs[i] = n.own(ctx, a, epochs)
		}
		if errs[i] == nil {
			asked = append(asked, i)
		}
	}
	stored, err := n.shareShards(ctx, appends, asked)
	if err != nil {
		return err
	}
	// All who append take rows in the order of their ids.
	slices.SortFunc(asked, func(i, j int) int { return strings.Compare(appends[i].Transaction, appends[j].Transaction) })
	begun, err := n.begin(ctx, appends, asked, stored)
	if err != nil {
		return err
	}
	found, err := n.lock(ctx, appends, asked, begun)
	if err != nil {
		return err
	}
	held, err := n.held(ctx, appends, asked, begun, found)
	if err != nil {
		return err
	}
	var grown []int
	for _, i := range asked {
		a := appends[i]
		if begun[a.Transaction] == 0 {
			errs[i] = fits(a, found[a.Transaction])
			switch {
			case errs[i] == nil && stored.refuses(a):
				errs[i] = stored.refusal(a)
			case held[a.Transaction]:
				errs[i] = inUse("append", a.Transaction)
			}
		}
		if errs[i] == nil {
			grown = append(grown, i)
		}
	}
	if err := n.move(ctx, appends, grown, begun, found); err != nil {
		return err
	}
	return n.write(ctx, appends, grown, begun)
}

// epochs shares the marks of the shards whose epochs are presented.
func (n tables) epochs(ctx context.Context, appends []driver.Append) (map[string]interlock.Token, error) {
	var shards []string
	for _, a := range appends {
		if name := driver.ShardName(a.Shard); a.Epoch != 0 && !slices.Contains(shards, name) {
			shards = append(shards, name)
		}
	}
	if n.lent {
		return n.marks.Share(ctx, n.SQL(), shards...)
	}
	return n.marks.ShareNow(ctx, n.SQL(), shards...)
}

// own refuses an append under an epoch that is not the one that has entered.
func (n tables) own(ctx context.Context, a driver.Append, epochs map[string]interlock.Token) error {
	name := driver.ShardName(a.Shard)
	if a.Epoch == 0 {
		return nil
	}
	if seen, ok := epochs[name]; ok || n.lent {
		return owned("append", a.Shard, seen, a.Epoch)
	}
	mark, err := n.marks.Show(ctx, n.SQL(), name)
	if err == nil && mark.Token != 0 {
		err = inUse("append", name) // somebody is entering
	}
	if err == nil {
		err = owned("append", a.Shard, 0, a.Epoch)
	}
	return err
}

// inUse refuses to wait for a transaction of somebody else's.
func inUse(op, name string) error {
	return &interlock.Error{Op: op, Name: name, Kind: interlock.Retryable,
		Err: fmt.Errorf("%w: a transaction that has not ended is using it", interlock.ErrHeld)}
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
//
// An INSERT waits for a transaction that has inserted the same id. On PostgreSQL an
// advisory lock on the id stands in front of it, for which only a lent transaction waits;
// on MariaDB the whole statement fails at once. A lent transaction begins one.
func (n tables) begin(ctx context.Context, appends []driver.Append, asked []int, stored sharedShards) (map[string]int64, error) {
	v := values{casts: headCasts}
	for _, i := range asked {
		if a := appends[i]; a.After == 0 && !stored.refuses(a) {
			v.head(a, a.Type)
		}
	}
	if v.rows == 0 {
		return nil, nil
	}
	query := `insert into {heads} (` + headColumns + `) select * from (values ` + v.text.String() + `) v (` + headColumns + `)
		where ` + n.lockID() + ` on conflict (id) do nothing`
	if n.Maria() {
		if n.lent { // a duplicate would lock the gap before it, under REPEATABLE READ
			if heads, err := n.query(ctx, `where id = ?`, v.args[:1]); err != nil || len(heads) > 0 {
				return nil, err
			}
		}
		query = n.nowait() + `insert ignore into {heads} (` + headColumns + `) values ` + v.text.String()
	}
	begun := map[string]int64{}
	err := n.Each(ctx, query+` returning id, began`, v.args, func(scan func(...any) error) error {
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
func (n tables) lock(ctx context.Context, appends []driver.Append, asked []int, begun map[string]int64) (map[string]driver.Head, error) {
	v := values{}
	for _, i := range asked {
		if id := appends[i].Transaction; begun[id] == 0 {
			v.row("", id)
		}
	}
	found := map[string]driver.Head{}
	if v.rows == 0 {
		return found, nil
	}
	locking := `for update skip locked`
	if n.lent {
		locking = `for update`
	}
	query := `select h.* from (values ` + v.text.String() + `) v (id)
		cross join lateral (select ` + headColumns + ` from {heads} where id = v.id ` + locking + `) h`
	if n.Maria() {
		query = `select ` + headColumns + ` from {heads} where id in (` + v.text.String() + `) order by id ` + locking
	}
	heads, err := n.scan(ctx, query, v.args)
	for _, h := range heads {
		found[h.Transaction] = h
	}
	return found, err
}

// held tells which of those that were neither begun nor found another transaction holds:
// they exist, or were to begin.
func (n tables) held(ctx context.Context, appends []driver.Append, asked []int, begun map[string]int64, found map[string]driver.Head) (map[string]bool, error) {
	held, v := map[string]bool{}, values{}
	for _, i := range asked {
		a := appends[i]
		if _, ok := found[a.Transaction]; ok || begun[a.Transaction] != 0 || n.lent {
			continue
		}
		if a.After == 0 {
			held[a.Transaction] = true
		} else {
			v.row("", a.Transaction)
		}
	}
	if v.rows == 0 {
		return held, nil
	}
	heads, err := n.query(ctx, `where id in (`+v.text.String()+`)`, v.args)
	for _, h := range heads {
		held[h.Transaction] = true
	}
	return held, err
}

// move writes where the transactions stand now, and sets when those that it ends did.
func (n tables) move(ctx context.Context, appends []driver.Append, grown []int, begun map[string]int64, found map[string]driver.Head) error {
	v := values{}
	for _, i := range grown {
		if a := appends[i]; begun[a.Transaction] == 0 {
			v.head(a, found[a.Transaction].Type)
		}
	}
	if v.rows == 0 {
		return nil
	}
	ends := map[string]*driver.Append{}
	for _, i := range grown {
		if appends[i].Due.IsZero() {
			ends[appends[i].Transaction] = &appends[i]
		}
	}
	query := `insert into {heads} (` + headColumns + `) values ` + v.text.String() + ` {or id}
		position = {new position}, sum = {new sum}, due = {new due}, claimed = 0, ended = {new ended}`
	if len(ends) == 0 {
		_, err := n.Exec(ctx, query, v.args...)
		return err
	}
	return n.Each(ctx, query+` returning id, ended`, v.args, func(scan func(...any) error) error {
		var id []byte
		var ended *int64
		err := scan(&id, &ended)
		if ended != nil {
			ends[string(id)].Ended = time.UnixMicro(*ended).UTC()
		}
		return err
	})
}

// write writes the records. The first of a transaction are written when that began.
func (n tables) write(ctx context.Context, appends []driver.Append, grown []int, begun map[string]int64) error {
	v := values{}
	for _, i := range grown {
		a := appends[i]
		for k, r := range a.Records {
			written, args := now, []any{a.Transaction, a.After + int64(k) + 1, []byte(r.Kind), []byte(r.Step), r.Data, r.Sum, int64(a.Epoch)}
			if began := begun[a.Transaction]; began != 0 {
				written, args = "", append(args, began)
			}
			v.row(written, args...)
		}
	}
	if v.rows == 0 {
		return nil
	}
	_, err := n.Exec(ctx, `insert into {records} (id, position, kind, step, data, sum, epoch, written) values `+v.text.String(), v.args...)
	return err
}

// values is the rows of a VALUES list.
type values struct {
	casts []string // of the parameters of a row, where PostgreSQL does not know their types
	text  strings.Builder
	args  []any
	rows  int
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
		v.text.WriteByte('?')
		if v.casts != nil {
			v.text.WriteString("{pg ::" + v.casts[i] + "}")
		}
	}
	if last != "" {
		v.text.WriteString("," + last)
	}
	v.text.WriteByte(')')
}

// head adds the row of a transaction as it is after an append.
func (v *values) head(a driver.Append, kind string) {
	ended := "null{pg ::bigint}"
	if a.Due.IsZero() {
		ended = now
	}
	v.row(ended+`,`+now, a.Transaction, int64(a.Shard), []byte(kind), a.After+int64(len(a.Records)), a.Records[len(a.Records)-1].Sum, due(a.Due), int64(0))
}

// due is a time in milliseconds since 1970, or null.
func due(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMilli()
}
