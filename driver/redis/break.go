package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// keepBreaks is how many records of forced releases are kept for a hash slot.
const keepBreaks = 1000

// Break takes the lock from b.Owner and grants it to the first waiter; the same
// script writes the record. See driver.Breaker. An earlier script reads the holder,
// so that foreign holders can be named as [Driver.Lock] shows them. For a Redisson
// lock, the key is deleted with all re-entries, and the waiters are notified.
//
// Records are kept in the stream interlock:{TAG}:breaks, the last thousand of each
// hash slot, for as long as the server keeps its data.
func (k *keyspace) Break(ctx context.Context, b driver.Break) (driver.BreakRecord, bool, error) {
	asked := request{op: "break", name: b.Name}
	if err := k.layout.checkBreak(asked, b); err != nil {
		return driver.BreakRecord{}, false, err
	}
	lock := k.layout.prefix + b.Name
	states, err := k.show(ctx, []string{lock})
	if err != nil {
		return driver.BreakRecord{}, false, err
	}
	s := states[0]
	switch {
	case s.Holder == nil || s.Holder.Owner != b.Owner:
		return driver.BreakRecord{}, false, nil
	case s.raw == "":
		return driver.BreakRecord{}, false, problem(asked, interlock.Definite, errUnbreakable)
	}
	if err := k.conn.noteBreaks(ctx, lock); err != nil {
		return driver.BreakRecord{}, false, err
	}
	m, err := k.conn.eval(ctx, asked, breakScript, batch{
		keys: []string{lock, breaksKey(lock)},
		args: []string{s.raw, b.Owner, b.Reason, b.By, strconv.Itoa(keepBreaks), redissonChannel(lock)},
	})
	if err != nil {
		return driver.BreakRecord{}, false, err
	}
	answer, err := m.AsStrSlice()
	switch {
	case err == nil && len(answer) == 0:
		return driver.BreakRecord{}, false, nil
	case err == nil && len(answer) == 2:
		record, err := parseBroken(b, answer[0], answer[1])
		if err != nil {
			return driver.BreakRecord{}, false, uncertain(asked, err)
		}
		return record, true, nil
	}
	return driver.BreakRecord{}, false, uncertain(asked, errReply)
}

// errUnbreakable: one of several holders cannot be removed alone.
var errUnbreakable = errors.New("it is not one holder's lock: use the client that wrote it")

func (l layout) checkBreak(asked request, b driver.Break) error {
	if err := checkName(b.Name, l.prefix+b.Name); err != nil {
		return err
	}
	if err := b.Validate(); err != nil {
		return problem(asked, interlock.Bug, err)
	}
	return nil
}

func breaksKey(lock string) string { return ownKeys(lock) + "breaks" }

// brokenKey is the set of the tags of slots that have records.
const brokenKey = reserved + wholeTag + "}:broken"

// noteBreaks adds the slot of a lock to brokenKey, before its record is written.
func (c *conn) noteBreaks(ctx context.Context, lock string) error {
	_, err := do(ctx, c, request{op: "break", harmless: true}, func(ctx context.Context) (int64, error) {
		return c.client.Do(ctx, c.client.B().Sadd().Key(brokenKey).Member(tags.of(slotOf(lock))).Build()).AsInt64()
	})
	return err
}

// breaksKeys returns the streams of all records.
func (c *conn) breaksKeys(ctx context.Context) ([]string, error) {
	keys, err := do(ctx, c, request{op: "show breaks", harmless: true}, func(ctx context.Context) ([]string, error) {
		return c.client.Do(ctx, c.client.B().Smembers().Key(brokenKey).Build()).AsStrSlice()
	})
	for i, tag := range keys {
		keys[i] = reserved + tag + "}:breaks"
	}
	slices.Sort(keys)
	return keys, err
}

// Breaks returns the recorded breaks; see driver.Breaker. For all names it reads each
// slot in which a lock was ever broken, from the set interlock:{0}:broken.
func (k *keyspace) Breaks(ctx context.Context, name string, limit int) ([]driver.BreakRecord, error) {
	lock := k.layout.prefix + name
	keys := []string{breaksKey(lock)}
	if name != "" {
		if err := checkName(name, lock); err != nil {
			return nil, err
		}
	} else {
		var err error
		if keys, err = k.conn.breaksKeys(ctx); err != nil {
			return nil, err
		}
	}
	var all []driver.BreakRecord
	for _, key := range keys {
		records, err := k.readBreaks(ctx, key, name)
		if err != nil {
			return nil, err
		}
		all = append(all, records...)
	}
	slices.SortStableFunc(all, func(a, b driver.BreakRecord) int { return b.At.Compare(a.At) })
	return all[:min(len(all), max(limit, 0))], nil
}

// readBreaks returns the records of one slot below the prefix, and of name if it is
// not empty, newest first.
func (k *keyspace) readBreaks(ctx context.Context, key, name string) ([]driver.BreakRecord, error) {
	c := k.conn
	asked := request{op: "show breaks", name: name, harmless: true}
	entries, err := do(ctx, c, asked, func(ctx context.Context) ([]rueidis.XRangeEntry, error) {
		return c.client.Do(ctx, c.client.B().Xrevrange().Key(key).End("+").Start("-").Build()).AsXRange()
	})
	if err != nil {
		return nil, err
	}
	var records []driver.BreakRecord
	for _, e := range entries {
		f := e.FieldValues
		of, below := strings.CutPrefix(f["lock"], k.layout.prefix)
		if !below || name != "" && of != name {
			continue
		}
		record, err := parseBroken(driver.Break{Name: of, Owner: f["owner"], Reason: f["reason"], By: f["by"]}, f["counter"], f["at"])
		if err != nil {
			return nil, problem(asked, interlock.Definite, fmt.Errorf("the record %s in %s is damaged: %w", e.ID, key, err))
		}
		records = append(records, record)
	}
	return records, nil
}

func parseBroken(b driver.Break, counter, at string) (driver.BreakRecord, error) {
	record := driver.BreakRecord{Break: b}
	ms, err := driver.ParseInt(at)
	if err != nil {
		return record, err
	}
	record.At = serverTime(ms)
	n, err := driver.ParseInt(counter)
	if err == nil && n > 0 {
		record.Token, err = interlock.NewToken(n, 0)
	}
	return record, err
}
