package mysql

import (
	"context"
	"errors"
	"testing"
	"time"
)

// What an owner asks for comes after what it has given up waiting for, and what
// others ask for does not wait.
func TestCallsOfOneOwnerAreInOrder(t *testing.T) {
	c := &calls{limit: time.Minute, last: map[string]chan struct{}{}}
	end, order := make(chan struct{}), make(chan string, 3)
	call := func(ctx context.Context, owner, what string, wait <-chan struct{}) error {
		return c.do(ctx, "test", "x", owner, func(context.Context) error {
			if wait != nil {
				<-wait
			}
			order <- what
			return nil
		})
	}
	gaveUp := errors.New("gave up")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(10*time.Millisecond, func() { cancel(gaveUp) })
	if err := call(ctx, "me", "acquire", end); !errors.Is(err, gaveUp) {
		t.Fatal(err)
	}
	released := make(chan error, 1)
	go func() { released <- call(t.Context(), "me", "release", nil) }()
	if err := call(t.Context(), "other", "other", nil); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-released:
		t.Fatalf("it overtook the call before it: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(end)
	if err := <-released; err != nil {
		t.Fatal(err)
	}
	if got := []string{<-order, <-order, <-order}; got[0] != "other" || got[1] != "acquire" || got[2] != "release" {
		t.Errorf("%q", got)
	}
}
