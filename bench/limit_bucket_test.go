package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// bucket stores token buckets in Redis and updates them under a distributed lock.
type bucket struct {
	locks  *lock.Fenced
	client rueidis.Client
}

var compareAndSet = rueidis.NewLuaScript(`if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1`)

// allow takes a unit under the lock of the key. If the lock was lost and another holder has
// written, the write fails, and the next attempt reads what that holder took.
func (b *bucket) allow(ctx context.Context, key string, r driver.Rate) (allowed bool, err error) {
	err = b.locks.Do(ctx, "bucket/"+key, func(ctx context.Context, _ interlock.Claim) error {
		for written := false; !written; {
			text, now, err := b.read(ctx, key)
			if err == nil {
				allowed, written, err = b.take(ctx, key, r, text, now)
			}
			if err != nil || !allowed {
				return err
			}
		}
		return nil
	})
	return allowed && err == nil, err
}

// take takes a unit if the text is still the state of the bucket.
func (b *bucket) take(ctx context.Context, key string, r driver.Rate, text string, now int64) (allowed, written bool, err error) {
	state, ok := driver.ParseLimitState(text)
	if !ok {
		return false, false, fmt.Errorf("%s holds %q, which is not the state of a limit", key, text)
	}
	states := []driver.LimitState{state}
	a := driver.Decide(now, driver.LimitCall{{Key: key, Rate: r, Cost: 1}}, states)
	if !a.Allowed() {
		return false, false, nil
	}
	life := fmt.Sprint(a.Decisions[0].ResetAfter.Milliseconds() + 1000)
	written, err = compareAndSet.Exec(ctx, b.client, []string{key}, []string{text, states[0].Text(), life}).AsBool()
	return true, written, err
}

// read returns the state of a bucket, and the server's clock in microseconds.
func (b *bucket) read(ctx context.Context, key string) (text string, now int64, err error) {
	answers := b.client.DoMulti(ctx, b.client.B().Get().Key(key).Build(), b.client.B().Time().Build())
	if text, err = answers[0].ToString(); err != nil && !rueidis.IsRedisNil(err) {
		return "", 0, err
	}
	clock, err := answers[1].AsIntSlice()
	if err != nil {
		return "", 0, err
	}
	return text, clock[0]*1_000_000 + clock[1], nil
}

func newBucket(tb testing.TB, server *testbed.Server) *bucket {
	client := dialRedis(tb, server)
	d, err := redis.Open(tb.Context(), client, &redis.Options{TTL: ttl})
	ok(tb, err)
	closeAfter(tb, d.Close)
	locks, err := lock.NewFenced(d, nil)
	ok(tb, err)
	closeAfter(tb, locks.Close)
	return &bucket{locks, client}
}

// TestBucketWithoutItsLock checks that a late write after a lost lock fails and takes nothing.
func TestBucketWithoutItsLock(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a server")
	}
	server := testbed.Redis(t)
	late, other := newBucket(t, server), newBucket(t, server)
	rate := driver.Rate{Count: 1, Period: time.Hour}
	text, now, err := late.read(t.Context(), "k") // under a lock that is then lost
	ok(t, err)
	if allowed, err := other.allow(t.Context(), "k", rate); err != nil || !allowed {
		t.Fatal(allowed, err)
	}
	if _, written, err := late.take(t.Context(), "k", rate, text, now); err != nil || written {
		t.Error("the unit was admitted twice:", err)
	}
	if allowed, err := late.allow(t.Context(), "k", rate); err != nil || allowed {
		t.Error("the unit was admitted again:", err)
	}
}
