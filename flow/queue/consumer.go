package queue

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/flow/keyed"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/hints"
	"github.com/interlock-dev/interlock/internal/join"
	"github.com/interlock-dev/interlock/internal/report"
	"github.com/interlock-dev/interlock/observe"
)

// Types of package driver.
type (
	// Message is a message to add.
	Message = driver.QueueMessage
	// Received is a delivered message.
	Received = driver.Received
	// Priority orders keys that are ready.
	Priority = driver.Priority
)

// The priorities. Each step is worth a minute of waiting, so that no key starves.
const (
	Low    = driver.LowPriority
	Normal = driver.NormalPriority
	High   = driver.HighPriority
)

// Handler handles a message. ctx ends with the claim of the message, and when a Close stops waiting.
// The package comment explains the results.
type Handler func(ctx context.Context, m Received) error

// closing bounds the last steps of Close, which ignore the end of its context.
const closing = 5 * time.Second

// A Consumer handles the messages of one queue until Close.
type Consumer struct {
	name    string
	options Options
	judge   judgement
	handler Handler
	source  driver.QueueConsumer
	retry   backoff.Policy
	backend *backend.Backend // nil unless Open opened it
	reports report.Queue     // of all hooks

	intake   context.Context // ends when no more messages are received
	stop     context.CancelFunc
	fetcher  sync.WaitGroup
	handlers sync.WaitGroup
	settler  sync.WaitGroup
	flushed  context.Context // ends when no more outcomes follow
	flush    context.CancelFunc
	patience context.Context // ends when Close stops waiting for the queue
	giveUp   context.CancelFunc

	settlements []driver.Settlement // reused by settle

	roomy chan struct{} // capacity 1: a message was recorded
	ended chan struct{} // capacity 1: an outcome is to be recorded

	abandoned atomic.Bool // no more messages begin

	mu         sync.Mutex
	machine    *machine
	workers    int      // goroutines that run handlers
	waking     bool     // a goroutine was started and does not run yet
	unrecorded []result // to record again
	again      bool     // a goroutine does that
}

// New starts a consumer of a queue. ctx bounds the call only.
func New(ctx context.Context, q driver.Queue, name string, handler Handler, o *Options) (*Consumer, error) {
	options, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if handler == nil || q == nil {
		return nil, invalid("a queue and a handler are required")
	}
	source, err := q.Join(ctx, name, driver.QueueOptions{Owner: options.Owner, Lease: options.Lease})
	if err != nil {
		return nil, err
	}
	c := &Consumer{name: name, options: options, judge: options.judgement(), handler: handler, source: source, machine: newMachine(options),
		retry: backoff.Policy{First: 50 * time.Millisecond, Max: 5 * time.Second},
		roomy: make(chan struct{}, 1), ended: make(chan struct{}, 1)}
	c.intake, c.stop = context.WithCancel(context.Background())
	c.flushed, c.flush = context.WithCancel(context.Background())
	c.patience, c.giveUp = context.WithCancel(context.Background())
	c.fetcher.Go(c.fetch)
	c.settler.Go(c.settle)
	return c, nil
}

// fetch receives messages while there is room, until the intake ends.
func (c *Consumer) fetch() {
	for failures := 0; c.intake.Err() == nil; {
		c.mu.Lock()
		room, ok := c.machine.room()
		c.mu.Unlock()
		if !ok {
			select {
			case <-c.roomy:
			case <-c.intake.Done():
			}
			continue
		}
		some, err := c.source.Receive(c.intake, room)
		c.accept(some)
		if failures++; err == nil {
			failures = 0
		} else if c.intake.Err() == nil {
			c.trouble("receive", err)
			c.retry.Wait(c.intake, failures)
		}
	}
}

func (c *Consumer) trouble(op string, err error) {
	report.Add(&c.reports, nil, c.options.Hooks.Trouble, observe.QueueTrouble{Queue: c.name, Op: op, Err: err})
}

// accept passes messages to the machine. All count as in flight before the first begins: if that one
// fails, its key is held until the last of them is settled.
func (c *Consumer) accept(some []*driver.Received) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.machine.receive(some)
	c.wake()
}

// wake starts a worker if a message may begin, and wakes the settler if there are outcomes. The
// mutex is held.
func (c *Consumer) wake() {
	if c.machine.first != nil && !c.waking && !c.abandoned.Load() && c.workers < c.options.Concurrency {
		c.workers++
		c.waking = true
		c.handlers.Go(c.work)
	}
	if len(c.machine.ended) > 0 {
		hints.Signal(c.ended)
	}
}

// work handles messages until none may begin.
func (c *Consumer) work() {
	c.mu.Lock()
	c.waking = false
	var s share
	defer func() {
		if s.lane != nil { // a handler has ended this goroutine
			c.handlers.Go(c.work)
		} else {
			c.workers--
		}
		c.mu.Unlock()
	}()
	for s = c.begin(); s.lane != nil; s = c.begin() {
		c.mu.Unlock()
		c.handle(s)
	}
}

// begin returns the next messages to handle; none if there are none. The mutex is held.
func (c *Consumer) begin() (s share) {
	if !c.abandoned.Load() {
		s = c.machine.begin()
	}
	c.wake()
	return s
}

