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
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/interlock-dev/interlock/claim/elect"
	"github.com/interlock-dev/interlock/claim/elect/schedule"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:]))
}

// settings is the command line.
type settings struct {
	backend, name, missed, as string
	every, ttl, work          time.Duration
	acceptWeakness            bool
}

func flags(s *settings) *flag.FlagSet {
	f := flag.NewFlagSet("scheduler", flag.ContinueOnError)
	f.StringVar(&s.backend, "backend", "etcd://127.0.0.1:7460", "`URL` of the system that elects and keeps: etcd://… or redis://…")
	f.StringVar(&s.name, "name", "rollup", "the job's `name`")
	f.StringVar(&s.missed, "missed", "late", "what to do with missed ticks: late, skip or report")
	f.StringVar(&s.as, "as", "", "who we are, for people")
	f.DurationVar(&s.every, "every", time.Second, "how often the job is due")
	f.DurationVar(&s.work, "work", 0, "how long the job works before it writes")
	f.DurationVar(&s.ttl, "ttl", 3*time.Second, "how long the leadership lives without renewal")
	f.BoolVar(&s.acceptWeakness, "accept-weakness", false, "lead although two may lead after a crash or failover of the backend")
	return f
}

func run(ctx context.Context, args []string) int {
	var s settings
	if err := flags(&s).Parse(args); err != nil {
		return 2
	}
	if err := serve(ctx, s); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "scheduler:", err)
		return 1
	}
	return 0
}

var policies = map[string]schedule.Missed{"late": schedule.RunLate, "skip": schedule.Skip, "report": schedule.Report}

// serve schedules until ctx ends.
func serve(ctx context.Context, s settings) error {
	missed, ok := policies[s.missed]
	if !ok {
		return fmt.Errorf("--missed %q: it is late, skip or report", s.missed)
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
