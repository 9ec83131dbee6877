package postgres

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func openNotifier(t *testing.T, url, channel string, o *NotifierOptions) *Notifier {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewNotifier(config, channel, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := b.Close(ctx); err != nil {
			t.Error(err)
		}
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

// TestNotifierRingsElsewhere: a notification is heard by all who listen, also after the server
// was away, and notifications that follow each other closely become one.
func TestNotifierRingsElsewhere(t *testing.T) {
	t.Parallel()
	server := testbed.Postgres(t)
	const channel = `it's a "notifier"`
	a, b := openNotifier(t, server.URL(), channel, &NotifierOptions{Interval: 200 * time.Millisecond}), openNotifier(t, server.URL(), channel, nil)
	other := listen(t, openNotifier(t, server.URL(), "another", nil))
	here, there := listen(t, a), listen(t, b)
	a.Notify()
	if here.Load() != 1 {
		t.Error("a notification is not heard at once where it was made")
	}
	testbed.Eventually(t, "it is heard elsewhere", 20*time.Second, func() bool { return there.Load() == 1 })
	there.Store(0)
	start := time.Now()
	for range 300 {
		a.Notify()
		time.Sleep(time.Millisecond) // the time in which each could be one
	}
	testbed.Eventually(t, "they are heard elsewhere", 20*time.Second, func() bool { return there.Load() >= 1 })
	b.Notify()
	testbed.Eventually(t, "the other way", 20*time.Second, func() bool { return here.Load() >= 302 })
	if n, most := there.Load(), int64(time.Since(start)/(200*time.Millisecond))+3; n > most {
		t.Errorf("%d notifications, want %d at most", n, most)
	}
	server.Kill()
	there.Store(0)
	a.Notify()
	server.Restart() // it may be heard before this returns
	testbed.Eventually(t, "it is heard after the server was away", 30*time.Second, func() bool { return there.Load() >= 1 })
	there.Store(0)
	testbed.Eventually(t, "notifications are heard again", 30*time.Second, func() bool { a.Notify(); return there.Load() >= 1 })
	if n := other.Load(); n > 1 { // that it may have missed something
		t.Errorf("another channel heard %d notifications", n)
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
	if err != nil {
		t.Fatal(err)
	}
	heard := 0
	if err := b.Close(t.Context()); err != nil {
		t.Error(err)
	}
	stop := b.Listen(func(string) { heard++ })
	b.Notify()
	stop()
	b.Notify()
	if heard != 1 {
		t.Errorf("%d notifications", heard)
	}
}
