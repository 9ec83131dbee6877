package outbox

import (
	"context"
	"sync"

	"github.com/interlock-dev/interlock/driver"
)

// Message is a message.
type Message = driver.Message

// Sink is where a relay delivers messages: a [Func], a webhook.Sink, or one of your own.
type Sink = driver.Sink

// Func returns a sink that calls fn for each message: in order for one topic and key, and for up to
// 16 of them at the same time. fn must return when ctx ends. The kind of its error decides what
// follows (see [interlock.Kind]); after an error of unknown kind the message is sent again.
func Func(fn func(ctx context.Context, m Message) error) Sink { return funcSink(fn) }

type funcSink func(ctx context.Context, m Message) error

const atOnce = 16 // concurrent calls of a Func

// Publish calls the function; see [driver.Sink].
func (f funcSink) Publish(ctx context.Context, messages []Message) []error {
	answers := make([]error, len(messages))
	turns := make(chan struct{}, atOnce)
	var running sync.WaitGroup
	for _, lane := range driver.Lanes(messages) {
		turns <- struct{}{}
		running.Go(func() {
			defer func() { <-turns }()
			failed := false
			for _, i := range lane {
				if answers[i] = driver.ErrNotSent; !failed {
					answers[i] = f(ctx, messages[i])
					failed = answers[i] != nil
				}
			}
		})
	}
	running.Wait()
	return answers
}
