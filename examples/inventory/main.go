// Command inventory takes ordered units from stock, for orders from Kafka, behind five defences. It
// shows what each defence catches when the ones before it are disabled.
//
// It adds orders to a topic, some of them twice, and runs three workers as separate processes. It
// kills one, and stops another until the rest is done, which then continues orders that others
// have handled. Then it audits: each order took its units once, and no product is below zero. The
// orders of a product came in order, and each has one event in Kafka.
//
//	inventory -kafka kafka://127.0.0.1:9092 -postgres postgres://me@127.0.0.1/test -redis redis://127.0.0.1:6379
//	inventory … -without lock,fence          # the inbox catches their misses
//	inventory … -without lock,fence,inbox    # the audit finds units that were taken twice
//
// stock.go has the defences, audit.go the audit. The lock only saves work: correctness does not
// need it. The tables' names begin with inventory_; the run empties them.
package main

import (
	"bufio"
	"context"
	"crypto/rand"
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
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver/kafka"
	_ "github.com/interlock-dev/interlock/driver/postgres" // postgres:// of the outbox
	_ "github.com/interlock-dev/interlock/driver/redis"    // redis:// of the locks
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/flow/queue"
)

// settings of a run; workers get them as arguments.
type settings struct {
	kafka, postgres, redis   string
	name                     string // of the run: the suffix of its topic
	without                  map[string]bool
	session, think, patience time.Duration
}

func main() {
	s := settings{without: map[string]bool{}}
	flag.StringVar(&s.kafka, "kafka", "kafka://127.0.0.1:9092", "`URL` of the brokers; they create topics by their first use")
	flag.StringVar(&s.postgres, "postgres", "postgres://postgres@127.0.0.1/test", "`URL` of the database")
	flag.StringVar(&s.redis, "redis", "redis://127.0.0.1:6379", "`URL` of the locks")
	flag.StringVar(&s.name, "name", rand.Text()[:12], "name of the run")
	flag.DurationVar(&s.session, "session", 6*time.Second, "after what time Kafka gives up a worker; the brokers bound it")
	flag.DurationVar(&s.think, "think", 20*time.Millisecond, "how long an order takes")
	flag.DurationVar(&s.patience, "patience", 2*time.Minute, "how long all of it may take")
	flag.Func("without", "a comma list of "+strings.Join(defences, ", "), s.disable)
	orders := flag.Int("orders", 400, "number of orders")
	worker := flag.Bool("work", false, "be a worker of a run, until the standard input ends")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	work := func() error { return s.play(ctx, *orders, os.Stdout) }
	if *worker {
		work = func() error { return s.work(ctx, os.Stdin, os.Stdout) }
	}
	if err := work(); err != nil {
		log.Fatal("inventory: ", err)
	}
}

// disable adds a comma list to without.
func (s settings) disable(list string) error {
	for d := range strings.SplitSeq(list, ",") {
		if !slices.Contains(defences, d) {
			return fmt.Errorf("there is no defence %q", d)
		}
		s.without[d] = true
	}
	return nil
}

// args returns the arguments of a worker.
func (s settings) args() []string {
	args := []string{"-work", "-kafka", s.kafka, "-postgres", s.postgres, "-redis", s.redis, "-name", s.name,
		"-session", s.session.String(), "-think", s.think.String(), "-patience", s.patience.String()}
	for d := range s.without {
		args = append(args, "-without", d)
	}
	return args
}

// work handles orders until in ends. It reports in lines of two words.
func (s settings) work(ctx context.Context, in io.Reader, out io.Writer) (err error) {
	pool, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	locks, err := lock.Open(ctx, s.redis, &lock.Options{TTL: s.session}) // a killed worker keeps its orders no longer than its session
	if err != nil {
		return err
	}
	defer locks.Close(context.WithoutCancel(ctx))
	topics, err := kafka.OpenQueue(s.kafka, nil)
	if err != nil {
		return err
	}
	defer topics.Close()
	var mu sync.Mutex
	st := &store{pool: pool, locks: locks, without: s.without, think: s.think, tell: func(what, id string) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintln(out, what, id)
	}}
	consumer, err := queue.New(ctx, topics, s.topic(), st.handle, &queue.Options{Lease: s.session, Concurrency: 8, MinPause: 20 * time.Millisecond})
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, in) // until the run ends or its process dies
	goodbye, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return consumer.Close(goodbye)
}

