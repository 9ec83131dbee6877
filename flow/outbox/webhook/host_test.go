package webhook

import (
	"context"
	"errors"
	"testing"

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
