// Command deadlock has three processes wait for each other, over three systems, and shows how
// claim/deadlock finds that and ends one of the waits:
//
//	stock     holds a lock in Redis,      and awaits a row in PostgreSQL
//	invoice   holds the row,              and awaits a lock in etcd
//	parcel    holds the lock in etcd,     and awaits the lock in Redis
//
// No system sees more than one of these waits, and each process uses two of the three.
//
//	deadlock -redis redis://127.0.0.1:6379 -etcd etcd://127.0.0.1:2379 -postgres postgres://me@127.0.0.1/test
//	deadlock … -rounds 50      # how long does it take?
//
// It prints the cycle, a diagram of it in Mermaid, and how long it lasted. worker.go has the
// pattern. The table deadlock_item is written, and `interlock locks graph` shows who waits.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/interlock-dev/interlock/claim/deadlock"
)

// settings of a run; workers get them as arguments.
type settings struct {
	redis, etcd, postgres string
	rounds                int
}

func main() {
	var s settings
	flag.StringVar(&s.redis, "redis", "redis://127.0.0.1:6379", "`URL` of Redis")
	flag.StringVar(&s.etcd, "etcd", "etcd://127.0.0.1:2379", "`URL` of etcd")
	flag.StringVar(&s.postgres, "postgres", "", "`URL` of PostgreSQL; empty means that of the PG… variables")
	flag.IntVar(&s.rounds, "rounds", 1, "how many deadlocks, one after the other")
	as := flag.String("as", "", "be the worker of that `name`; the command itself sets it")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	work := func() error { return conduct(ctx, s, os.Stdout, os.Stderr) }
	if *as != "" {
		work = func() error { return serve(ctx, s, *as, os.Stdin, os.Stdout) }
	}
	if err := work(); err != nil {
		log.Fatal("deadlock: ", err)
	}
}

// report is a worker's result of a round, in one line of JSON.
type report struct {
	Worker string
	Cycle  []deadlock.Edge // of the wait that was ended; empty if the worker got both
	Error  string          // any other error
}

// conduct starts the workers and runs the rounds.
func conduct(ctx context.Context, s settings, out, errs io.Writer) (err error) {
	if s.rounds < 1 {
		return errors.New("-rounds must be at least 1")
	}
	ctx, stop := context.WithTimeout(ctx, time.Minute+time.Duration(s.rounds)*10*time.Second)
	defer stop()
	if err := prepare(ctx, s); err != nil {
		return err
	}
	var workers []*worker
	defer func() {
		for _, w := range workers {
			err = errors.Join(err, w.end())
		}
	}()
	for _, name := range names {
		w, err := start(ctx, s, name, errs)
		if err != nil {
			return err
		}
		workers = append(workers, w)
	}
	var took []time.Duration
	for round := range s.rounds {
		cycle, lasted, err := play(workers)
		if err != nil {
			return fmt.Errorf("round %d: %w", round+1, err)
		}
		if round == 0 {
			fmt.Fprintf(out, "%v\n\n", &deadlock.Error{Cycle: cycle})
			draw(out, cycle)
		}
		took = append(took, lasted)
	}
	slices.Sort(took)
	fmt.Fprintf(out, "\n%d deadlocks, one wait ended in each; found after %v (median), %v (99 of 100), %v (longest)\n",
		len(took), took[len(took)/2].Round(time.Millisecond), took[(len(took)-1)*99/100].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond))
	return nil
}

// play has every worker take its own resource, then wait for that of the next one. It returns
// the detected cycle and how long it lasted.
func play(workers []*worker) (cycle []deadlock.Edge, lasted time.Duration, err error) {
	for _, w := range workers {
		if r, err := w.say("hold"); err != nil || r.Error != "" {
			return nil, 0, fmt.Errorf("%s cannot hold: %s %w", w.name, r.Error, err)
		}
	}
	began := time.Now()
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, w := range workers {
		all.Go(func() {
			r, failed := w.say("await")
			mu.Lock()
			defer mu.Unlock()
			switch {
			case failed != nil || r.Error != "":
				err = errors.Join(err, fmt.Errorf("%s: %s %w", w.name, r.Error, failed))
			case r.Cycle != nil && cycle != nil:
				err = errors.Join(err, fmt.Errorf("a second wait was ended, that of %s", w.name))
			case r.Cycle != nil:
				cycle, lasted = r.Cycle, time.Since(began)
			}
		})
	}
	all.Wait()
	if err == nil && cycle == nil {
		err = errors.New("no deadlock was found")
	}
	return cycle, lasted, err
}

// draw prints a cycle as a Mermaid diagram.
func draw(out io.Writer, cycle []deadlock.Edge) {
	fmt.Fprintln(out, "graph LR")
	for _, e := range cycle {
		for _, holder := range e.HeldBy {
			fmt.Fprintf(out, "  %s -- awaits %s, held by --> %s\n", e.Task, e.Awaits, holder)
		}
	}
}

// worker is one of the processes.
type worker struct {
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Scanner
}

func start(ctx context.Context, s settings, name string, errs io.Writer) (*worker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	w := &worker{name: name, cmd: exec.CommandContext(ctx, self, "-redis", s.redis, "-etcd", s.etcd, "-postgres", s.postgres, "-as", name)}
	w.cmd.Stderr = errs
	in, err := w.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.in, w.out = in, bufio.NewScanner(out)
	return w, w.cmd.Start()
}

// say sends a command and returns the answer.
func (w *worker) say(command string) (r report, err error) {
	if _, err := fmt.Fprintln(w.in, command); err != nil {
		return r, err
	}
	if !w.out.Scan() {
		return r, errors.Join(errors.New("the worker has ended"), w.out.Err())
	}
	return r, json.Unmarshal(w.out.Bytes(), &r)
}

// end closes the input, which ends the worker.
func (w *worker) end() error {
	return errors.Join(w.in.Close(), w.cmd.Wait())
}
