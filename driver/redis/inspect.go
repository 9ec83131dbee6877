package redis

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Locks lists the names that are held or awaited in queue mode. It scans the
// keys of the database, which takes a second or so per million of them and
// does not stop the server. A key of a foreign client for which nobody waits
// cannot be told from any other string, and is not listed; [Driver.Lock] shows
// it. See driver.Inspector.
func (d *Driver) Locks(ctx context.Context, prefix string, limit int) ([]driver.LockState, bool, error) {
	full := d.layout.prefix + prefix
	found, err := scan(ctx, d.conn, reserved+"*}:[hq]*:"+escapeGlob(full)+"*", func(key string) (string, bool) {
		lock, ok := lockOf(key)
		return lock, ok && strings.HasPrefix(lock, full)
	})
	if err != nil {
		return nil, false, err
	}
	return d.layout.list(ctx, d.conn, found, limit)
}

// Lock shows one name; see driver.Inspector.
func (d *Driver) Lock(ctx context.Context, name string) (driver.LockState, error) {
	return d.layout.lock(ctx, d.conn, name)
}

// errAnyString: without a prefix every string would be listed, with its value.
var errAnyString = errors.New("a plain lock cannot be told from other strings: set Options.Prefix, or ask for one name")

// Locks lists the string keys below Options.Prefix, whoever wrote them. Without
// a prefix it refuses, because a plain lock cannot be told from other strings;
// [Plain.Lock] shows one. See driver.Inspector.
func (p *Plain) Locks(ctx context.Context, prefix string, limit int) ([]driver.LockState, bool, error) {
	full := p.layout.prefix + prefix
	if p.layout.prefix == "" {
		return nil, false, problem(request{op: "list", name: prefix}, interlock.Definite, errAnyString)
	}
	found, err := scan(ctx, p.conn, escapeGlob(full)+"*", func(key string) (string, bool) {
		return key, strings.HasPrefix(key, full) && !strings.HasPrefix(key, reserved)
	})
	if err != nil {
		return nil, false, err
	}
	return p.layout.list(ctx, p.conn, found, limit)
}

// Lock shows one name; see driver.Inspector.
func (p *Plain) Lock(ctx context.Context, name string) (driver.LockState, error) {
	return p.layout.lock(ctx, p.conn, name)
}

// lock shows one name.
func (l layout) lock(ctx context.Context, c *conn, name string) (driver.LockState, error) {
	if err := checkName(name, l.prefix+name); err != nil {
		return driver.LockState{}, err
	}
	states, err := l.show(ctx, c, []string{l.prefix + name})
	if err != nil {
		return driver.LockState{}, err
	}
	return states[0], nil
}

// scan walks all keys that match pattern and collects what of accepts, once each.
func scan(ctx context.Context, c *conn, pattern string, of func(key string) (string, bool)) ([]string, error) {
	var found []string
	for cursor := uint64(0); ; {
		page, err := do(ctx, c, request{op: "list"}, func(ctx context.Context) (rueidis.ScanEntry, error) {
			return c.client.Do(ctx, c.client.B().Scan().Cursor(cursor).Match(pattern).Count(1000).Build()).AsScanEntry()
		})
		if err != nil {
			return nil, err
		}
		for _, key := range page.Elements {
			if lock, ok := of(key); ok {
				found = append(found, lock)
			}
		}
		if cursor = page.Cursor; cursor == 0 {
			slices.Sort(found)
			return slices.Compact(found), nil
		}
	}
}

// list shows the first limit of locks that are held or awaited.
func (l layout) list(ctx context.Context, c *conn, locks []string, limit int) (states []driver.LockState, more bool, err error) {
	for chunk := range slices.Chunk(locks, batchSize) {
		shown, err := l.show(ctx, c, chunk)
		if err != nil {
			return nil, false, err
		}
		for _, s := range shown {
			switch {
			case s.Holder == nil && len(s.Waiters) == 0: // it ended meanwhile
			case len(states) == limit:
				return states, true, nil
			default:
				states = append(states, s)
			}
		}
	}
	return states, false, nil
}

// show asks for the state of locks, in one request.
func (l layout) show(ctx context.Context, c *conn, locks []string) ([]driver.LockState, error) {
	var b batch
	for _, lock := range locks {
		b.keys = append(b.keys, keysOf(lock).all()...)
	}
	m, err := c.eval(ctx, request{op: "show"}, showScript, b)
	if err != nil {
		return nil, err
	}
	items, err := m.ToArray()
	if err != nil || len(items) != len(locks) {
		return nil, uncertain(request{op: "show"}, errReply)
	}
	states := make([]driver.LockState, len(locks))
	for i, item := range items {
		states[i].Name = strings.TrimPrefix(locks[i], l.prefix)
		if err := parseState(item, &states[i]); err != nil {
			return nil, uncertain(request{op: "show", name: states[i].Name}, err)
		}
	}
	return states, nil
}

// parseState reads what show.lua answers for a name.
func parseState(item rueidis.RedisMessage, s *driver.LockState) error {
	fields, err := item.ToArray()
	if err != nil || len(fields) != 6 {
		return errReply
	}
	if held, _ := fields[0].AsInt64(); held == 1 {
		if s.Holder, err = parseHolder(fields); err != nil {
			return err
		}
	}
	waiters, err := fields[5].ToArray()
	if err != nil {
		return errReply
	}
	for _, w := range waiters {
		waiter, err := parseWaiter(w)
		if err != nil {
			return err
		}
		s.Waiters = append(s.Waiters, waiter)
	}
	return nil
}

// parseHolder reads the holder. One of which nothing is kept is foreign.
func parseHolder(fields []rueidis.RedisMessage) (*driver.Contender, error) {
	owner, err := fields[1].ToString()
	if err != nil {
		return nil, err
	}
	left, err := fields[2].AsInt64()
	if err != nil {
		return nil, err
	}
	holder := &driver.Contender{Owner: owner, Expires: max(0, time.Duration(left)*time.Millisecond)}
	counter, err := fields[3].AsInt64()
	if err != nil {
		holder.Foreign = true
		return holder, nil
	}
	if holder.Token, err = interlock.NewToken(counter, 0); err != nil {
		return nil, err
	}
	since, err := fields[4].AsInt64()
	holder.Since = serverTime(since)
	return holder, err
}

func parseWaiter(item rueidis.RedisMessage) (driver.Contender, error) {
	fields, err := item.AsStrSlice()
	if err != nil || len(fields) != 3 {
		return driver.Contender{}, errReply
	}
	since, err := parseInt(fields[1])
	if err != nil {
		return driver.Contender{}, errReply
	}
	alive, err := parseInt(fields[2])
	return driver.Contender{Owner: fields[0], Since: serverTime(since), Expires: time.Duration(alive) * time.Millisecond}, err
}

// escapeGlob makes a text match itself in a pattern of SCAN.
func escapeGlob(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
}
