package driver

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"time"
)

// Limits of one text of a [SharedNotifier]. If there are more names, it sends "any name".
const (
	maxNotifierText  = 7500
	maxNotifierNames = 1000
)

// NotifierTransport carries texts between the notifiers of processes.
type NotifierTransport struct {
	// Interval is the minimum time between two texts. Names that are notified in between are
	// sent in one text.
	Interval time.Duration
	// Send sends a text to the other processes. It is called from one goroutine at a time.
	Send func(ctx context.Context, text string) error
	// Hear calls heard for each text until ctx ends. It calls heard with an empty text if it
	// may have missed some.
	Hear func(ctx context.Context, heard func(text string))
}

// SharedNotifier is the [Notifier] of a driver. It notifies this process at once, and other
// processes by a [NotifierTransport]. The first Notify and the first Listen each start a
// goroutine, which runs until Close. Create it with [NewSharedNotifier].
type SharedNotifier struct {
	transport NotifierTransport
	self      string        // identifies its own texts, so that it does not notify twice
	notified  chan struct{} // holds one
	life      context.Context
	end       context.CancelFunc
	loops     sync.WaitGroup

	mu               sync.Mutex
	ears             map[*ear]bool
	names            map[string]bool // to be sent; the empty name means any name
	sending, hearing bool
}

var _ Notifier = (*SharedNotifier)(nil)

type ear struct{ each func(name string) }

// NewSharedNotifier returns a notifier that uses t. It sends nothing by itself. Close it.
func NewSharedNotifier(t NotifierTransport) *SharedNotifier {
	b := &SharedNotifier{transport: t, self: rand.Text(), notified: make(chan struct{}, 1), ears: map[*ear]bool{}, names: map[string]bool{}}
	b.life, b.end = context.WithCancel(context.Background())
	return b
}

// Notify calls all listeners; see [Notifier]. After Close it notifies this process only.
func (b *SharedNotifier) Notify(names ...string) {
	if len(names) == 0 {
		names = []string{""}
	}
	b.notify(names)
	b.start(&b.sending, b.send)
	b.mu.Lock()
	for _, name := range names {
		b.names[name] = true
	}
	b.mu.Unlock()
	select {
	case b.notified <- struct{}{}:
	default:
	}
}

// Listen calls each for every notification, and if some may have been missed; see [Notifier].
func (b *SharedNotifier) Listen(each func(name string)) (stop func()) {
	e := &ear{each}
	b.mu.Lock()
	b.ears[e] = true
	b.mu.Unlock()
	b.start(&b.hearing, func(life context.Context) { b.transport.Hear(life, b.heard) })
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.ears, e)
	}
}

// Close ends the goroutines and waits for them. If ctx ends first, it returns the cause of ctx.
func (b *SharedNotifier) Close(ctx context.Context) error {
	b.mu.Lock()
	b.end()
	b.mu.Unlock()
	done := make(chan struct{})
	go func() { b.loops.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// start starts a loop unless it is running or the notifier is closed.
func (b *SharedNotifier) start(running *bool, loop func(life context.Context)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !*running && b.life.Err() == nil {
		*running = true
		b.loops.Go(func() { loop(b.life) })
	}
}

// heard passes on a text of another process. A text that is not a list of names means any name.
func (b *SharedNotifier) heard(text string) {
	var names []string
	_ = json.Unmarshal([]byte(text), &names)
	switch {
	case len(names) == 0:
		b.notify([]string{""})
	case names[0] != b.self:
		b.notify(names[1:])
	}
}

// notify calls all listeners.
func (b *SharedNotifier) notify(names []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for e := range b.ears {
		for _, name := range names {
			e.each(name)
		}
	}
}

// send sends the names of each interval, and repeats texts until Send succeeds.
func (b *SharedNotifier) send(life context.Context) {
	for {
		select {
		case <-b.notified:
		case <-life.Done():
			return
		}
		text, pause := b.text(), 50*time.Millisecond
		for b.transport.Send(life, text) != nil {
			if !b.wait(pause) {
				return
			}
			pause = min(2*pause, 5*time.Second)
		}
		if !b.wait(b.transport.Interval) {
			return
		}
	}
}

// text encodes this notifier's id and the names that were notified.
func (b *SharedNotifier) text() string {
	b.mu.Lock()
	names := slices.Sorted(maps.Keys(b.names))
	clear(b.names)
	b.mu.Unlock()
	text, err := json.Marshal(append([]string{b.self}, names...))
	if err != nil || len(text) > maxNotifierText || len(names) > maxNotifierNames {
		text, _ = json.Marshal([]string{b.self, ""}) // strings always marshal
	}
	return string(text)
}

// wait waits for d and reports whether the notifier is still open.
func (b *SharedNotifier) wait(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-b.life.Done():
		return false
	}
}
