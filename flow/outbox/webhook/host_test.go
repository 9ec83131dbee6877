package webhook

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestHostsAreForgotten: a host without requests uses no memory.
func TestHostsAreForgotten(t *testing.T) {
	s, err := New("http://127.0.0.1:1", secret("x"), &Options{PerHost: 1})
	testbed.OK(t, err)
	leave, err := s.enter(t.Context(), "a")
	testbed.OK(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.enter(ctx, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("a second one is let in: %v", err)
	}
	if len(s.hosts) != 1 {
		t.Errorf("%d hosts are known while one is used", len(s.hosts))
	}
	if leave(); len(s.hosts) != 0 {
		t.Errorf("%d hosts are kept", len(s.hosts))
	}
}

// TestSignedWhenSent: a request that waited for its turn has the time at which it is sent.
func TestSignedWhenSent(t *testing.T) {
	var now atomic.Int64
	arrived, answer := make(chan string, 1), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		arrived <- r.Header.Get(HeaderTimestamp)
		<-answer
	}))
	defer server.Close()
	s, err := New(server.URL, secret("x"), &Options{PerHost: 1, Now: func() time.Time { return time.Unix(now.Load(), 0) }})
	testbed.OK(t, err)
	defer s.Close()
	sent := make(chan error, 2)
	for users := range 2 {
		go func() { sent <- s.post(t.Context(), driver.Message{ID: "1", Topic: "t"}) }()
		testbed.Eventually(t, "it waits or is sent", testbed.Patience, func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			h := s.hosts[server.Listener.Addr().String()]
			return h != nil && h.users > users
		})
	}
	if at := <-arrived; at != "0" {
		t.Errorf("the first has the time %s", at)
	}
	now.Store(1000)
	answer <- struct{}{}
	if at := <-arrived; at != "1000" {
		t.Errorf("the second has the time %s", at)
	}
	answer <- struct{}{}
	for range 2 {
		testbed.OK(t, <-sent)
	}
}

func FuzzAddress(f *testing.F) {
	for _, s := range []string{"https://example.org/hook", "http://", "ftp://x", "https://a:b@c", "//x", "%", "http://:80/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, address string) {
		if u, err := parse(address); err == nil && (u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https") {
			t.Fatalf("%q is %v", address, u)
		}
	})
}
