package sequence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/hints"
	"github.com/interlock-dev/interlock/internal/join"
	"github.com/interlock-dev/interlock/internal/process"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// Defaults of [SourceOptions].
const (
	DefaultInFlight    = 10_000
	DefaultSourceBytes = 64 << 20
)

// SourceOptions are the options of a Source; nil and the zero value work.
type SourceOptions struct {
	// InFlight and Bytes bound the messages that are received and not settled, including held ones:
	// at the bound the source receives no more. 0 means [DefaultInFlight] and [DefaultSourceBytes].
	// With halted keys there must be room for the missing events as well.
	InFlight, Bytes int
	// Concurrency is how many events, of different keys, are offered at the same time; 0 means 64.
	Concurrency int
	// Lease is how long messages stay with a dead process; 0 means the default of the queue.
	Lease time.Duration
	// Owner is the name of this consumer, for display; empty means host and process.
	Owner string
	// Trouble receives errors of the queue, and of events that are offered again; nil drops them. It
	// must return at once.
	Trouble func(error)
}

// A Source offers the messages of a queue, such as a topic of Kafka or subjects of JetStream, to a
// sequencer. It acknowledges a message when its event is durable in the store: delivered, or dropped
// because it was delivered before. Held and refused messages are not acknowledged: if the process dies,
// they are delivered again.
//
// Use a queue whose claims are partitions. A queue that leases keys, such as a queue.Table,
// delivers one batch of a key at a time. A missing event may be in the next batch.
//
// Messages of a key may come in any order: of those that are here the first is offered. A refused event is
// offered again after growing pauses, before later ones of its key: while the handler fails for it, it is
// not missing. An invalid message becomes a dead letter of the queue. An event that the handler rejects
// becomes a dead letter of the store if the handler is from [WithDeadLetters].
type Source struct {
	queue   driver.QueueConsumer
	offer   func(context.Context, Event) (Outcome, error)
	abandon func(key string, claim driver.Assignment)
	event   func(driver.Received) (Event, error)
	options SourceOptions

	intake  context.Context // ends when no more messages are received
	stop    context.CancelFunc
	life    context.Context // ends when Close stops waiting
	end     context.CancelFunc
	fetcher sync.WaitGroup
	work    sync.WaitGroup // keys and claims
	settler sync.WaitGroup
	turns   chan struct{} // capacity Concurrency

	mu      sync.Mutex
	room    driver.QueueLimit
	keys    map[string][]*flight // to offer, by position; the key exists while a goroutine works on it
	claims  map[driver.Assignment]map[*flight]bool
	ended   []driver.Settlement
	flushed bool
	changed chan struct{} // closed, and replaced, at each change
}

// flight is a message that is not settled.
type flight struct {
	source   *Source
	message  *driver.Received
	event    Event
	offering bool
	ended    bool
	earlier  chan struct{} // of a refused event; capacity 1: an earlier event of its key has arrived
}

// Consume starts a Source of a queue. event returns the event of a message, whose key and position the
// producer has set. If it returns an error, the message becomes a dead letter of the queue. ctx bounds
// the call only. Close the Source before the sequencer and the queue.
func (s *Sequencer[T]) Consume(ctx context.Context, q driver.Queue, name string, event func(driver.Received) (Event, error), o *SourceOptions) (*Source, error) {
	const op = "consume queue"
	if q == nil || event == nil {
		return nil, failure.Bug(op, name, "a queue and a function that returns events are required")
	}
	checked := func(m driver.Received) (e Event, err error) {
		defer contain(m.Key, &err)
		if e, err = event(m); err == nil {
			err = s.check(e)
		}
		return e, err
	}
	f := &Source{offer: s.Offer, abandon: s.abandon, event: checked, keys: map[string][]*flight{}, claims: map[driver.Assignment]map[*flight]bool{}, changed: make(chan struct{})}
	if o != nil {
		f.options = *o
	}
	p := &f.options
	p.InFlight, p.Bytes, p.Concurrency = cmp.Or(p.InFlight, DefaultInFlight), cmp.Or(p.Bytes, DefaultSourceBytes), cmp.Or(p.Concurrency, 64)
	if p.InFlight < 1 || p.Bytes < 1 || p.Concurrency < 1 {
		return nil, failure.Bug(op, name, "an option is negative")
	}
	p.Owner = cmp.Or(p.Owner, process.Name())
	if p.Trouble == nil {
		p.Trouble = func(error) {}
	}
	var err error
	if f.queue, err = q.Join(ctx, name, driver.QueueOptions{Owner: p.Owner, Lease: p.Lease}); err != nil {
		return nil, err
	}
	f.room = driver.QueueLimit{Messages: p.InFlight, Bytes: p.Bytes}
	f.turns = make(chan struct{}, p.Concurrency)
	f.intake, f.stop = context.WithCancel(context.Background())
	f.life, f.end = context.WithCancel(context.Background())
	f.fetcher.Go(f.fetch)
	f.settler.Go(f.settle)
	return f, nil
}

