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
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/failure"
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
