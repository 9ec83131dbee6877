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

// Locks lists the names that are held or awaited in queue mode, from an index that
// the scripts keep: a hundred names cost one request, however large the database is.
// Locks of other clients are left out, unless a waiter of queue mode waits for them;
// see [Driver.ForeignLocks] and [Driver.Lock]. See driver.Inspector.
//
// In a cluster the index has a part in each hash slot. A prefix that contains a
// whole {tag} needs one part; any other takes a few milliseconds of each master.
func (d *Driver) Locks(ctx context.Context, prefix string, limit int) (states []driver.LockState, more bool, err error) {
	full := d.layout.prefix + prefix
	for after := ""; ; {
		names, err := d.names(ctx, full, after)
		if err != nil || len(names) == 0 {
			return states, false, err
		}
		found, more, err := d.list(ctx, names, limit-len(states), func(s shown) bool {
			return s.Holder == nil || !s.Holder.Foreign || len(s.Waiters) > 0
		})
		if states = append(states, found...); err != nil || more {
			return states, more, err
		}
		after = names[len(names)-1]
	}
}

// ForeignLocks lists the keys below prefix that look like locks of redis-py, redsync,
// bsm/redislock, rueidislock or Redisson. It scans the keys of the database, which
// takes about a second per million and does not block the server. Without prefix and
// Options.Prefix it does not scan, and lists the foreign locks that are awaited in
// queue mode.
func (d *Driver) ForeignLocks(ctx context.Context, prefix string, limit int) ([]driver.LockState, bool, error) {
	full := d.layout.prefix + prefix
	if full == "" {
		states, more, err := d.Locks(ctx, prefix, limit)
		return slices.DeleteFunc(states, func(s driver.LockState) bool { return s.Holder == nil || !s.Holder.Foreign }), more, err
	}
	found, err := scanBelow(ctx, d.conn, full)
	if err != nil {
		return nil, false, err
	}
	return d.list(ctx, found, limit, func(s shown) bool { return s.known })
}

// errAnyString: without a prefix every string would be listed, with its value.
var errAnyString = errors.New("a plain lock cannot be distinguished from other strings: set a prefix, as by ?prefix= of the URL, or ask for one name")

// Locks lists the string keys below Options.Prefix, by any writer, and Redisson's locks. Without
// a prefix it returns an error, because a plain lock cannot be distinguished from other strings;
// [Plain.Lock] shows one. See driver.Inspector.
func (p *Plain) Locks(ctx context.Context, prefix string, limit int) ([]driver.LockState, bool, error) {
	full := p.layout.prefix + prefix
	if p.layout.prefix == "" {
		return nil, false, problem(request{op: "list", name: prefix}, interlock.Definite, errAnyString)
	}
	found, err := scanBelow(ctx, p.conn, full)
	if err != nil {
		return nil, false, err
	}
	return p.list(ctx, found, limit, func(s shown) bool { return s.known || s.kind == "string" })
}

// scanBelow returns all keys that begin with prefix, except reserved ones.
func scanBelow(ctx context.Context, c *conn, prefix string) ([]string, error) {
	return scan(ctx, c, escapeGlob(prefix)+"*", func(key string) (string, bool) {
		return key, strings.HasPrefix(key, prefix) && !strings.HasPrefix(key, reserved)
	})
}

// Lock returns the state of one name; see driver.Inspector.
func (k *keyspace) Lock(ctx context.Context, name string) (driver.LockState, error) {
	lock := k.layout.prefix + name
	if err := checkName(name, lock); err != nil {
		return driver.LockState{}, err
	}
	states, err := k.show(ctx, []string{lock})
	if err != nil {
		return driver.LockState{}, err
	}
	return states[0].LockState, nil
}

