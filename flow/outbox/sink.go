package outbox

import (
	"context"
	"sync"

	"github.com/interlock-dev/interlock/driver"
)

// Message is a message, as the application adds it and a sink gets it.
type Message = driver.Message

// Sink is where a relay delivers messages: a [Func], a webhook.Sink, or one of your own.
type Sink = driver.Sink

// Func is a sink that calls fn for each message: those of one topic and key one
// after the other, and up to 16 others at once. fn must return when ctx ends. What
// its error says is read from its kind (see [interlock.Kind]): an error of unknown
// kind means that the message is sent again.
func Func(fn func(ctx context.Context, m Message) error) Sink { return funcSink(fn) }

type funcSink func(ctx context.Context, m Message) error

// atOnce is how many messages a Func has under way.
const atOnce = 16

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