// sourceRetries are the pauses before a refused event is offered again, and before a call of the queue
// is repeated.
var sourceRetries = backoff.Policy{First: 50 * time.Millisecond, Max: 5 * time.Second}

// closing bounds the last steps of Close, which ignore the end of its context.
const closing = 5 * time.Second

// note changes the fields that the mutex guards, and wakes goroutines that wait for a change.
func (f *Source) note(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	close(f.changed)
	f.changed = make(chan struct{})
}

// fetch receives messages while there is room, until the intake ends.
func (f *Source) fetch() {
	for failures := 0; f.intake.Err() == nil; {
		f.mu.Lock()
		room, changed := f.room, f.changed
		f.mu.Unlock()
		if room.Messages <= 0 || room.Bytes <= 0 {
			select {
			case <-changed:
			case <-f.intake.Done():
			}
			continue
		}
		some, err := f.queue.Receive(f.intake, room)
		for _, m := range some {
			f.accept(m)
		}
		if failures++; err == nil {
			failures = 0
		} else if f.intake.Err() == nil {
			f.options.Trouble(err)
			sourceRetries.Wait(f.intake, failures)
		}
	}
}

// accept queues a message after those of its key.
func (f *Source) accept(m *driver.Received) {
	x := &flight{source: f, message: m}
	event, err := f.event(*m)
	event.Handle = x
	x.event = event
	f.note(func() {
		f.room.Messages--
		f.room.Bytes -= len(m.Payload)
		if f.claims[m.Claim] == nil {
			f.claims[m.Claim] = map[*flight]bool{}
			f.work.Go(func() { f.watch(m.Claim) })
		}
		f.claims[m.Claim][x] = true
		if err != nil {
			x.done(driver.Dead, err)
			return
		}
		if driver.IsRevoked(m.Claim) || f.intake.Err() != nil { // those before it may have been released
			x.done(driver.Release, nil)
			return
		}
		_, busy := f.keys[event.Key]
		f.enqueue(x)
		if !busy {
			f.work.Go(func() { f.tend(event.Key) })
		}
	})
}

// enqueue adds an event to those to offer, and ends the pause of the one that was first until now. The mutex is held.
func (f *Source) enqueue(x *flight) {
	all := f.keys[x.event.Key]
	at := len(all)
	for at > 0 && x.event.Before(all[at-1].event.Position) {
		at--
	}
	if at == 0 && len(all) > 0 && all[0].earlier != nil {
		hints.Signal(all[0].earlier)
	}
	f.keys[x.event.Key] = slices.Insert(all, at, x)
}

// watch releases waiting and held messages of a claim when it is revoked.
func (f *Source) watch(claim driver.Assignment) {
	select {
	case <-claim.Revoked():
	case <-f.life.Done():
	}
	keys := map[string]bool{}
	f.note(func() {
		for x := range f.claims[claim] {
			if !x.offering {
				x.done(driver.Release, nil)
				keys[x.event.Key] = true
			}
		}
		delete(f.claims, claim)
	})
	for key := range keys {
		f.abandon(key, claim)
	}
}

// tend offers the events of a key until there are none.
func (f *Source) tend(key string) {
	for failures := 0; ; {
		var x *flight
		f.note(func() {
			for x == nil && len(f.keys[key]) > 0 {
				x, f.keys[key] = f.keys[key][0], f.keys[key][1:]
				if x.ended {
					x = nil
				}
			}
			if x == nil {
				delete(f.keys, key)
				return
			}
			x.offering = true
		})
		if x == nil {
			return
		}
		if failures++; f.try(x) {
			failures = 0
			continue
		}
		f.pause(x, failures)
	}
}

// pause waits before an event is offered again. An earlier event of its key ends the pause: it may be the missing one.
func (f *Source) pause(x *flight, failures int) {
	pause := time.NewTimer(sourceRetries.Delay(failures, rand.Float64()))
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-x.earlier:
	case <-x.message.Claim.Context().Done():
	case <-f.intake.Done():
	}
}