// scan walks all keys that match pattern, on each master of a cluster, and collects
// the texts that of accepts, once each.
func scan(ctx context.Context, c *conn, pattern string, of func(key string) (string, bool)) ([]string, error) {
	nodes, err := c.masters(ctx)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, node := range nodes {
		for cursor := uint64(0); ; {
			page, err := do(ctx, c, request{op: "list", harmless: true}, func(ctx context.Context) (rueidis.ScanEntry, error) {
				return node.Do(ctx, node.B().Scan().Cursor(cursor).Match(pattern).Count(1000).Build()).AsScanEntry()
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
				break
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found), nil
}

// list returns the states of the first limit of locks that are in use and wanted.
func (k *keyspace) list(ctx context.Context, locks []string, limit int, wanted func(shown) bool) (states []driver.LockState, more bool, err error) {
	for chunk := range slices.Chunk(locks, batchSize) {
		all, err := k.show(ctx, chunk)
		if err != nil {
			return nil, false, err
		}
		for _, s := range all {
			switch {
			case s.Holder == nil && len(s.Waiters) == 0: // it has ended meanwhile
			case !wanted(s):
			case len(states) >= limit:
				return states, true, nil
			default:
				states = append(states, s.LockState)
			}
		}
	}
	return states, false, nil
}

// show reads the state of locks in one request, or in one for each slot of a cluster.
func (k *keyspace) show(ctx context.Context, locks []string) ([]shown, error) {
	l := k.layout
	asked := request{op: "show", harmless: true}
	parts := chunks(l, locks, func(lock string) string { return lock })
	batches := make([]batch, len(parts))
	for i, part := range parts {
		batches[i] = l.showing(part)
	}
	results, err := k.conn.evalAll(ctx, asked, showScript, batches)
	if err != nil {
		return nil, err
	}
	states := make(map[string]shown, len(locks))
	for i, part := range parts {
		m, err := results[i].ToMessage()
		if err != nil {
			return nil, failure(asked, err)
		}
		items, err := m.ToArray()
		if err != nil || len(items) != len(part) {
			return nil, uncertain(asked, errReply)
		}
		for j, lock := range part {
			s := shown{LockState: driver.LockState{Name: strings.TrimPrefix(lock, l.prefix)}}
			if err := parseState(items[j], lock, &s); err != nil {
				return nil, uncertain(request{op: "show", name: s.Name, harmless: true}, err)
			}
			states[lock] = s
		}
	}
	ordered := make([]shown, len(locks))
	for i, lock := range locks {
		ordered[i] = states[lock]
	}
	return ordered, nil
}

// showing returns the arguments of show.lua.
func (l layout) showing(locks []string) (b batch) {
	b.keys = slices.Clone(locks)
	for _, lock := range locks {
		for _, key := range redissonKeys(lock) {
			if l.cluster && slotOf(key) != slotOf(lock) {
				key = lock // Redisson keeps it in another slot, which is not read
			}
			b.keys = append(b.keys, key)
		}
	}
	return b
}

// parseState parses the answer of show.lua for a name.
func parseState(item rueidis.RedisMessage, lock string, s *shown) error {
	fields, err := item.ToArray()
	if err != nil || len(fields) != 8 {
		return errReply
	}
	if s.kind, err = fields[0].ToString(); err != nil {
		return errReply
	}
	if s.kind != "none" {
		if err := parseHolder(fields, lock, s); err != nil {
			return err
		}
	}
	return errors.Join(parseWaiters(fields[5], s, parseWaiter), parseWaiters(fields[7], s, parseRedissonWaiter))
}

func parseWaiters(list rueidis.RedisMessage, s *shown, parse func(rueidis.RedisMessage) (driver.Contender, error)) error {
	items, err := list.ToArray()
	if err != nil {
		return errReply
	}
	for _, item := range items {
		waiter, err := parse(item)
		if err != nil {
			return err
		}
		s.Waiters = append(s.Waiters, waiter)
	}
	return nil
}

// parseHolder parses the holder. A holder without a record is foreign.
func parseHolder(fields []rueidis.RedisMessage, lock string, s *shown) error {
	var err error
	if s.raw, err = fields[1].ToString(); err != nil {
		return err
	}
	left, err := fields[2].AsInt64()
	if err != nil {
		return err
	}
	s.Holder = &driver.Contender{Owner: s.raw, Expires: max(0, time.Duration(left)*time.Millisecond)}
	counter, err := fields[3].AsInt64()
	if err != nil {
		return parseForeign(fields[6], lock, s)
	}
	if s.Holder.Token, err = interlock.NewToken(counter, 0); err != nil {
		return err
	}
	since, err := fields[4].AsInt64()
	s.Holder.Since = serverTime(since)
	return err
}

// parseForeign names a holder without a record.
func parseForeign(hash rueidis.RedisMessage, lock string, s *shown) error {
	s.Holder.Foreign = true
	switch s.kind {
	case "string":
		s.Holder.Owner, s.known = nameForeign(lock, s.raw)
		return nil
	case "hash":
		fields, err := hash.AsStrMap()
		if err != nil {
			return errReply
		}
		if s.Holder.Owner, s.raw, s.known = nameHash(fields); s.known {
			return nil
		}
	}
	s.Holder.Owner = "something that is no lock: a " + s.kind
	return nil
}

func parseRedissonWaiter(item rueidis.RedisMessage) (driver.Contender, error) {
	fields, err := item.AsStrSlice()
	if err != nil || len(fields) != 2 {
		return driver.Contender{}, errReply
	}
	alive, err := driver.ParseInt(fields[1])
	return driver.Contender{Owner: "Redisson " + fields[0], Expires: time.Duration(alive) * time.Millisecond, Foreign: true}, err
}

func parseWaiter(item rueidis.RedisMessage) (driver.Contender, error) {
	fields, err := item.AsStrSlice()
	if err != nil || len(fields) != 3 {
		return driver.Contender{}, errReply
	}
	since, err := driver.ParseInt(fields[1])
	if err != nil {
		return driver.Contender{}, errReply
	}
	alive, err := driver.ParseInt(fields[2])
	return driver.Contender{Owner: fields[0], Since: serverTime(since), Expires: time.Duration(alive) * time.Millisecond}, err
}

// escapeGlob escapes a text for a pattern of SCAN.
func escapeGlob(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
}
