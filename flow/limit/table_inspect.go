package limit

import (
	"context"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

var _ driver.LimitInspector = (*inTable)(nil)

// Limits lists keys; see [driver.LimitInspector].
func (t *inTable) Limits(ctx context.Context, prefix string, limit int) (all []driver.StoredLimit, more bool, err error) {
	prefix = t.table.Prefix + prefix
	err = t.do(ctx, prefix, func(q sqltable.Tables) (err error) {
		all, err = t.list(ctx, q, `name >= {?} and until_us > {micros now} order by name limit ?`, prefix, limit+1)
		return err
	})
	for i, s := range all {
		if !strings.HasPrefix(s.Key, prefix) {
			all = all[:i]
			break
		}
		all[i].Key = s.Key[len(t.table.Prefix):]
	}
	return all[:min(len(all), limit)], len(all) > limit, err
}

// Limit returns one key.
func (t *inTable) Limit(ctx context.Context, key string) (s driver.StoredLimit, err error) {
	err = t.do(ctx, key, func(q sqltable.Tables) error {
		all, err := t.list(ctx, q, `name = ?`, t.table.Prefix+key)
		if len(all) > 0 {
			s = all[0]
		}
		return err
	})
	s.Key = key
	return s, err
}

// list reads rows.
func (t *inTable) list(ctx context.Context, q sqltable.Tables, where string, args ...any) (all []driver.StoredLimit, err error) {
	err = q.Each(ctx, `select name, state, until_us - {micros now} from {limits} where `+where, args, func(scan func(...any) error) error {
		var s driver.StoredLimit
		var text string
		var left int64
		if err := scan(&s.Key, &text, &left); err != nil {
			return err
		}
		state, ok := driver.ParseLimitState(text)
		switch {
		case !ok:
			s.Damaged = text
		case left > 0:
			s.State = state
		}
		s.ResetAfter = max(0, time.Duration(left)*time.Microsecond)
		all = append(all, s)
		return nil
	})
	return all, err
}

// Reset deletes a key.
func (t *inTable) Reset(ctx context.Context, key string) (found bool, err error) {
	err = t.do(ctx, key, func(q sqltable.Tables) error {
		n, err := q.Exec(ctx, `delete from {limits} where name = ?`, t.table.Prefix+key)
		found = n > 0
		return err
	})
	return found, err
}