// connect opens the database. If a worker is stopped in a transaction, the server aborts it after a while.
func (s settings) connect(ctx context.Context) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(s.postgres)
	if err != nil {
		return nil, err
	}
	config.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = "2000"
	return pgxpool.NewWithConfig(ctx, config)
}

func (s settings) topic() string { return "orders-" + s.name }

func (s settings) sink() (*kafka.Sink, error) {
	// A new topic is unknown until it has a leader; the context bounds that.
	return kafka.OpenSink(s.kafka, &kafka.SinkOptions{Client: []kgo.Opt{kgo.AllowAutoTopicCreation(), kgo.UnknownTopicRetries(-1)}})
}

// reach fails if no broker answers: a message would wait for one, for as long as all may take.
func (s settings) reach(ctx context.Context) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(strings.TrimPrefix(s.kafka, "kafka://"), ",")...))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := client.Ping(ctx); err != nil {
		return fmt.Errorf("no broker answers at %s: %w", s.kafka, err)
	}
	return nil
}

// play makes a run: it adds orders, runs workers, injects faults, and audits the result.
func (s settings) play(ctx context.Context, n int, out io.Writer) error {
	if err := s.reach(ctx); err != nil {
		return err
	}
	pool, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	orders := s.orders(n)
	if err := create(ctx, pool, orders); err != nil {
		return err
	}
	sink, err := s.sink()
	if err != nil {
		return err
	}
	defer sink.Close()
	if err := s.add(ctx, sink, orders); err != nil {
		return err
	}
	relay, err := outbox.Start(ctx, s.postgres, outgoing, sink, nil)
	if err != nil {
		return err
	}
	defer relay.Close(context.WithoutCancel(ctx))
	fmt.Fprintf(out, "%d orders, a tenth of them twice; without: %s\n", n, list(s.without))
	w := &workers{args: s.args(), heard: map[string]int{}}
	defer w.end()
	if err := w.work(ctx, n, func() (bool, error) { return done(ctx, pool, orders) }); err != nil {
		return err
	}
	for _, d := range defences[1:] {
		fmt.Fprintf(out, "%-10s caught %d\n", d, w.count(d))
	}
	return s.audit(ctx, pool, orders, out)
}

func list(without map[string]bool) string {
	var some []string
	for _, d := range defences {
		if without[d] {
			some = append(some, d)
		}
	}
	if some == nil {
		return "nothing"
	}
	return strings.Join(some, ", ")
}

// products, some of which have more orders than units.
const products = 20

// orders returns the orders of a run.
func (s settings) orders(n int) (all []Order) {
	for i := range n {
		all = append(all, Order{ID: fmt.Sprintf("%s-%d", s.name, i), Product: fmt.Sprint("product-", i%products), Units: 1 + i%3, Seq: i / products})
	}
	return all
}

// add sends orders to Kafka, those of each hundred together, and every tenth a second time.
func (s settings) add(ctx context.Context, sink *kafka.Sink, orders []Order) error {
	var some []outbox.Message
	for i, o := range orders {
		payload, err := json.Marshal(o)
		if err != nil {
			return err
		}
		m := outbox.Message{ID: o.ID, Topic: s.topic(), Payload: payload}
		if !s.without[byProduct] {
			m.Key = o.Product
		}
		some = append(some, m)
		if i%10 == 0 {
			some = append(some, m)
		}
	}
	for chunk := range slices.Chunk(some, 100) {
		if err := errors.Join(sink.Publish(ctx, chunk)...); err != nil {
			return err
		}
	}
	return nil
}

