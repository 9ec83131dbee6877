package redis

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock/driver"
)

// limitMark is the part of a limit's Redis key before its own key.
const limitMark = "}:limit:"

// Limits lists keys; see driver.LimitInspector. It scans the keys of the database, which takes
// about a second per million and does not block the server.
func (l *Limiter) Limits(ctx context.Context, prefix string, limit int) ([]driver.StoredLimit, bool, error) {
	keys, err := scan(ctx, l.conn, escapeGlob(reserved)+"*"+limitMark+escapeGlob(l.prefix+prefix)+"*", func(key string) (string, bool) {
		_, key, _ = strings.Cut(key, limitMark)
		return strings.CutPrefix(key, l.prefix)
	})
	if err != nil {
		return nil, false, err
	}
	keys = slices.DeleteFunc(keys, func(key string) bool { return !strings.HasPrefix(key, prefix) }) // a key may contain the mark
	var all []driver.StoredLimit
	for chunk := range slices.Chunk(keys, batchSize) {
		some, err := l.show(ctx, chunk)
		if err != nil {
			return nil, false, err
		}
		all = append(all, slices.DeleteFunc(some, func(s driver.StoredLimit) bool { return len(s.State) == 0 && s.Damaged == "" })...)
		if len(all) > limit {
			return all[:limit], true, nil
		}
	}
	return all, false, nil
}

// Limit returns the state of one key.
func (l *Limiter) Limit(ctx context.Context, key string) (driver.StoredLimit, error) {
	all, err := l.show(ctx, []string{key})
	if err != nil {
		return driver.StoredLimit{}, err
	}
	return all[0], nil
}

// show reads keys.
func (l *Limiter) show(ctx context.Context, keys []string) ([]driver.StoredLimit, error) {
	return do(ctx, l.conn, request{op: "show limit", name: keys[0], harmless: true}, func(ctx context.Context) (all []driver.StoredLimit, err error) {
		to := l.conn.client.B()
		var commands rueidis.Commands
		for _, key := range keys {
			commands = append(commands, to.Get().Key(fenceKey("limit", l.prefix+key)).Build(), to.Pttl().Key(fenceKey("limit", l.prefix+key)).Build())
		}
		results := l.conn.client.DoMulti(ctx, commands...)
		for i, key := range keys {
			s := driver.StoredLimit{Key: key}
			text, err := results[2*i].ToString()
			switch answer, refused := rueidis.IsRedisErr(err); {
			case rueidis.IsRedisNil(err):
			case refused && strings.HasPrefix(answer.Error(), "WRONGTYPE"):
				s.Damaged = "a value that is no text"
			case err != nil:
				return nil, err
			default:
				var ok bool
				if s.State, ok = driver.ParseLimitState(text); !ok {
					s.Damaged = text
				}
			}
			left, err := results[2*i+1].AsInt64()
			if err != nil {
				return nil, err
			}
			s.ResetAfter = max(0, time.Duration(left)*time.Millisecond-time.Second) // the script keeps it for another second
			if s.ResetAfter == 0 && s.Damaged == "" {
				s.State = nil
			}
			all = append(all, s)
		}
		return all, nil
	})
}

// Reset deletes a key.
func (l *Limiter) Reset(ctx context.Context, key string) (bool, error) {
	return do(ctx, l.conn, request{op: "reset limit", name: key}, func(ctx context.Context) (bool, error) {
		n, err := l.conn.client.Do(ctx, l.conn.client.B().Del().Key(fenceKey("limit", l.prefix+key)).Build()).AsInt64()
		return n > 0, err
	})
}
