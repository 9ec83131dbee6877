package schedule_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/interlock-dev/interlock/claim/elect"
	"github.com/interlock-dev/interlock/claim/elect/schedule"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/guard/fence"
)

func ExampleSchedule_Run() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	space := memory.NewSpace()
	d := space.Open(nil) // or etcd.Open, postgres.Open
	defer d.Close(context.Background())
	elections, err := elect.New(d, &elect.Options{Values: space.Values(), InProcess: true}) // memory is for one process
	if err != nil {
		log.Fatal(err)
	}
	defer elections.Close(context.Background())
	jobs, err := schedule.New(elections, &schedule.Options{Times: schedule.Every(10 * time.Millisecond), Missed: schedule.RunLate})
	if err != nil {
		log.Fatal(err)
	}

	store, runs := fence.NewStore(space.Fence()), 0
	_ = jobs.Run(ctx, "rollup", func(ctx context.Context, tick schedule.Tick) error {
		// The key is the tick's: so this overwrites the result of an earlier
		// run, which Tick.Begun reports.
		write := driver.Write{Key: "rollup/" + tick.At.Format(time.RFC3339Nano), Value: []byte("done")}
		if err := store.Enter(ctx, tick.Term, "rollup", write); err != nil {
			return err
		}
		if runs++; runs == 3 {
			stop()
		}
		return nil
	})
	fmt.Println(runs, "runs")
	// Output: 3 runs
}
