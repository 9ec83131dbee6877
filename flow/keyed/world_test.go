package keyed_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/interlock-dev/interlock/flow/keyed"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // tests fail calls by the thousand
	testbed.Main(m)
}

var ok, wantKind = testbed.OK, testbed.WantKind

// executor returns one that the end of the test closes; all its tasks must end.
func executor(t *testing.T, o *keyed.Options) *keyed.Executor {
	t.Helper()
	x, err := keyed.NewExecutor(o)
	ok(t, err)
	t.Cleanup(func() { closed(t, x) })
	return x
}

type closer interface {
	Close(ctx context.Context) error
	Load() keyed.Load
}

func closed(t *testing.T, x closer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), testbed.Patience)
	defer cancel()
	ok(t, x.Close(ctx))
	if load := x.Load(); load != (keyed.Load{}) {
		t.Errorf("after Close: %+v", load)
	}
}

// stuck runs a task that occupies a key until release is called.
func stuck(t *testing.T, x *keyed.Executor, key string) (release func()) {
	t.Helper()
	begun, end := make(chan struct{}), make(chan struct{})
	ok(t, x.Go(context.WithoutCancel(t.Context()), key, func(context.Context) error {
		close(begun)
		<-end
		return nil
	}, nil))
	<-begun
	return func() { close(end) }
}

func nothing(context.Context) error { return nil }
