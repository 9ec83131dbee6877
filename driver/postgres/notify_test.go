package postgres

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func openNotifier(t *testing.T, url, channel string, o *NotifierOptions) *Notifier {
	t.Helper()
	b, err := NewNotifier(configOf(t, url), channel, o)
	testbed.OK(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		testbed.OK(t, b.Close(ctx))
	})
	return b
}

// listen counts what b hears, once it hears other processes.
func listen(t *testing.T, b *Notifier) *atomic.Int64 {
	t.Helper()
	var heard atomic.Int64
	t.Cleanup(b.Listen(func(string) { heard.Add(1) }))
	testbed.Eventually(t, "it listens", 20*time.Second, func() bool { return heard.Load() > 0 })
	heard.Store(0)
	return &heard
}

// TestNotificationsBecomeOne: notifications that follow each other closely become one.
func TestNotificationsBecomeOne(t *testing.T) {
	t.Parallel()
	server := EmptyServer(t)
	const interval = 200 * time.Millisecond
	a, there := openNotifier(t, server.URL(), "c", &NotifierOptions{Interval: interval}), listen(t, openNotifier(t, server.URL(), "c", nil))
	start := time.Now()
	for range 300 {
		a.Notify()
		time.Sleep(time.Millisecond) // the time in which each could be one
	}
	testbed.Eventually(t, "they are heard elsewhere", bound, func() bool { return there.Load() >= 1 })
	if n, most := there.Load(), int64(time.Since(start)/interval)+3; n > most {
		t.Errorf("%d notifications, want %d at most", n, most)
	}
}

// TestNotifierWithoutAServer: a URL whose server is away may be opened later.
func TestNotifierWithoutAServer(t *testing.T) {
	_, _, err := connection{pool: operator(t, "postgres://nobody@127.0.0.1:1/none")}.Notifier(t.Context(), "n")
	testbed.WantKind(t, err, interlock.Retryable, nil)
}

// TestNotifierOfALongName: a journal in a schema may have a name that is too long for a channel.
func TestNotifierOfALongName(t *testing.T) {
	t.Parallel()
	b, err := backend.Open(t.Context(), EmptyServer(t).URL())
	testbed.OK(t, err)
	defer b.Close(context.Background())
	n, err := b.Notifier(t.Context(), strings.Repeat("s", 63)+"."+strings.Repeat("j", 48))
	if err != nil || n == nil {
		t.Errorf("%v, %v", n, err)
	}
}

func TestNotifierBadInput(t *testing.T) {
	t.Parallel()
	config, _ := pgx.ParseConfig("postgres://localhost/x")
	for _, name := range []string{"", strings.Repeat("x", 64), "a\x00", "\xff"} {
		if _, err := NewNotifier(config, name, nil); !errors.Is(err, interlock.ErrName) || interlock.Kind(err) != interlock.Bug {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := NewNotifier(config, "x", &NotifierOptions{Interval: -1}); interlock.Kind(err) != interlock.Bug {
		t.Error(err)
	}
	if _, err := NewNotifier(nil, "x", nil); interlock.Kind(err) != interlock.Bug {
		t.Error(err)
	}
	b, err := NewNotifier(config, "x", nil)
	testbed.OK(t, err)
	heard := 0
	testbed.OK(t, b.Close(t.Context()))
	stop := b.Listen(func(string) { heard++ })
	b.Notify()
	stop()
	b.Notify()
	if heard != 1 {
		t.Errorf("%d notifications", heard)
	}
}

// Two calls of Close at the same time close the connection once.
func TestNotifierClosedTwice(t *testing.T) {
	t.Parallel()
	server := EmptyServer(t)
	b := openNotifier(t, server.URL(), "c", nil)
	there := listen(t, openNotifier(t, server.URL(), "c", nil))
	b.Notify()
	testbed.Eventually(t, "it has a connection", bound, func() bool { return there.Load() > 0 })
	var closes sync.WaitGroup
	for range 2 {
		closes.Go(func() {
			if err := b.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	closes.Wait()
}
