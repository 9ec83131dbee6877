package memory

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Sink keeps published messages in memory. It is the executable specification of
// driver.Sink. The zero value accepts all messages; it is safe for concurrent use.
type Sink struct {
	mu      sync.Mutex
	taken   []driver.Message
	refuses func(driver.Message) error
}

var _ driver.Sink = (*Sink)(nil)

// Refuse sets a function that the sink calls for each message. If it returns an error, the sink
// refuses the message with that error; a nil why accepts all messages. why is called by one
// goroutine at a time and must not call the sink.
func (s *Sink) Refuse(why func(driver.Message) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuses = why
}

// Publish keeps messages; see driver.Sink. A message without an id or a topic is a Bug.
func (s *Sink) Publish(ctx context.Context, messages []driver.Message) []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return driver.SendLanes(messages, 1, func(m driver.Message) error { return s.take(ctx, m) })
}

// take keeps one message. The caller holds the mutex.
func (s *Sink) take(ctx context.Context, m driver.Message) error {
	const op = "publish"
	switch {
	case ctx.Err() != nil:
		return fail.New(op, m.ID, interlock.Retryable, context.Cause(ctx))
	case m.ID == "" || m.Topic == "":
		return fail.New(op, m.ID, interlock.Bug, interlock.ErrName)
	}
	if s.refuses != nil {
		if err := s.refuses(m); err != nil {
			return err
		}
	}
	m.Payload, m.Headers = slices.Clone(m.Payload), maps.Clone(m.Headers)
	s.taken = append(s.taken, m)
	return nil
}

// Messages returns the accepted messages in their order.
func (s *Sink) Messages() []driver.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.taken)
}

// Notifier notifies this process. The zero value is ready; it is safe for concurrent
// use. It is the executable specification of driver.Notifier.
type Notifier struct {
	mu        sync.Mutex
	listening map[*ear]bool
}

var _ driver.Notifier = (*Notifier)(nil)

type ear struct{ each func(name string) }

// Notify calls all listeners; see driver.Notifier.
func (b *Notifier) Notify(names ...string) {
	if len(names) == 0 {
		names = []string{""}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for e := range b.listening {
		for _, name := range names {
			e.each(name)
		}
	}
}

// Listen calls each at every notification until stop is called; see driver.Notifier.
func (b *Notifier) Listen(each func(name string)) (stop func()) {
	e := &ear{each}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.listening == nil {
		b.listening = map[*ear]bool{}
	}
	b.listening[e] = true
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.listening, e)
	}
}
