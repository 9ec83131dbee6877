package bench

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock/bench/compare"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// streamCases compares queues on streams with a loop that reads as a consumer group.
func streamCases(tb testing.TB) []benchmark {
	server := lazily(tb, testbed.Redis)
	return []benchmark{{
		Case: compare.Case{Name: "queue/redis/empty", Rounds: 5, Window: time.Second,
			Note:  "one Redis without persistence; from the first message of a backlog of 20,000 until all are handled and recorded; handlers that do nothing",
			Goals: []compare.Goal{faster("XREADGROUP loop", 0)}},
		smoke: true,
		open: func(tb testing.TB) []compare.Side {
			return []compare.Side{
				interlockStream(tb, server(), "interlock", 1000),
				interlockStream(tb, server(), "interlock, no keys", 0),
				groupLoop(tb, server()),
			}
		},
	}}
}

// interlockStream processes messages of the given number of keys; 0 means none.
func interlockStream(tb testing.TB, server *testbed.Server, name string, keys int64) compare.Side {
	q := redis.NewQueue(dialRedis(tb, server), nil)
	stream := fmt.Sprint("queue", fresh.Add(1))
	add := func(ctx context.Context, numbers []int64) error {
		return q.Add(ctx, stream, payloads(numbers, keys)...)
	}
	return backlog(name, add, consumer(q, stream, 0, guarded(nothing)))
}

// groupLoop reads 500 entries at a time, handles them, and acknowledges and deletes them.
func groupLoop(tb testing.TB, server *testbed.Server) compare.Side {
	client := dialRedis(tb, server)
	stream := fmt.Sprint("bare", fresh.Add(1))
	ok(tb, client.Do(tb.Context(), client.B().XgroupCreate().Key(stream).Group("bench").Id("0").Mkstream().Build()).Error())
	send := func(ctx context.Context, commands ...rueidis.Completed) error {
		for _, r := range client.DoMulti(ctx, commands...) {
			if err := r.Error(); err != nil {
				return err
			}
		}
		return nil
	}
	add := func(ctx context.Context, numbers []int64) error {
		var all rueidis.Commands
		for _, n := range numbers {
			all = append(all, client.B().Xadd().Key(stream).Id("*").FieldValue().FieldValue("id", strconv.FormatInt(n, 10)).FieldValue("payload", filler).Build())
		}
		return send(ctx, all...)
	}
	loop := func(ctx context.Context, a *arrivals) error {
		for ctx.Err() == nil {
			read := client.B().Xreadgroup().Group("bench", "one").Count(500).Streams().Key(stream).Id(">").Build()
			found, err := client.Do(ctx, read).AsXRead()
			if rueidis.IsRedisNil(err) {
				return nil
			}
			if err != nil {
				return err
			}
			var ids []string
			for _, e := range found[stream] {
				a.handled("", e.FieldValues["id"])
				ids = append(ids, e.ID)
			}
			if err := send(ctx, client.B().Xack().Key(stream).Group("bench").Id(ids...).Build(), client.B().Xdel().Key(stream).Id(ids...).Build()); err != nil {
				return err
			}
		}
		return context.Cause(ctx)
	}
	return backlog("XREADGROUP loop", add, func(ctx context.Context, a *arrivals) (func(context.Context) error, error) {
		done := make(chan error, 1)
		go func() { done <- loop(ctx, a) }()
		return func(context.Context) error { return <-done }, nil
	})
}
