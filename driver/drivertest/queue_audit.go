package drivertest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// QueueAudit records guarded writes of handlers. The guard stores the highest token of each claim
// and rejects lower ones. Its methods are safe for concurrent use.
type QueueAudit struct {
	mu      sync.Mutex
	marks   map[string]interlock.Token
	last    map[string]string // id by key, and its token
	under   map[string]interlock.Token
	times   map[string]int // by id
	refused int
	wrong   []string
	changed chan struct{}
}

// NewQueueAudit returns an audit without writes.
func NewQueueAudit() *QueueAudit {
	return &QueueAudit{marks: map[string]interlock.Token{}, last: map[string]string{}, under: map[string]interlock.Token{}, times: map[string]int{}, changed: make(chan struct{})}
}

// Write records one write of a handler. The ids of a key must rise. One may repeat, but an earlier
// one must not follow a later one under the same assignment.
func (a *QueueAudit) Write(claim string, token interlock.Token, key, id string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if token < a.marks[claim] {
		a.refused++
		return fmt.Errorf("%w: %v after %v", interlock.ErrStaleToken, token, a.marks[claim])
	}
	if last := a.last[key]; id < last && token == a.under[key] {
		a.wrong = append(a.wrong, id+" after "+last)
	}
	a.marks[claim], a.last[key], a.under[key] = token, id, token
	a.times[id]++
	close(a.changed)
	a.changed = make(chan struct{})
	return nil
}

// Handle implements a handler that writes.
func (a *QueueAudit) Handle(_ context.Context, m driver.Received) error {
	return a.Write(m.Claim.Name(), m.Claim.Token(), m.Key, m.ID)
}

// Refused returns the number of writes whose token was too low.
func (a *QueueAudit) Refused() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.refused
}

// Wait blocks until n ids are written.
func (a *QueueAudit) Wait(t *testing.T, n int) {
	t.Helper()
	timer := time.NewTimer(2 * time.Minute) // a cluster may take half a minute to elect leaders
	defer timer.Stop()
	for {
		a.mu.Lock()
		got, changed := len(a.times), a.changed
		a.mu.Unlock()
		if got >= n {
			return
		}
		select {
		case <-changed:
		case <-timer.C:
			t.Fatalf("%d of %d messages were handled", got, n)
		}
	}
}

// Check requires that all ids are written in order, and each at most most times.
func (a *QueueAudit) Check(t *testing.T, ids []string, most int) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.wrong) > 0 {
		t.Errorf("out of order: %v", a.wrong)
	}
	for _, id := range ids {
		if n := a.times[id]; n < 1 || n > most {
			t.Errorf("%s was handled %d times", id, n)
		}
	}
}

// Serve accepts writes of handlers in other processes: see [WriteTo]. begun receives each start.
func (a *QueueAudit) Serve(t *testing.T) (address string, begun <-chan struct{}) {
	begins := make(chan struct{}, 1000)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if q.Has("begin") {
			begins <- struct{}{}
			return
		}
		token, err := interlock.ParseToken(q.Get("token"))
		if err == nil {
			err = a.Write(q.Get("claim"), token, q.Get("key"), q.Get("id"))
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL, begins
}

// WriteTo returns a handler for another process. It announces itself to the audit at address, waits
// for the given time, even if its claim ends, and writes.
func WriteTo(address string, while time.Duration) func(context.Context, driver.Received) error {
	ask := func(m driver.Received, how string) error {
		q := url.Values{how: {""}, "claim": {m.Claim.Name()}, "token": {m.Claim.Token().String()}, "key": {m.Key}, "id": {m.ID}}
		r, err := http.Get(address + "/?" + q.Encode())
		if err != nil {
			return err
		}
		defer r.Body.Close()
		if r.StatusCode != http.StatusOK {
			return errors.New(r.Status)
		}
		return nil
	}
	return func(_ context.Context, m driver.Received) error {
		if err := ask(m, "begin"); err != nil {
			return err
		}
		time.Sleep(while)
		return ask(m, "write")
	}
}

// QueueIDs returns the ids, KEY/NUMBER, of n messages for each of some keys.
func QueueIDs(keys, from, n int) (all []string) {
	for i := range n {
		for k := range keys {
			all = append(all, fmt.Sprintf("%d/%04d", k, from+i))
		}
	}
	return all
}

// ReorderedIDs returns the ids, KEY/NUMBER, of n messages per key, numbered from 0, in the order of
// a faulty producer: in groups of five that are reversed, every third group twice.
func ReorderedIDs(keys, n int) (all []string) {
	for from := 0; from < n; from += 5 {
		some := QueueIDs(keys, from, min(5, n-from))
		slices.Reverse(some)
		if all = append(all, some...); from/5%3 == 0 {
			all = append(all, some...)
		}
	}
	return all
}