// workers are processes of a run.
type workers struct {
	args []string
	all  []*worker

	mu    sync.Mutex
	heard map[string]int // number of reports of each word
}

type worker struct {
	cmd   *exec.Cmd
	stdin io.Closer
	ended chan struct{} // closed when its output has ended

	mu    sync.Mutex
	begun int // orders begun and not ended
}

// work runs three workers until the n orders are done. It kills one, which is replaced, and stops
// another one until then.
func (w *workers) work(ctx context.Context, n int, done func() (bool, error)) error {
	for range 3 {
		if err := w.start(); err != nil {
			return err
		}
	}
	if err := w.wait(ctx, "begin", n/8); err != nil {
		return err
	}
	w.all[0].kill()
	if err := w.start(); err != nil {
		return err
	}
	if err := w.wait(ctx, "begin", n/4); err != nil {
		return err
	}
	w.all[1].signal(syscall.SIGSTOP)
	if err := until(ctx, func() (bool, error) {
		if err := w.lost(); err != nil {
			return false, err
		}
		return done()
	}); err != nil {
		return fmt.Errorf("orders are not done: %w", err)
	}
	w.all[1].signal(syscall.SIGCONT)
	// It finishes its order late.
	if err := until(ctx, w.all[1].idle); err != nil {
		return fmt.Errorf("the worker that was stopped: %w", err)
	}
	return w.close()
}

func (w *workers) start() error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	x := &worker{cmd: exec.Command(self, w.args...), ended: make(chan struct{})}
	x.cmd.Stderr = os.Stderr
	stdout, err := x.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if x.stdin, err = x.cmd.StdinPipe(); err != nil {
		return err
	}
	if err := x.cmd.Start(); err != nil {
		return err
	}
	w.all = append(w.all, x)
	go func() {
		defer close(x.ended)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			word, _, _ := strings.Cut(lines.Text(), " ")
			w.mu.Lock()
			w.heard[word]++
			w.mu.Unlock()
			x.mu.Lock()
			switch word {
			case "begin":
				x.begun++
			case "end":
				x.begun--
			}
			x.mu.Unlock()
		}
	}()
	return nil
}

func (x *worker) signal(s syscall.Signal) { _ = x.cmd.Process.Signal(s) } // fails if it has ended

func (x *worker) kill() {
	x.signal(syscall.SIGKILL)
	<-x.ended
	_ = x.cmd.Wait() // killed
}

func (x *worker) idle() (bool, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.begun == 0, nil
}

func (w *workers) count(word string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.heard[word]
}

// wait waits until a word was reported n times.
func (w *workers) wait(ctx context.Context, word string, n int) error {
	return until(ctx, func() (bool, error) { return w.count(word) >= n, w.lost() })
}

// lost returns an error if a worker has ended by itself; it has written the reason.
func (w *workers) lost() error {
	for _, x := range w.all {
		select {
		case <-x.ended:
			if x.cmd.ProcessState == nil { // not killed
				_ = x.cmd.Wait() // the state has the code
				return fmt.Errorf("a worker has ended: %v", x.cmd.ProcessState)
			}
		default:
		}
	}
	return nil
}

// close ends workers in order.
func (w *workers) close() (err error) {
	for _, x := range w.all {
		_ = x.stdin.Close() // a killed one has closed it
	}
	for _, x := range w.all {
		<-x.ended
		if x.cmd.ProcessState == nil {
			err = errors.Join(err, x.cmd.Wait())
		}
	}
	return err
}

// end kills the workers that still run.
func (w *workers) end() {
	for _, x := range w.all {
		if x.cmd.ProcessState == nil {
			x.kill()
		}
	}
}

// until polls a condition.
func until(ctx context.Context, ok func() (bool, error)) error {
	for {
		if yes, err := ok(); yes || err != nil {
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
