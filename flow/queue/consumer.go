package queue

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/flow/keyed"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/observe"
)

// The vocabulary of drivers, under the names that users know.
type (
	// Message is one that is added.
	Message = driver.QueueMessage
	// Received is one that is handled.
	Received = driver.Received
	// Priority orders keys.
	Priority = driver.Priority
)

// The priorities. A key waits a minute longer at most for each step below another one.
const (
	Low    = driver.LowPriority
	Normal = driver.NormalPriority
	High   = driver.HighPriority
)

// Handler handles a message. ctx ends with the claim of the message, and when a Close has
// waited long enough; what it returns is explained in the package's comment.
type Handler func(ctx context.Context, m Received) error

// closing bounds what Close does at its end, whatever its context says.
const closing = 5 * time.Second

// A Consumer handles the messages of one queue until Close.
type Consumer struct {
	name    string
	options Options
	handler Handler
	source  driver.QueueConsumer
	tasks   *keyed.Executor
	retry   backoff.Policy
	backend *backend.Backend // nil unless Open opened it

	intake   context.Context // ends when nothing more is received
	stop     context.CancelFunc
	fetcher  sync.WaitGroup
	settler  sync.WaitGroup
	flushed  chan struct{}   // closed when no more will end
	flush    func()          // closes it
	patience context.Context // ends when Close has waited long enough for the queue
	giveUp   context.CancelFunc

	mu      sync.Mutex
	machine *machine
	changed chan struct{} // closed, and replaced, at each change of the machine
}

// New begins to handle the messages of a queue. ctx bounds the call only.
func New(ctx context.Context, q driver.Queue, name string, handler Handler, o *Options) (*Consumer, error) {
	options, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if handler == nil || q == nil {
		return nil, impossible("a queue and a handler are needed")
	}
	tasks, err := keyed.NewExecutor(&keyed.Options{Concurrency: options.Concurrency, PerKey: options.InFlight * 2, Total: options.InFlight * 2,
		Observe: &observe.Keyed{Log: observe.Silent}})
	if err != nil {
		return nil, err
	}
	source, err := q.Join(ctx, name, driver.QueueOptions{Owner: options.Owner, Lease: options.Lease})
	if err != nil {
		return nil, err
	}
	flushed := make(chan struct{})
	c := &Consumer{name: name, options: options, handler: handler, source: source, tasks: tasks, machine: newMachine(options),
		retry: backoff.Policy{First: 50 * time.Millisecond, Max: 5 * time.Second}, changed: make(chan struct{}), flushed: flushed, flush: sync.OnceFunc(func() { close(flushed) })}
	c.intake, c.stop = context.WithCancel(context.Background())
	c.patience, c.giveUp = context.WithCancel(context.Background())
	c.fetcher.Go(c.fetch)
	c.settler.Go(c.settle)
	return c, nil
}

// change changes the machine, and wakes those who wait for that.
func (c *Consumer) change(how func(*machine)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	how(c.machine)
	close(c.changed)
	c.changed = make(chan struct{})
}

// look reads the machine, and returns what is closed at its next change.
func (c *Consumer) look(how func(*machine)) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	how(c.machine)
	return c.changed
}

