package webhook

import (
	"context"
	"errors"
	"testing"
)

// TestHostsAreForgotten: messages that name ever new hosts leave nothing behind.
func TestHostsAreForgotten(t *testing.T) {
	s, err := New("http://127.0.0.1:1", secret("x"), &Options{PerHost: 1})
	if err != nil {
		t.Fatal(err)
	}
	leave, err := s.enter(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
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
