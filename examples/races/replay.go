package main

import (
	"context"
	"strconv"

	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/guard/version"
	"github.com/interlock-dev/interlock/history"
)

// A consumer stores the newest price of an item in Redis. Its group is reset, or a
// dead letter is retried. Old events arrive again and overwrite the newer state, which
// stays wrong until the next event, perhaps for ever.
//
// The remedy is to store the version with the state, and to compare and write in one
// step: then a replay changes nothing.
var replay = race{
	name:    "replay",
	symptom: "after a replay or a retried dead letter, caches and read models are out of date",
	remedy:  "guard/version: Store.Apply",
	system:  onRedis,
	broken:  replaying(func(s *scene) (cache, error) { return plainCache{s}, nil }),
	fixed: replaying(func(s *scene) (cache, error) {
		store, err := version.NewStore(redis.NewVersions(s.redis, "race:"), nil)
		return versionedCache{store}, err
	}),
	judge: history.CheckVersions,
	rule:  history.RuleVersion,
}

// cache stores the newest state of items.
type cache interface {
	put(ctx context.Context, item string, version int64) (written bool, err error)
	get(ctx context.Context, item string) (version int64, err error)
}

// replaying delivers events, old ones again, and a new one in between.
func replaying(open func(*scene) (cache, error)) twin {
	return func(ctx context.Context, s *scene) error {
		c, err := open(s)
		if err != nil {
			return err
		}
		item, newest := s.name("item"), 3+s.rand.Int64N(4)
		from := 1 + s.rand.Int64N(newest-1)
		live := actor{"live", func(ctx context.Context, pause func(string)) error {
			return s.consume(ctx, c, "live", item, 1, newest+1, pause)
		}}
		again := actor{"replay", func(ctx context.Context, pause func(string)) error {
			return s.consume(ctx, c, "replay", item, from, newest, pause)
		}}
		var order []string
		for range newest {
			order = append(order, "live")
		}
		last := []string{"live"} // the newest event arrives among the old ones
		for range newest + 1 - from {
			last = append(last, "replay")
		}
		last = s.shuffled(last)
		if err := s.act(ctx, append(order, last...), live, again); err != nil {
			return err
		}
		stored, err := c.get(ctx, item)
		s.state(history.OpVersion, item, stored)
		return err
	}
}

// consume handles the events of an item in order.
func (s *scene) consume(ctx context.Context, c cache, lane, item string, from, to int64, pause func(string)) error {
	for v := from; v <= to; v++ {
		call := s.told.Invoke(history.Event{Lane: lane, Op: history.OpApply, Key: item, Stamp: v})
		written, err := c.put(ctx, item, v)
		if err == nil && !written {
			call.EndWith(refused("this or a newer version is stored"))
		} else {
			call.End(err)
		}
		if err != nil {
			return err
		}
		if v < to {
			pause("")
		}
	}
	return nil
}

// plainCache writes every event.
type plainCache struct{ s *scene }

func (c plainCache) put(ctx context.Context, item string, version int64) (bool, error) {
	return true, c.s.redis.Do(ctx, c.s.redis.B().Set().Key("race:"+item).Value(strconv.FormatInt(version, 10)).Build()).Error()
}

func (c plainCache) get(ctx context.Context, item string) (int64, error) {
	return c.s.redis.Do(ctx, c.s.redis.B().Get().Key("race:"+item).Build()).AsInt64()
}

// versionedCache writes only newer events.
type versionedCache struct{ store *version.Store }

func (c versionedCache) put(ctx context.Context, item string, v int64) (bool, error) {
	outcome, _, err := c.store.Apply(ctx, item, version.Versioned{Stamp: version.Stamp{Version: v}})
	return outcome == version.Applied, err
}

func (c versionedCache) get(ctx context.Context, item string) (int64, error) {
	stored, err := c.store.Get(ctx, item)
	return stored.Stamp.Version, err
}
