package kube

import (
	"net/http"
	"sync"
	"time"

	"github.com/interlock-dev/interlock/driver/boottime"
)

// serverClock is the clock of the API server: the Date of its latest answer, in
// whole seconds, plus the time since.
type serverClock struct {
	mu   sync.Mutex
	date time.Time // zero if no answer had one
	at   boottime.Instant
}

// now returns the server's time, or that of otherwise until an answer has a date.
func (c *serverClock) now(otherwise func() time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.date.IsZero() {
		return otherwise()
	}
	return c.date.Add(boottime.Now().Sub(c.at))
}

// datedTransport sets the clock from every answer.
type datedTransport struct {
	next  http.RoundTripper
	clock *serverClock
}

func (t datedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := t.next.RoundTrip(r)
	if err != nil {
		return answer, err
	}
	if date, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
		t.clock.mu.Lock()
		defer t.clock.mu.Unlock()
		t.clock.date, t.clock.at = date, boottime.Now()
	}
	return answer, nil
}
