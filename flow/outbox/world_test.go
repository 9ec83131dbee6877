package outbox_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // tests cause thousands of failures
	crash.Main(m, roles)
}

// bound limits each wait for a condition.
const bound = 30 * time.Second

// box has few slices, so that background polls are rare.
var box = outbox.Table{Slices: 2}

// made creates the tables of an outbox in db.
func made(tb testing.TB, db *databases.DB) *databases.DB {
	tb.Helper()
	db.Do(tb, box.Create)
	return db
}

// add adds messages in a transaction of their own.
func add(tb testing.TB, db *databases.DB, messages ...driver.Message) {
	tb.Helper()
	db.Do(tb, func(ctx context.Context, sql driver.SQL) error { return anyNumber.Add(ctx, sql, messages...) })
}

// addLater adds messages that are not sent for an hour.
func addLater(tb testing.TB, db *databases.DB, messages ...driver.Message) {
	tb.Helper()
	db.Do(tb, func(ctx context.Context, sql driver.SQL) error {
		return box.AddAt(ctx, sql, time.Now().Add(time.Hour), messages...)
	})
}

// replay replays dead letters.
func replay(tb testing.TB, db *databases.DB, ids ...string) {
	tb.Helper()
	db.Do(tb, func(ctx context.Context, sql driver.SQL) error {
		return anyNumber.Replay(ctx, sql, ids, "fixed", "bob")
	})
}

// bury makes dead letters of messages.
func bury(tb testing.TB, db *databases.DB, ids ...string) {
	tb.Helper()
	db.Do(tb, func(ctx context.Context, sql driver.SQL) error {
		for _, id := range ids {
			if err := anyNumber.MakeDeadLetter(ctx, sql, id, "why", "bob"); err != nil {
				return err
			}
		}
		return nil
	})
}

// keyed returns messages of one key, whose ids are KEY/from to KEY/to.
func keyed(key string, from, to int) (messages []driver.Message) {
	for i := from; i <= to; i++ {
		messages = append(messages, driver.Message{ID: fmt.Sprintf("%s/%d", key, i), Topic: "t", Key: key, Payload: []byte(fmt.Sprint(i))})
	}
	return messages
}

type claim = testbed.Claim

var start = interlock.CounterAt(time.Now())

// grant returns the n-th claim.
func grant(n int) *claim {
	token, err := interlock.NewToken(start+int64(n), 0)
	if err != nil {
		panic(err)
	}
	return testbed.NewClaim("outbox", fmt.Sprintf("owner of %d", token), token, time.Hour)
}

// relay returns a relay with short pauses.
func relay(tb testing.TB, db driver.Beginner[driver.SQL], sink driver.Sink, o outbox.Options) *outbox.Relay {
	tb.Helper()
	if o.MinPause == 0 {
		o.MinPause, o.MaxPause = 5*time.Millisecond, 50*time.Millisecond
	}
	if o.MaxPoll == 0 {
		o.MaxPoll = 20 * time.Millisecond
	}
	r, err := outbox.NewRelay(pool(db), box, sink, &o)
	ok(tb, err)
	return r
}

// pool returns the pool of db, which may be an Autocommitter.
func pool(db driver.Beginner[driver.SQL]) driver.Beginner[driver.SQL] {
	if d, ok := db.(*databases.DB); ok {
		return d.BeginnerAt
	}
	return db
}

// serve runs a relay over all slices until stop, or the end of the test.
func serve(tb testing.TB, r *outbox.Relay, c interlock.Claim) (stop func() error) {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	ended := make(chan error, 1)
	go func() { ended <- r.RunAll(ctx, c) }()
	stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(bound):
			return fmt.Errorf("the relay has not ended after %v", bound)
		}
	})
	tb.Cleanup(func() { _ = stop() })
	return stop
}

// delivered waits until sink has n ids, and returns them in the order of their first deliveries.
func delivered(tb testing.TB, sink *memory.Sink, n int) (ids []string) {
	tb.Helper()
	testbed.Eventually(tb, fmt.Sprintf("%d messages are delivered", n), bound, func() bool {
		ids = firsts(sink.Messages())
		return len(ids) >= n
	})
	return ids
}

// firsts returns ids in the order of their first delivery.
func firsts(messages []driver.Message) (ids []string) {
	seen := map[string]bool{}
	for _, m := range messages {
		if !seen[m.ID] {
			seen[m.ID] = true
			ids = append(ids, m.ID)
		}
	}
	return ids
}

// empty waits until the outbox is empty.
func empty(tb testing.TB, db *databases.DB) {
	tb.Helper()
	testbed.Eventually(tb, "the outbox is empty", bound, func() bool {
		return databases.One[int64](tb, db, `select (select count(*) from interlock_outbox) + (select count(*) from interlock_outbox_lane)`) == 0
	})
}

func count(tb testing.TB, db *databases.DB, table string) int64 {
	tb.Helper()
	return databases.One[int64](tb, db, `select count(*) from `+table)
}

var ok = testbed.OK

func wantKind(tb testing.TB, err error, kind interlock.ErrorKind) {
	tb.Helper()
	if err == nil || interlock.Kind(err) != kind {
		tb.Errorf("%v (%v), want one that is %v", err, interlock.Kind(err), kind)
	}
}
