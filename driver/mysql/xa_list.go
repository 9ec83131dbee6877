package mysql

import (
	"context"
	"database/sql"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// InDoubt lists the prepared branches of this namespace, including those of sessions that have not
// ended. The times come from the marks, by a transaction that reads uncommitted data, because the
// server does not report them.
func (p *Participant) InDoubt(ctx context.Context) (all []driver.InDoubt, err error) {
	const op = "list prepared"
	if ctx.Err() != nil {
		return nil, fail.Unsent(ctx, op, p.space.Namespace)
	}
	err = each(ctx, p.db, `xa recover format = 'sql'`, nil, func(rows *sql.Rows) error {
		var format, gtrid, bqual int64
		var data string
		err := rows.Scan(&format, &gtrid, &bqual, &data)
		if x, ok := p.parseXID(data); ok {
			all = append(all, driver.InDoubt{XID: x})
		}
		return err
	})
	if err == nil && len(all) > 0 {
		err = p.dirty(ctx, func(q querier) error { return p.readSince(ctx, q, all) })
	}
	if err != nil {
		return nil, ofRead(ctx, op, p.space.Namespace, err)
	}
	return all, nil
}

// readSince reads the times when branches were prepared.
func (p *Participant) readSince(ctx context.Context, q querier, all []driver.InDoubt) error {
	for part := range slices.Chunk(all, 1000) {
		at := map[string]*driver.InDoubt{}
		var keys []any
		for i := range part {
			at[p.key(part[i].XID)] = &part[i]
			keys = append(keys, p.key(part[i].XID))
		}
		err := each(ctx, q, `select branch, timestampdiff(microsecond, '2020-01-01', marked) from `+p.space.Marks+
			` where branch in (`+parameters(len(keys))+`)`, keys, func(rows *sql.Rows) error {
			var key string
			var micros int64
			err := rows.Scan(&key, &micros)
			if d := at[key]; d != nil {
				d.Since = serverTime(micros)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// parseXID parses a text of XA RECOVER, and returns the branch if it is in this namespace.
func (p *Participant) parseXID(data string) (x driver.XID, ok bool) {
	parts := strings.Split(data, ",")
	if len(parts) != 3 || parts[2] != strconv.Itoa(formatID) {
		return x, false
	}
	gtrid, known := unquoted(parts[0])
	bqual, knows := unquoted(parts[1])
	branch, ours := strings.CutPrefix(bqual, p.space.Namespace+"/")
	x = driver.XID{Transaction: gtrid, Branch: branch}
	return x, known && knows && ours && x.Check() == nil
}

// unquoted parses a text of XA RECOVER: X'6869' or 'hi'. Texts of this package have no comma or
// quote.
func unquoted(s string) (string, bool) {
	digits, isHex := strings.CutPrefix(s, "X'")
	if !isHex {
		plain, ok := strings.CutPrefix(s, "'")
		return strings.TrimSuffix(plain, "'"), ok && strings.HasSuffix(plain, "'")
	}
	raw, err := hex.DecodeString(strings.TrimSuffix(digits, "'"))
	return string(raw), err == nil && strings.HasSuffix(digits, "'")
}

// forgetBatch bounds the marks that one statement removes or updates.
const forgetBatch = 1000

// Forget removes the marks of this namespace that an earlier Forget has seen before a time of the
// database's clock, and returns their number. Call it periodically with the begin of the oldest
// unfinished transaction in the journal, or now if there is none. Subtract the maximum difference of
// clocks. A Commit after the removal of the branch's mark is an ErrHeuristic.
//
// The age of a mark begins with the first Forget that sees it. The branch may have been
// prepared long before its commit, whose time is unknown.
func (p *Participant) Forget(ctx context.Context, before time.Time) (removed int64, err error) {
	const op = "forget marks"
	if ctx.Err() != nil {
		return 0, fail.Unsent(ctx, op, p.space.Namespace)
	}
	micros := before.UnixMicro() - interlock.EpochUnixMicro
	removed, err = p.batches(ctx, `timestampdiff(microsecond, '2020-01-01', seen) < ?`, `delete from `+p.space.Marks+` where`, micros)
	if err == nil {
		_, err = p.batches(ctx, `coalesce(?, seen) is null`, `update `+p.space.Marks+` set seen = utc_timestamp(6) where seen is null and`, nil)
	}
	return removed, ofStatement(ctx, op, p.space.Namespace, err)
}

// batches changes the marks for which a condition holds. It reads the committed ones without locks,
// and then locks them one by one: a locking scan would wait for every branch in doubt.
func (p *Participant) batches(ctx context.Context, condition, change string, arg any) (all int64, err error) {
	prefix := p.space.Namespace + "/"
	for {
		var keys []any
		err := each(ctx, p.db, `select branch from `+p.space.Marks+` where left(branch, ?) = ? and `+condition+` limit ?`,
			[]any{len(prefix), prefix, arg, forgetBatch}, func(rows *sql.Rows) error {
				var key string
				err := rows.Scan(&key)
				keys = append(keys, key)
				return err
			})
		if err != nil || len(keys) == 0 {
			return all, err
		}
		result, err := p.db.ExecContext(ctx, change+` branch in (`+parameters(len(keys))+`)`, keys...)
		if err != nil {
			return all, err
		}
		n, err := result.RowsAffected()
		if all += n; err != nil || len(keys) < forgetBatch {
			return all, err
		}
	}
}