// handle handles messages until one fails, or others should have their turn. It notes the outcome,
// even if the handler panics or ends its goroutine. It returns with the mutex locked.
func (c *Consumer) handle(s share) {
	claim := s.lane.claim
	ctx := claim.Context()
	var began time.Time
	if len(s.messages) > 1 {
		began = time.Now()
	}
	var v driver.Settlement // Release, unless a message begins
	var err error
	n, returned := 0, true
	defer func() {
		m := s.messages[max(0, n-1)]
		if !returned {
			err = &keyed.PanicError{Key: m.Key, Value: recover(), Stack: debug.Stack()}
		}
		if err != nil {
			v = c.failed(ctx, m, err)
		}
		c.mu.Lock()
		c.machine.end(s, n, v)
	}()
	for n < len(s.messages) && err == nil {
		if ctx.Err() != nil || n > 0 && (c.abandoned.Load() || driver.IsRevoked(claim) || (n == 1 || n%4 == 0) && time.Since(began) > shareTime) {
			return
		}
		n++
		returned = false
		err = c.handler(ctx, *s.messages[n-1])
		v.Outcome, returned = driver.Ack, true
	}
}

// failed returns the settlement of a message whose handler returned an error.
func (c *Consumer) failed(ctx context.Context, m *driver.Received, err error) driver.Settlement {
	v := c.judge.judge(m.Attempt, err, ctx.Err() != nil || !m.Claim.Valid())
	if v.Outcome == driver.Park && m.Key == "" {
		v.Outcome = driver.Dead // no operator could resume it
	}
	report.Add(&c.reports, nil, c.options.Hooks.Failed, observe.QueueFailed{Queue: c.name, ID: m.ID, Key: m.Key, Attempt: m.Attempt,
		Dead: v.Outcome == driver.Dead, Parked: v.Outcome == driver.Park, Held: v.Uncounted, Pause: v.After, Err: err})
	return v
}

// settle records outcomes, all that are there at a time together, until no more follow.
func (c *Consumer) settle() {
	var batch []result
	for over := false; ; {
		c.mu.Lock()
		batch = c.machine.take(batch[:0])
		c.mu.Unlock()
		c.settlements = c.record(batch, c.settlements[:0])
		switch {
		case len(batch) > 0:
			clear(batch)
		case over:
			return
		default:
			select {
			case <-c.ended:
			case <-c.flushed.Done():
				over = true
			}
		}
	}
}

// record records outcomes, once. A goroutine of its own repeats those that failed, so that a dead
// letter that is refused stops no other key. It returns all, emptied.
func (c *Consumer) record(batch []result, all []driver.Settlement) []driver.Settlement {
	if len(batch) == 0 {
		return all
	}
	for _, r := range batch {
		all = append(all, r.Settlement)
	}
	ctx, cancel := context.WithTimeout(c.patience, closing)
	answers := c.source.Settle(ctx, all)
	cancel()
	c.recorded(batch, answers)
	hints.Signal(c.roomy)
	c.report(all, answers)
	clear(all)
	return all
}

// repeat records outcomes that failed, after a pause, until there are none.
func (c *Consumer) repeat() {
	for failures := 1; ; failures++ {
		c.retry.Wait(c.patience, failures)
		c.mu.Lock()
		batch := c.unrecorded
		c.unrecorded, c.again = nil, len(batch) > 0
		c.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		c.record(batch, nil)
	}
}

// recorded applies the answers of Settle. Outcomes that failed are repeated while their claims last
// and Close waits.
func (c *Consumer) recorded(batch []result, answers []error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.machine.recording = false
	for i, err := range answers {
		r := &batch[i]
		if err != nil && !errors.Is(err, interlock.ErrLost) && interlock.Kind(err) != interlock.Bug && r.lane.claim.Valid() && c.patience.Err() == nil {
			c.unrecorded = append(c.unrecorded, *r)
			continue
		}
		c.machine.recorded(r)
	}
	if len(c.unrecorded) > 0 && !c.again {
		c.again = true
		c.settler.Go(c.repeat)
	}
}

// report reports outcomes that were not recorded to the hooks.
func (c *Consumer) report(all []driver.Settlement, answers []error) {
	for i, err := range answers {
		switch {
		case errors.Is(err, interlock.ErrLost):
			for m := range all[i].All() {
				report.Add(&c.reports, nil, c.options.Hooks.Lost, observe.QueueLost{Queue: c.name, ID: m.ID, Key: m.Key, Token: m.Claim.Token()})
			}
		case err != nil:
			c.trouble("settle", err)
			return
		}
	}
}

// Close stops receiving, waits for the handlers until ctx ends, then cancels them; returns
// unhandled messages to the queue; disconnects if [Open] connected; and waits for events that are not
// reported to the hooks. It returns an error if a handler was interrupted, or if a hook blocks.
func (c *Consumer) Close(ctx context.Context) error {
	c.stop()
	c.fetcher.Wait() // Receive returns when its context ends
	err := join.Wait(ctx, c.handlers.Wait)
	if err != nil {
		err = c.abandon(err)
	}
	c.flush()
	defer time.AfterFunc(closing, c.giveUp).Stop()
	c.settler.Wait()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closing)
	defer cancel()
	c.giveUp()
	return errors.Join(err, c.source.Close(ctx), c.backend.Close(ctx), c.reports.Wait(ctx)) // the source ends the contexts of handlers
}

// abandon stops beginning messages. Its error has the numbers of what is left, if anything is.
func (c *Consumer) abandon(why error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.abandoned.Store(true)
	if c.workers == 0 && c.machine.waiting == 0 {
		return nil
	}
	return &interlock.Error{Op: "close consumer", Name: c.name, Kind: interlock.Definite,
		Err: fmt.Errorf("%w: %d handlers still run, %d messages have not begun", why, c.workers, c.machine.waiting)}
}
