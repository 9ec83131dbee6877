package elect_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	client "github.com/go-sql-driver/mysql"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/elect"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func init() { _ = client.SetLogger(&client.NopLogger{}) } // of connections that break

// electedWithin bounds how long a candidate waits for its turn after an outage, if
// each of those before it leads for a moment: the lease of a leader that did not
// come back, twice, and the longest pause between requests.
const electedWithin = 12 * time.Second

// TestOutagesLeaveNoCandidateBehind: five candidates campaign again and again while
// the server is cut off, stopped and killed for longer than a lease. No campaign
// ends in an error, and afterwards each of them is elected.
func TestOutagesLeaveNoCandidateBehind(t *testing.T) {
	for name, start := range systems {
		t.Run(name, func(t *testing.T) {
			if testing.Short() {
				t.Skip("runs a server: not with -short")
			}
			t.Parallel()
			s := start(t)
			r := &rounds{elected: map[string]int{}}
			for i := range 5 {
				r.join(t, s.candidate(t, fmt.Sprint("candidate ", i)))
			}
			for fault, do := range faults {
				r.all(t, "before "+fault)
				do(s.faults)
				r.all(t, "after "+fault)
			}
		})
	}
}

const outage = 3 * time.Second // longer than a lease

// faults are outages; when each returns it is over.
var faults = map[string]func(f drivertest.Faults){
	"lost replies":   func(f drivertest.Faults) { f.(drivertest.ReplyDropper).DropReplies(); time.Sleep(outage); f.Heal() },
	"a stopped one":  func(f drivertest.Faults) { f.Pause(); time.Sleep(outage); f.Resume() },
	"a short outage": func(f drivertest.Faults) { f.Kill(); f.Restart() },
	"a long outage":  func(f drivertest.Faults) { f.Kill(); time.Sleep(outage); f.Restart() },
}

// rounds counts how often each candidate was elected.
type rounds struct {
	mu         sync.Mutex
	candidates []string
	elected    map[string]int
}

// join lets c campaign until the test ends, and lead for a moment each time.
func (r *rounds) join(t *testing.T, c *contender) {
	r.candidates = append(r.candidates, c.identity)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var campaigning sync.WaitGroup
	t.Cleanup(func() { cancel(); campaigning.Wait() })
	campaigning.Go(func() {
		for ctx.Err() == nil {
			err := c.election.Run(ctx, name, func(leading context.Context, _ *elect.Term) error {
				r.mu.Lock()
				r.elected[c.identity]++
				r.mu.Unlock()
				select {
				case <-leading.Done():
				case <-time.After(20 * time.Millisecond): // of work
				}
				return nil
			})
			if err != nil && ctx.Err() == nil && !lostOffice(err) {
				t.Errorf("%s gave up: %v", c.identity, err)
			}
		}
	})
}

func lostOffice(err error) bool {
	return errors.Is(err, interlock.ErrExpired) || errors.Is(err, interlock.ErrLost) || errors.Is(err, interlock.ErrSessionEnded)
}

// all waits until each candidate was elected once more.
func (r *rounds) all(t *testing.T, when string) {
	t.Helper()
	r.mu.Lock()
	clear(r.elected)
	r.mu.Unlock()
	began := time.Now()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		t.Logf("%s, after %v: %v", when, time.Since(began), r.elected)
	}()
	testbed.Eventually(t, "each of the candidates is elected "+when, electedWithin, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.elected) == len(r.candidates)
	})
}
