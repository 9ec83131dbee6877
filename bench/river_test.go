package bench

import (
	"context"
	"io"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/interlock-dev/interlock/bench/compare"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// job is a job of River, with as much text as the messages have.
type job struct {
	Number int64  `json:"number"`
	Text   string `json:"text"`
}

func (job) Kind() string { return "bench" }

// riverQueue processes jobs with River, with the options of its own benchmark: the defaults fetch
// 100 jobs every 100 ms.
func riverQueue(tb testing.TB, server *testbed.Server, do func(ctx context.Context, number int64) error) compare.Side {
	pool := poolOf(tb, server, connections)
	db := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(db, nil)
	ok(tb, err)
	_, err = migrator.Migrate(tb.Context(), rivermigrate.DirectionUp, nil)
	ok(tb, err)
	silent := slog.New(slog.NewTextHandler(io.Discard, nil))
	inserter, err := river.NewClient(db, &river.Config{Logger: silent})
	ok(tb, err)
	add := func(ctx context.Context, numbers []int64) error {
		all := make([]river.InsertManyParams, len(numbers))
		for i, n := range numbers {
			all[i].Args = job{n, filler}
		}
		_, err := inserter.InsertManyFast(ctx, all)
		return err
	}
	side := backlog("River", add, func(ctx context.Context, a *arrivals) (func(context.Context) error, error) {
		workers := river.NewWorkers()
		river.AddWorker(workers, river.WorkFunc(func(ctx context.Context, j *river.Job[job]) error {
			err := do(ctx, j.Args.Number)
			if err == nil {
				a.handled("", strconv.FormatInt(j.Args.Number, 10))
			}
			return err
		}))
		c, err := river.NewClient(db, &river.Config{Logger: silent, Workers: workers, FetchCooldown: 2 * time.Millisecond, FetchPollInterval: 5 * time.Millisecond,
			Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2000}}})
		if err != nil {
			return nil, err
		}
		return c.Stop, c.Start(ctx)
	})
	return compare.Side{Name: side.Name, Run: func(ctx context.Context, window time.Duration) (compare.Sample, error) {
		if _, err := pool.Exec(ctx, `truncate river_job`); err != nil { // it keeps completed jobs
			return compare.Sample{}, err
		}
		return side.Run(ctx, window)
	}}
}
