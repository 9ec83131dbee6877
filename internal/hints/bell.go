package hints

import (
	"context"
	crand "crypto/rand"
	"encoding/json"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/join"
)

// MaxText is the most bytes of a text that a Bell sends.
const MaxText = 7500

// Transport carries texts between the bells of processes.
type Transport struct {
	// Interval is the least time between two texts; names that are rung meanwhile travel
	// together.
	Interval time.Duration
	// Send sends a text to the other processes. It is called from one goroutine at a time.
	Send func(ctx context.Context, text string) error
	// Hear calls heard for each text, and with an empty one after it may have missed some,
	// until ctx ends.
	Hear func(ctx context.Context, heard func(text string))
}

// Bell rings in this process at once, and in others by its transport. It has a goroutine
// from the first Ring and one from the first Listen on. Create it with [NewBell].
type Bell struct {
	transport Transport
	self      string // in what it sends, so that it does not ring twice
	rung      *Mailbox
	life      context.Context
	end       context.CancelFunc
	loops     sync.WaitGroup

	mu               sync.Mutex
	ears             map[*ear]bool
	sending, hearing bool
}

type ear struct{ each func(name string) }

// NewBell sends nothing. Close it.
func NewBell(t Transport) *Bell {
	b := &Bell{transport: t, self: crand.Text(), rung: NewMailbox("", MostNames), ears: map[*ear]bool{}}
	b.life, b.end = context.WithCancel(context.Background())
	return b
}

// Ring is that of driver.Bell. After Close it rings in this process only.
func (b *Bell) Ring(names ...string) {
	b.peal(names)
	b.start(&b.sending, b.send)
	if len(names) == 0 {
		b.rung.Miss()
	}
	for _, name := range names {
		b.rung.Add(name)
	}
}

// Listen is that of driver.Bell.
func (b *Bell) Listen(each func(name string)) (stop func()) {
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

// Close ends the goroutines, and waits for that until ctx ends.
func (b *Bell) Close(ctx context.Context) error {
	b.mu.Lock()
	b.end()
	b.mu.Unlock()
	return join.Wait(ctx, b.loops.Wait)
}

// start runs a loop unless it runs, or the bell was closed.
func (b *Bell) start(running *bool, loop func(life context.Context)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !*running && b.life.Err() == nil {
		*running = true
		b.loops.Go(func() { loop(b.life) })
	}
}

// heard passes on a text of another process. One that is no list of names is any name.
func (b *Bell) heard(text string) {
	var names []string
	_ = json.Unmarshal([]byte(text), &names)
	switch {
	case len(names) == 0:
		b.peal(nil)
	case names[0] != b.self:
		b.peal(names[1:])
	}
}

// peal calls all who listen; no names are any name.
func (b *Bell) peal(names []string) {
	if len(names) == 0 {
		names = []string{""}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for e := range b.ears {
		for _, name := range names {
			e.each(name)
		}
	}
}

// send sends the names of each interval, and again what was not sent for sure.
func (b *Bell) send(life context.Context) {
	pause := backoff.Policy{First: 50 * time.Millisecond, Max: 5 * time.Second}
	for {
		select {
		case <-b.rung.Woken():
		case <-life.Done():
			return
		}
		text := b.text()
		for failed := 1; b.transport.Send(life, text) != nil; failed++ {
			if !b.wait(pause.Delay(failed, rand.Float64())) {
				return
			}
		}
		if !b.wait(b.transport.Interval) {
			return
		}
	}
}

// text is a list of this bell and the names that were rung; no names stand for any name.
func (b *Bell) text() string {
	names, missed := b.rung.Take()
	if missed {
		names = nil
	}
	text, err := json.Marshal(append([]string{b.self}, names...))
	if err != nil || len(text) > MaxText {
		text, _ = json.Marshal([]string{b.self})
	}
	return string(text)
}

// wait reports whether the bell is still open.
func (b *Bell) wait(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-b.life.Done():
		return false
	}
}