// try offers an event. It returns false if the event is to be offered again.
func (f *Source) try(x *flight) bool {
	ctx, cancel := join.Context(f.life, x.message.Claim.Context())
	defer cancel()
	outcome, err := Refused, context.Cause(ctx)
	select {
	case f.turns <- struct{}{}:
		outcome, err = f.contained(ctx, x.event)
		<-f.turns
	case <-ctx.Done():
	}
	again, abandoned := false, false
	f.note(func() {
		x.offering = false
		switch {
		case x.ended: // it was held and is delivered by now
		case outcome.Durable():
			x.done(driver.Ack, nil)
		case driver.IsRevoked(x.message.Claim) || f.life.Err() != nil || outcome != Held && f.intake.Err() != nil:
			f.release(x)
			abandoned = outcome == Held // watch was earlier
		case outcome != Held:
			again, x.earlier = true, make(chan struct{}, 1)
			if f.enqueue(x); f.keys[x.event.Key][0].event.Before(x.event.Position) {
				hints.Signal(x.earlier) // it came meanwhile
			}
		}
	})
	if again && err != nil {
		f.options.Trouble(err)
	}
	if abandoned {
		f.abandon(x.event.Key, x.message.Claim)
	}
	return !again
}

// release releases an event, and those of its claim behind it: without it they would be events after a gap. The
// mutex is held.
func (f *Source) release(x *flight) {
	x.done(driver.Release, nil)
	for _, behind := range f.keys[x.event.Key] {
		if behind.message.Claim == x.message.Claim {
			behind.done(driver.Release, nil)
		}
	}
}

// contained offers an event in a goroutine of its own. A panic of the handler is an error, and so is the
// end of the goroutine.
func (f *Source) contained(ctx context.Context, e Event) (o Outcome, err error) {
	o, err = Refused, errNoReturn
	var work sync.WaitGroup
	work.Go(func() {
		defer contain(e.Key, &err)
		o, err = f.offer(ctx, e)
	})
	work.Wait()
	return o, err
}

var errNoReturn = errors.New("the handler ended its goroutine")

// settled acknowledges a held event that is durable.
func (x *flight) settled() { x.source.note(func() { x.done(driver.Ack, nil) }) }

// done sets the outcome of a message, once. The mutex is held.
func (x *flight) done(o driver.Outcome, reason error) {
	if x.ended {
		return
	}
	x.ended = true
	s := driver.Settlement{Received: x.message, Outcome: o}
	if reason != nil {
		s.Reason = sqltable.Clean(fmt.Sprintf("%.2000s", reason.Error()))
	}
	x.source.ended = append(x.source.ended, s)
	delete(x.source.claims[x.message.Claim], x)
}

// settle records outcomes, all that are there at a time together, until no more follow.
func (f *Source) settle() {
	for failures := 0; ; {
		var batch []driver.Settlement
		f.mu.Lock()
		batch, f.ended = f.ended, nil
		last, changed := f.flushed && len(batch) == 0, f.changed
		f.mu.Unlock()
		switch {
		case last:
			return
		case len(batch) == 0:
			<-changed
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), closing)
		answers := f.queue.Settle(ctx, batch)
		cancel()
		if failures++; f.recorded(batch, answers) {
			failures = 0
		} else {
			sourceRetries.Wait(f.life, failures)
		}
	}
}

// recorded handles the answers of Settle. It returns false if an outcome is to be repeated.
func (f *Source) recorded(batch []driver.Settlement, answers []error) bool {
	whole := true
	f.note(func() {
		for i, err := range answers {
			m := batch[i]
			if err != nil && !errors.Is(err, interlock.ErrLost) && interlock.Kind(err) != interlock.Bug && m.Claim.Valid() && f.life.Err() == nil {
				f.ended, whole = append(f.ended, m), false
				continue
			}
			f.room.Messages++
			f.room.Bytes += len(m.Payload)
		}
	})
	for _, err := range answers {
		if err != nil && !errors.Is(err, interlock.ErrLost) {
			f.options.Trouble(err)
			break
		}
	}
	return whole
}

// Close stops receiving, waits for offers in progress until ctx ends, then cancels them; releases messages
// that are not settled, and leaves the queue. It returns an error if ctx ended first.
func (f *Source) Close(ctx context.Context) error {
	f.stop()
	f.fetcher.Wait() // Receive returns when its context ends
	var err error
	for {
		f.mu.Lock()
		busy, changed := len(f.keys) > 0, f.changed
		f.mu.Unlock()
		if !busy {
			break
		}
		select {
		case <-changed:
			continue
		case <-ctx.Done():
			err = &interlock.Error{Op: "close source", Kind: interlock.Retryable, Err: context.Cause(ctx)}
		}
		break
	}
	f.end()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closing)
	defer cancel()
	_ = join.Wait(ctx, f.work.Wait) // a handler may ignore the end of its context
	f.note(func() { f.flushed = true })
	f.settler.Wait()
	ctx, leave := context.WithTimeout(context.WithoutCancel(ctx), closing)
	defer leave()
	return errors.Join(err, f.queue.Close(ctx))
}
