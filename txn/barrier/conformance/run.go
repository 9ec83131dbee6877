package conformance

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/txn/branch"
)

// Options configure a run. Only URL is required.
type Options struct {
	// URL is the participant's address for messages.
	URL string
	// Inspect is its address for reading accounts; empty means URL.
	Inspect string
	// Client sends the requests; nil means a client with http.DefaultTransport. Redirects
	// count as answers.
	Client *http.Client
	// Protocols are the protocols to play; empty means saga and TCC.
	Protocols []Protocol
	// Prefix begins the names of transactions and accounts, at most 64 bytes. The
	// participant must not have seen it before; empty means a random one.
	Prefix string
	// Rounds is how often each concurrent pair is sent; 0 means 10.
	Rounds int
	// Concurrency is the number of accounts played at a time; 0 means 4.
	Concurrency int
	// Patience bounds the time until a message is answered; 0 means 10 seconds. Within it,
	// a message that was answered 425 is sent again, and also a message of a concurrent
	// pair that was answered 5xx.
	Patience time.Duration

	now func() time.Time // the clock; nil means the process's
}

// longestPrefix leaves room in a transaction's id.
const longestPrefix = 64

func (o Options) resolve() (Options, error) {
	o.Inspect = cmp.Or(o.Inspect, o.URL)
	o.Prefix = cmp.Or(o.Prefix, "kit-"+rand.Text())
	o.Rounds, o.Concurrency = cmp.Or(o.Rounds, 10), cmp.Or(o.Concurrency, 4)
	o.Patience = cmp.Or(o.Patience, 10*time.Second)
	if len(o.Protocols) == 0 {
		o.Protocols = []Protocol{Saga, TCC}
	}
	if o.now == nil {
		o.now = time.Now
	}
	for _, address := range []string{o.URL, o.Inspect} {
		u, err := url.Parse(address)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
			return o, bug(fmt.Errorf("%q is not the address of a participant", failure.RedactURL(address)))
		}
		if u.User != nil {
			return o, bug(fmt.Errorf("the address %s has a user or a password: remove them", failure.RedactURL(address)))
		}
	}
	for _, p := range o.Protocols {
		if !slices.Contains(Protocols(), p) {
			return o, bug(fmt.Errorf("there is no protocol %q", p))
		}
	}
	if o.Rounds < 0 || o.Concurrency < 0 || o.Patience < 0 || len(o.Prefix) > longestPrefix {
		return o, bug(errors.New("a negative number, or a prefix that is too long"))
	}
	return o, nil
}

func bug(err error) error {
	return &interlock.Error{Op: "play to participant", Kind: interlock.Bug, Err: err}
}

// Run blocks until everything is played or ctx ends. An error means that the participant
// could not be judged: it was unreachable, it does not show its accounts, or the options
// are invalid (Bug). The report covers the plays until then.
func Run(ctx context.Context, o Options) (Report, error) {
	o, err := o.resolve()
	if err != nil {
		return Report{}, err
	}
	var all []play
	for _, p := range o.Protocols {
		all = append(all, p.plays(o.Rounds)...)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		players sync.WaitGroup
		next    = make(chan int)
		played  = make([]*stage, len(all))
	)
	for range o.Concurrency {
		players.Go(func() {
			for i := range next {
				played[i] = newStage(o, all[i], i)
				if err := played[i].perform(ctx); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := range all {
		select {
		case next <- i:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(next)
	players.Wait()
	return collect(played), context.Cause(ctx)
}

// collect combines the results of the plays.
func collect(played []*stage) (r Report) {
	for _, s := range played {
		if s == nil {
			continue
		}
		r.Plays++
		r.Messages += int(s.sent.Load())
		if s.failure != nil {
			r.Failures = append(r.Failures, *s.failure)
		}
	}
	return r
}

// A Report is the result of a run.
type Report struct {
	Plays    int       // begun, one account each
	Messages int       // sent, including repeated ones
	Failures []Failure // at most one for each play, in their order; empty means passed
}

// Err joins the failures; nil if there are none.
func (r Report) Err() error {
	var all []error
	for _, f := range r.Failures {
		all = append(all, &f)
	}
	return errors.Join(all...)
}

// A Failure is a deviation of a participant from the expected.
type Failure struct {
	Protocol  Protocol
	Play      string             // its name; empty for one of all sequences
	Sequence  []branch.Operation // all messages of the play, in the order of sending
	Position  int                // of the message in it, from 1
	Operation branch.Operation   // of the message
	Expected  string             // answers and effects
	Got       string
}

// Error returns all of f in one line.
func (f *Failure) Error() string {
	var names []string
	for _, o := range f.Sequence {
		names = append(names, string(o))
	}
	name := strings.Join(names, ", ")
	if f.Play != "" {
		name = f.Play + " (" + name + ")"
	}
	return fmt.Sprintf("%s: %s: message %d, %s: expected %s, got %s", f.Protocol, name, f.Position, f.Operation, f.Expected, f.Got)
}

// String returns the same as Error.
func (f Failure) String() string { return f.Error() }

// describe formats an answer and effects.
func describe(answer string, e Effects) string {
	return fmt.Sprintf("%s (held %d, confirmed %d)", answer, e.Held, e.Confirmed)
}