// fetch receives messages while there is room, until the intake ends.
func (c *Consumer) fetch() {
	for failures := 0; c.intake.Err() == nil; {
		var room driver.QueueLimit
		var ok bool
		changed := c.look(func(x *machine) { room, ok = x.room() })
		if !ok {
			select {
			case <-changed:
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
	if hook := c.options.Hooks.Trouble; hook != nil {
		hook(observe.QueueTrouble{Queue: c.name, Op: op, Err: err})
	}
}

// accept queues messages, each behind those of its key. All count as in flight before the first
// begins: if it fails, its key is held until the last of them is settled.
func (c *Consumer) accept(some []driver.Received) {
	c.change(func(x *machine) {
		for _, m := range some {
			x.receive(m)
		}
	})
	for _, m := range some {
		key := m.Key
		if key == "" {
			key = "\x00" + m.ID // no key has a NUL
		}
		d := &delivery{Consumer: c, m: m}
		if err := c.tasks.Go(m.Claim.Context(), key, d.run, d.done); err != nil {
			d.done(err)
		}
	}
}

// delivery is one message on its way through the executor.
type delivery struct {
	*Consumer
	m     driver.Received
	begun bool
	gone  bool // the handler's context had ended when it returned
}

func (d *delivery) run(ctx context.Context) error {
	d.look(func(x *machine) { d.begun = x.begin(d.m) })
	if !d.begun {
		return nil
	}
	defer func() { d.gone = ctx.Err() != nil }()
	return d.handler(ctx, d.m)
}

// done notes the outcome, before the next message of the key begins.
func (d *delivery) done(err error) {
	s := driver.Settlement{Received: d.m}
	if d.begun {
		s = d.options.judgement().judge(d.m, err, d.gone || !d.m.Claim.Valid())
	}
	if hook := d.options.Hooks.Failed; hook != nil && err != nil && d.begun {
		hook(observe.QueueFailed{Queue: d.name, ID: d.m.ID, Key: d.m.Key, Attempt: d.m.Attempt, Dead: s.Outcome == driver.Dead,
			Parked: s.Outcome == driver.Park, Held: s.Uncounted, Pause: s.After, Err: err})
	}
	d.change(func(x *machine) { x.end(s) })
}

// settle records outcomes, those of each moment together, until no more come.
func (c *Consumer) settle() {
	for {
		var batch []driver.Settlement
		changed := c.look(func(x *machine) { batch = x.take() })
		if len(batch) > 0 {
			c.record(batch)
			continue
		}
		select {
		case <-changed:
		case <-c.flushed:
			c.look(func(x *machine) { batch = x.take() })
			c.record(batch)
			return
		}
	}
}

// record records outcomes, again while it is not known whether they are, their claims last and
// Close has patience.
func (c *Consumer) record(batch []driver.Settlement) {
	for failures := 1; len(batch) > 0; failures++ {
		ctx, cancel := context.WithTimeout(c.patience, closing)
		answers := c.source.Settle(ctx, batch)
		cancel()
		var again []driver.Settlement
		c.change(func(x *machine) {
			for i, err := range answers {
				if err != nil && !errors.Is(err, interlock.ErrLost) && interlock.Kind(err) != interlock.Bug && batch[i].Claim.Valid() && c.patience.Err() == nil {
					again = append(again, batch[i])
					continue
				}
				x.recorded(batch[i].Received)
			}
		})
		c.report(batch, answers)
		if batch = again; len(batch) > 0 {
			c.retry.Wait(c.patience, failures)
		}
	}
}

// report tells the hooks what was not recorded.
func (c *Consumer) report(batch []driver.Settlement, answers []error) {
	for i, err := range answers {
		if hook := c.options.Hooks.Lost; hook != nil && errors.Is(err, interlock.ErrLost) {
			hook(observe.QueueLost{Queue: c.name, ID: batch[i].ID, Key: batch[i].Key, Token: batch[i].Claim.Token()})
		} else if err != nil {
			c.trouble("settle", err)
			return
		}
	}
}

// Close stops the intake, waits for the handlers until ctx ends, then ends their contexts;
// gives back what was not handled; and disconnects what Open opened. It returns an error if a
// handler was interrupted.
func (c *Consumer) Close(ctx context.Context) error {
	c.stop()
	c.fetcher.Wait() // Receive returns when its context ends
	err := c.tasks.Close(ctx)
	c.flush()
	defer time.AfterFunc(closing, c.giveUp).Stop()
	c.settler.Wait()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closing)
	defer cancel()
	c.giveUp()
	return errors.Join(err, c.source.Close(ctx), c.backend.Close(ctx))
}
