// Command choreography has three services and a tracker run orders by events alone, over Kafka or
// NATS JetStream, while their processes are killed.
//
// A shop places an order, the stock reserves a piece, and a card is charged. If it is declined,
// the others undo their steps. The services do not call each other: each reacts to the events of
// the previous one. Then the run compares the services' data with the tracker's.
//
//	choreography -broker kafka://127.0.0.1:9092 -postgres postgres://me@127.0.0.1/test
//	choreography -broker nats://127.0.0.1:4222 -postgres postgres://me@127.0.0.1/test
//
// services.go has the pattern. The tables' names begin with choreography_; the run empties them.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/kafka"
	"github.com/interlock-dev/interlock/driver/nats"
	_ "github.com/interlock-dev/interlock/driver/postgres" // postgres:// of the outbox
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/txn/choreography"
)

// settings of a run; its processes get them as arguments.
type settings struct {
	broker, postgres, name string
	lease, patience        time.Duration
}

func main() {
	var s settings
	flag.StringVar(&s.broker, "broker", "kafka://127.0.0.1:9092", "`URL` of Kafka, which creates topics by their first use, or of NATS")
	flag.StringVar(&s.postgres, "postgres", "postgres://postgres@127.0.0.1/test", "`URL` of the database")
	flag.StringVar(&s.name, "name", rand.Text()[:12], "name of the run")
	flag.DurationVar(&s.lease, "lease", 6*time.Second, "after what time a process that was killed is replaced; brokers bound it")
	flag.DurationVar(&s.patience, "patience", 2*time.Minute, "how long all of it may take")
	orders := flag.Int("orders", 200, "number of orders")
	service := flag.String("serve", "", "be this service of a run, or its tracker, until the standard input ends")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	work := func() error { return s.play(ctx, *orders, os.Stdout) }
	if *service != "" {
		work = func() error { return s.serve(ctx, *service, os.Stdin) }
	}
	if err := work(); err != nil {
		log.Fatal("choreography: ", err)
	}
}

// args returns the arguments of a service.
func (s settings) args(service string) []string {
	return []string{"-broker", s.broker, "-postgres", s.postgres, "-name", s.name, "-lease", s.lease.String(), "-patience", s.patience.String(), "-serve", service}
}

func (s settings) topic() string { return "orders-" + s.name }

// queue opens the events for one group of consumers: each service receives all of them.
func (s settings) queue(group string) (driver.Queue, func(), error) {
	if strings.HasPrefix(s.broker, "nats:") {
		q, err := nats.OpenQueue(s.broker, &nats.QueueOptions{Group: group, Partitions: 4})
		if err != nil {
			return nil, nil, err
		}
		return q, q.Close, nil
	}
	q, err := kafka.OpenQueue(s.broker, &kafka.QueueOptions{Group: group + s.name})
	if err != nil {
		return nil, nil, err
	}
	return q, q.Close, nil
}

// reach fails if no broker answers: a message would wait for one, for as long as all may take.
func (s settings) reach(ctx context.Context) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(strings.TrimPrefix(s.broker, "kafka://"), ",")...))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := client.Ping(ctx); err != nil {
		return fmt.Errorf("no broker answers at %s: %w", s.broker, err)
	}
	return nil
}

// createTopic publishes a message that is not an event: brokers create a topic by its first use. They may
// refuse messages for a moment after that.
func (s settings) createTopic(ctx context.Context, sink outbox.Sink) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		err := errors.Join(sink.Publish(ctx, []driver.Message{{ID: s.name, Topic: s.topic()}})...)
		if interlock.Kind(err) != interlock.Retryable || ctx.Err() != nil {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// sink creates the topic, and opens it for the relay.
func (s settings) sink(ctx context.Context) (outbox.Sink, func(), error) {
	if !strings.HasPrefix(s.broker, "nats:") {
		if err := s.reach(ctx); err != nil {
			return nil, nil, err
		}
		sink, err := kafka.OpenSink(s.broker, &kafka.SinkOptions{Client: []kgo.Opt{kgo.AllowAutoTopicCreation()}})
		if err != nil {
			return nil, nil, err
		}
		return sink, sink.Close, s.createTopic(ctx, sink)
	}
	client, err := natsgo.Connect(s.broker)
	if err != nil {
		return nil, nil, err
	}
	defer client.Close()
	js, err := jetstream.New(client)
	if err != nil {
		return nil, nil, err
	}
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: s.topic(), Subjects: []string{s.topic() + ".*"}}); err != nil {
		return nil, nil, err
	}
	sink, err := nats.OpenSink(s.broker, &nats.SinkOptions{Partitions: 4})
	if err != nil {
		return nil, nil, err
	}
	return sink, sink.Close, nil
}

func (s settings) tracker() choreography.Tracker {
	return choreography.Tracker{Definition: define(s.topic()), Name: "choreography_tracker", Outbox: box}
}

