// Command scheduler runs a job at its scheduled times, in the leader of several
// processes.
//
// A process that was stopped may continue a job that its successor has taken over. The
// guard of the job's data rejects its writes. job.go shows the
// pattern.
//
//	scheduler --backend etcd://127.0.0.1:7460 --every 1s --missed late
//
// Start it in several terminals, and stop or kill the leader. Each event is one line of
// JSON on stdout. On Redis it requires --accept-weakness, because a replica that takes
// over may not know the leader.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/interlock-dev/interlock/claim/elect"
	"github.com/interlock-dev/interlock/claim/elect/schedule"
)

// settings is the command line.
type settings struct {
	backend, name, missed, as string
	every, ttl, work          time.Duration
	acceptWeakness            bool
}

func main() {
	var s settings
	flag.StringVar(&s.backend, "backend", "etcd://127.0.0.1:7460", "`URL` of the system that elects and keeps: etcd://… or redis://…")
	flag.StringVar(&s.name, "name", "rollup", "the job's `name`")
	flag.StringVar(&s.missed, "missed", "late", "what to do with missed ticks: late, skip or report")
	flag.StringVar(&s.as, "as", "", "the name of this process, for people")
	flag.DurationVar(&s.every, "every", time.Second, "how often the job is due")
	flag.DurationVar(&s.work, "work", 0, "how long the job works before it writes")
	flag.DurationVar(&s.ttl, "ttl", 3*time.Second, "lease duration of the leadership")
	flag.BoolVar(&s.acceptWeakness, "accept-weakness", false, "lead although two may lead after a crash or failover of the backend")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, s); err != nil && !errors.Is(err, context.Canceled) {
		log.Fatal("scheduler: ", err)
	}
}

var policies = map[string]schedule.Missed{"late": schedule.RunLate, "skip": schedule.Skip, "report": schedule.Report}

// serve schedules until ctx ends.
func serve(ctx context.Context, s settings) error {
	missed, ok := policies[s.missed]
	if !ok {
		return fmt.Errorf("--missed %q: use late, skip or report", s.missed)
	}
	b, err := open(ctx, s.backend, s.ttl)
	if err != nil {
		return err
	}
	defer b.close()
	o := &elect.Options{Identity: s.as, Values: b.values}
	if s.acceptWeakness {
		o.Accept = elect.Required
	}
	elections, err := elect.New(b.locks, o)
	if err != nil {
		return err
	}
	defer shut(elections)
	j := &job{backend: b, name: s.name, work: s.work, out: os.Stdout}
	jobs, err := schedule.New(elections, &schedule.Options{
		Times: schedule.Every(s.every), Missed: missed, Report: j.report,
	})
	if err != nil {
		return err
	}
	return jobs.Run(ctx, s.name, j.run)
}
