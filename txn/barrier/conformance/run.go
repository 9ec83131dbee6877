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

// Options say what is played to whom. Only URL is needed.
type Options struct {
	// URL is where the participant takes messages.
	URL string
	// Inspect is where it tells of an account; empty means URL.
	Inspect string
	// Client sends the requests; nil means http.DefaultTransport's. Redirects count as
	// answers.
	Client *http.Client
	// Protocols are those that are played; empty means saga and TCC.
	Protocols []Protocol
	// Prefix begins the names of transactions and accounts, at most 64 bytes. The
	// participant must not have seen it before; empty means a random one.
	Prefix string
	// Rounds is how often each pair of messages is sent at once; 0 means 10.
	Rounds int
	// Concurrency is how many accounts are played on at a time; 0 means 4.
	Concurrency int
	// Patience is how long a message may take to have an answer; within it, one that
	// was answered that the participant is at work (425) is sent again, and of two that
	// are sent at once also one that failed (5xx). 0 means 10 seconds.
	Patience time.Duration

	now func() time.Time // the clock; nil means that of the process
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

// Run plays everything, and returns when that is over, or ctx is. An error says that
// the participant could not be judged: it was not to be reached, does not tell of its
// accounts, or the options mean nothing (Bug). The report tells of what was played until
// then.
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

// collect puts together what the plays have found.
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