// serve runs a service, or the tracker, until in ends.
func (s settings) serve(ctx context.Context, name string, in io.Reader) error {
	pool, err := pgxpool.New(ctx, s.postgres)
	if err != nil {
		return err
	}
	defer pool.Close()
	events, disconnect, err := s.queue(name)
	if err != nil {
		return err
	}
	defer disconnect()
	handler := watcher{s.tracker(), pool}.handle
	if x := services(define(s.topic()), pool)[name]; x != nil {
		handler = x.handle
	}
	c, err := queue.New(ctx, events, s.topic(), handler, &queue.Options{Lease: s.lease, Concurrency: 8, MinPause: 20 * time.Millisecond})
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, in) // until the run ends or its process dies
	goodbye, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return c.Close(goodbye)
}

// play makes a run: it places orders, kills processes, and audits the result.
func (s settings) play(ctx context.Context, n int, out io.Writer) error {
	pool, err := pgxpool.New(ctx, s.postgres)
	if err != nil {
		return err
	}
	defer pool.Close()
	pieces := n // enough for all
	if err := create(ctx, pool, s.tracker(), pieces); err != nil {
		return err
	}
	sink, disconnect, err := s.sink(ctx)
	if err != nil {
		return err
	}
	defer disconnect()
	relay, err := outbox.Start(ctx, s.postgres, box, sink, nil)
	if err != nil {
		return err
	}
	defer relay.Close(context.WithoutCancel(ctx))
	f := fleet{settings: s, running: map[string]*process{}}
	defer f.kill()
	for _, name := range processNames {
		if err := f.start(name); err != nil {
			return err
		}
	}
	defer s.reconciling(ctx, pool)()
	if err := s.orders(ctx, pool, f, n, out); err != nil {
		return err
	}
	if err := f.close(); err != nil {
		return err
	}
	report, err := audit(ctx, pool, s.tracker(), n, pieces)
	fmt.Fprintln(out, report)
	return err
}

// processNames are the services and the tracker.
var processNames = []string{"shop", "stock", "card", "tracker"}

// orders places n orders, kills each process once meanwhile, and waits until all have ended.
func (s settings) orders(ctx context.Context, pool *pgxpool.Pool, f fleet, n int, out io.Writer) error {
	every := max(1, n/(len(processNames)+1))
	for i := range n {
		if err := s.order(ctx, pool, i); err != nil {
			return err
		}
		if i%every != every-1 || i/every >= len(processNames) {
			continue
		}
		if err := s.awaitEnds(ctx, pool, i/4); err != nil {
			return err
		}
		name := processNames[i/every]
		f.running[name].kill()
		fmt.Fprintf(out, "%-7s was killed after %d orders\n", name, i+1)
		if err := f.start(name); err != nil {
			return err
		}
	}
	return s.awaitEnds(ctx, pool, n)
}

// reconciling reconciles in the background until end is called.
func (s settings) reconciling(ctx context.Context, pool *pgxpool.Pool) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { watcher{s.tracker(), pool}.reconcile(ctx) })
	return func() { cancel(); running.Wait() }
}

// order places the order with the given number.
func (s settings) order(ctx context.Context, pool *pgxpool.Pool, number int) error {
	shop := services(define(s.topic()), pool)["shop"]
	return retry(ctx, func() error { // its barrier makes it one order
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			return shop.begin(ctx, tx, choreography.Event{Saga: strconv.Itoa(number)})
		})
	})
}

// retry calls do until it succeeds or ctx ends, so that a run survives a restart of the database.
func retry(ctx context.Context, do func() error) error {
	for {
		err := do()
		if err == nil {
			return nil
		}
		log.Print("retrying: ", err)
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-time.After(time.Second):
		}
	}
}

// awaitEnds waits until the tracker knows the end of n orders.
func (s settings) awaitEnds(ctx context.Context, pool *pgxpool.Pool, n int) error {
	for {
		var ended int
		err := retry(ctx, func() error {
			return pool.QueryRow(ctx, `select count(*) from choreography_tracker where state in ('completed', 'compensated')`).Scan(&ended)
		})
		if err != nil || ended >= n {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("orders do not end: %w", context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// fleet are the processes of a run.
type fleet struct {
	settings
	running map[string]*process
}

func (f fleet) start(name string) (err error) {
	f.running[name], err = start(f.args(name))
	return err
}

// kill kills the processes that close has not ended.
func (f fleet) kill() {
	for _, p := range f.running {
		if p != nil {
			p.kill()
		}
	}
}

// close ends the processes in order.
func (f fleet) close() (err error) {
	for name, p := range f.running {
		err = errors.Join(err, p.close())
		delete(f.running, name)
	}
	return err
}

// process is a process that a run has started.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
}

func start(args []string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(self, args...)}
	p.cmd.Stderr = os.Stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	return p, nil
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // fails if it has ended
	_ = p.cmd.Wait()
}

func (p *process) close() error {
	return errors.Join(p.stdin.Close(), p.cmd.Wait())
}
