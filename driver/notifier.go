package driver

import (
	"context"
	"crypto/rand"
	"encoding/json"
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
	// Subscribe calls deliver for each text until ctx ends. It calls deliver with an empty text
	// if it may have missed some.
	Subscribe func(ctx context.Context, deliver func(text string))
}

// SharedNotifier is the [Notifier] of a driver. It notifies this process at once, and other
// processes by a [NotifierTransport]. The first Notify and the first Listen each start a
// goroutine, which runs until Close. Create it with [NewSharedNotifier].
type SharedNotifier struct {
	transport NotifierTransport
	self      string   // identifies its own texts, so that it does not notify twice
	pending   *Mailbox // names to be sent; the empty name means any name
	life      context.Context
	end       context.CancelFunc
	loops     sync.WaitGroup

	mu                  sync.Mutex
	listeners           map[*listener]bool
	sending, subscribed bool
}

var _ Notifier = (*SharedNotifier)(nil)

type listener struct{ each func(name string) }

// NewSharedNotifier returns a notifier that uses t. It sends nothing by itself. Close it.
func NewSharedNotifier(t NotifierTransport) *SharedNotifier {
	n := &SharedNotifier{transport: t, self: rand.Text(), pending: NewMailbox("", maxNotifierNames), listeners: map[*listener]bool{}}
	n.life, n.end = context.WithCancel(context.Background())
	return n
}

// Notify calls all listeners; see [Notifier]. After Close it notifies this process only.
func (n *SharedNotifier) Notify(names ...string) {
	if len(names) == 0 {
		names = []string{""}
	}
	n.notify(names)
	n.start(&n.sending, n.send)
	for _, name := range names {
		n.pending.Add(name)
	}
}

// Listen calls each for every notification, and if some may have been missed; see [Notifier].
func (n *SharedNotifier) Listen(each func(name string)) (stop func()) {
	l := &listener{each}
	n.mu.Lock()
	n.listeners[l] = true
	n.mu.Unlock()
	n.start(&n.subscribed, func(life context.Context) { n.transport.Subscribe(life, n.deliver) })
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.listeners, l)
	}
}

// Close ends the goroutines and waits for them. If ctx ends first, it returns the cause of ctx.
func (n *SharedNotifier) Close(ctx context.Context) error {
	n.mu.Lock()
	n.end()
	n.mu.Unlock()
	done := make(chan struct{})
	go func() { n.loops.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// start starts a loop unless it is running or the notifier is closed.
func (n *SharedNotifier) start(running *bool, loop func(life context.Context)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !*running && n.life.Err() == nil {
		*running = true
		n.loops.Go(func() { loop(n.life) })
	}
}

// deliver passes on a text of another process. A text that is not a list of names means any name.
func (n *SharedNotifier) deliver(text string) {
	var names []string
	_ = json.Unmarshal([]byte(text), &names)
	switch {
	case len(names) == 0:
		n.notify([]string{""})
	case names[0] != n.self:
		n.notify(names[1:])
	}
}

// notify calls all listeners.
func (n *SharedNotifier) notify(names []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for l := range n.listeners {
		for _, name := range names {
			l.each(name)
		}
	}
}

// send sends the names of each interval, and repeats texts until Send succeeds.
func (n *SharedNotifier) send(life context.Context) {
	for {
		select {
		case <-n.pending.Woken():
		case <-life.Done():
			return
		}
		text, pause := n.text(), 50*time.Millisecond
		for n.transport.Send(life, text) != nil {
			if !n.wait(pause) {
				return
			}
			pause = min(2*pause, 5*time.Second)
		}
		if !n.wait(n.transport.Interval) {
			return
		}
	}
}

// text encodes this notifier's id and the names that were notified.
func (n *SharedNotifier) text() string {
	names, missed := n.pending.Take()
	text, err := json.Marshal(append([]string{n.self}, names...))
	if err != nil || missed || len(text) > maxNotifierText {
		text, _ = json.Marshal([]string{n.self, ""}) // strings always marshal
	}
	return string(text)
}

// wait waits for d and reports whether the notifier is still open.
func (n *SharedNotifier) wait(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-n.life.Done():
		return false
	}
}
