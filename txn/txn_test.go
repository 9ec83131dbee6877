package txn_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/driver/memory"
	_ "github.com/interlock-dev/interlock/driver/mysql"
	_ "github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/saga"
)

func TestMain(m *testing.M) { testbed.Main(m) }

var ok = testbed.OK

// systems runs a test on backends with a journal, and with locks of each kind: with and without
// values.
func systems(t *testing.T, test func(t *testing.T, url string)) {
	t.Run("memory", func(t *testing.T) { test(t, "memory://shop") })
	t.Run("postgres", func(t *testing.T) { test(t, testbed.Postgres(t).URL()) })
	t.Run("mariadb", func(t *testing.T) { test(t, "mysql://root@"+testbed.MariaDB(t).Addr()+"/test?mode=table") })
}

// shop is a process that handles orders.
type shop struct {
	*txn.Runtime
	engine *saga.Engine
	book   saga.Definition[string]

	drove    atomic.Int64 // steps
	undone   atomic.Int64
	slow     chan struct{} // receives when a step of the order "slow" has begun
	passable chan struct{} // continues it
}

func open(t *testing.T, url string, o *txn.Options) *shop {
	t.Helper()
	s := &shop{slow: make(chan struct{}, 100), passable: make(chan struct{})}
	var err error
	if s.Runtime, err = txn.Open(t.Context(), url, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ok(t, s.Close(context.Background()))
	})
	reserve := saga.Step("reserve", func(_ context.Context, item string) (string, error) { s.drove.Add(1); return item, nil }).
		Undo("release", func(context.Context, string, *string) error { s.undone.Add(1); return nil })
	pay := saga.Step("pay", func(ctx context.Context, item string) (string, error) {
		switch item {
		case "refused":
			return "", saga.Fail(errors.New("no money"))
		case "slow":
			s.slow <- struct{}{}
			select {
			case <-s.passable:
			case <-ctx.Done():
				return "", context.Cause(ctx)
			}
		}
		return "paid", nil
	}).Pivot()
	s.book = saga.Define("book", reserve, pay)
	if s.engine, err = saga.New(s.Coordinator(), nil, s.book); err != nil {
		t.Fatal(err)
	}
	ok(t, s.Start(t.Context()))
	return s
}

// TestOwnersAreWoken: with a notifier, a saga that begins in a process without its shard is driven,
// and its end is seen there, without a poll.
func TestOwnersAreWoken(t *testing.T) {
	for name, start := range map[string]func(*testing.T) string{
		"memory":   func(*testing.T) string { return "memory://woken" },
		"postgres": func(t *testing.T) string { return testbed.Postgres(t).URL() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, never := start(t), &txn.Options{Shards: 8, Coordinator: &coordinator.Options{Poll: time.Hour}}
			all := []*shop{open(t, url, never), open(t, url, never)}
			passes := func(round int) bool { // all sagas end, and each process has driven some
				before := []int64{all[0].drove.Load(), all[1].drove.Load()}
				for i := range 40 {
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
					_, err := all[i%2].book.Do(ctx, all[i%2].engine, fmt.Sprint(round, "/", i), "book")
					if cancel(); err != nil {
						return false
					}
				}
				return all[0].drove.Load() > before[0] && all[1].drove.Load() > before[1]
			}
			for round := range 100 { // while shards move a saga may wait for a poll
				if passes(round) {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
			t.Error("not all sagas end without a poll")
		})
	}
}

// TestProcessesShareTheWork: sagas that begin in any process end, and those of a closed process are
// completed by the other.
func TestProcessesShareTheWork(t *testing.T) {
	systems(t, func(t *testing.T, url string) {
		here, there := open(t, url, nil), open(t, url, nil)
		var all sync.WaitGroup
		for i := range 10 {
			for name, s := range map[string]*shop{"here": here, "there": there} {
				all.Go(func() {
					if o, err := s.book.Do(t.Context(), s.engine, fmt.Sprint(name, i), "book"); err != nil || o.State != saga.Succeeded {
						t.Errorf("%s %d: %v, %v", name, i, o.State, err)
					}
				})
			}
		}
		all.Wait()
		if _, err := here.book.Do(t.Context(), here.engine, "refused", "refused"); !errors.Is(err, saga.ErrCompensated) {
			t.Errorf("a refused order: %v", err)
		}
		if n := here.undone.Load() + there.undone.Load(); n != 1 {
			t.Errorf("%d undos; want 1", n)
		}
		// The process that drives it is closed in the middle of its step.
		ok(t, here.book.Start(t.Context(), here.engine, "left", "slow"))
		driver, other := here, there
		select {
		case <-here.slow:
		case <-there.slow:
			driver, other = there, here
		}
		close(other.passable)
		ok(t, driver.Close(t.Context()))
		if o, err := other.engine.Wait(t.Context(), "left"); err != nil || o.State != saga.Succeeded {
			t.Errorf("what a closed process left: %v, %v", o.State, err)
		}
	})
}

// TestJournalsAreSeparate: each of two journals on one backend has all of its shards served.
func TestJournalsAreSeparate(t *testing.T) {
	systems(t, func(t *testing.T, url string) {
		for n, s := range []*shop{open(t, url, nil), open(t, url, &txn.Options{Journal: "other"})} {
			for i := range 10 {
				if _, err := s.book.Do(t.Context(), s.engine, fmt.Sprint(i), "book"); err != nil {
					t.Errorf("journal %d, saga %d: %v", n, i, err)
				}
			}
		}
	})
}

// TestDefaultJournal: its name, given explicitly, is that of the same journal on every backend. Two journals would share
// one group, and each process would serve only some shards of its own.
func TestDefaultJournal(t *testing.T) {
	systems(t, func(t *testing.T, url string) {
		first := open(t, url, &txn.Options{Shards: 8})
		named := open(t, url, &txn.Options{Journal: journal.DefaultName})
		for i := range 10 {
			id := fmt.Sprint(i)
			if err := named.book.Start(t.Context(), named.engine, id, "book"); err != nil {
				t.Fatal(err)
			}
			if _, err := first.engine.Wait(t.Context(), id); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestShardsChange: once the number of shards was changed, processes share the new number.
func TestShardsChange(t *testing.T) {
	systems(t, func(t *testing.T, url string) {
		b, err := backend.Open(t.Context(), url) // so that memory stays
		ok(t, err)
		defer b.Close(context.Background())
		before := open(t, url, &txn.Options{Shards: 8})
		ok(t, before.Close(t.Context()))
		store, err := journal.OpenStore(t.Context(), b, "")
		ok(t, err)
		_, err = journal.SetShards(t.Context(), store, 4)
		ok(t, err)
		after := open(t, url, nil)
		for i := range 10 {
			if _, err := after.book.Do(t.Context(), after.engine, fmt.Sprint(i), "book"); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestMisuse: invalid options are refused when the process starts.
func TestMisuse(t *testing.T) {
	first := open(t, "memory://misuse", &txn.Options{Shards: 8})
	if err := first.Health(t.Context()); err != nil {
		t.Errorf("a runtime that serves: %v", err)
	}
	if err := first.Start(t.Context()); err == nil {
		t.Error("it was started twice")
	}
	if _, err := txn.Open(t.Context(), "memory://misuse", &txn.Options{Shards: 16}); !errors.As(err, new(*journal.ShardsError)) {
		t.Errorf("another number of shards: %v", err)
	}
	if same := open(t, "memory://misuse", nil); same.Coordinator().Journal().Shards() != 8 {
		t.Error("without Shards the journal's own number counts")
	}
	for _, url := range []string{"", "memory:", "kafka://x"} {
		if _, err := txn.Open(t.Context(), url, nil); !errors.As(err, new(*backend.URLError)) {
			t.Errorf("%q: %v", url, err)
		}
	}
}

// TestStartAfterClose: a closed runtime serves no shard. It would keep them from other processes, and
// could not append.
func TestStartAfterClose(t *testing.T) {
	ctx := t.Context()
	b, err := backend.Open(ctx, "memory://closed")
	ok(t, err)
	defer b.Close(ctx)
	rt, err := txn.On(ctx, b, nil)
	ok(t, err)
	for range 2 {
		ok(t, rt.Close(ctx))
	}
	if err := rt.Start(ctx); interlock.Kind(err) != interlock.Bug || !errors.Is(err, interlock.ErrClosed) {
		t.Errorf("started after Close: %v", err)
		_ = rt.Close(ctx)
	}
}

// hung has values that do not answer before ctx ends.
type hung struct{ driver.Values }

func (hung) Get(ctx context.Context, _ string) (v driver.Value, err error) {
	<-ctx.Done()
	return v, context.Cause(ctx)
}

// TestHungStart: Health reports a start that the backend does not answer, and Close ends it.
func TestHungStart(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		ctx, d := t.Context(), memory.NewSpace().Open(nil)
		defer d.Close(context.Background())
		rt, err := txn.New(ctx, memory.NewJournal(), d, hung{memory.NewSpace().Values()}, nil)
		ok(t, err)
		started := make(chan error)
		go func() { started <- rt.Start(context.WithoutCancel(ctx)) }()
		synctest.Wait()
		if err := rt.Health(ctx); err == nil {
			t.Error("a runtime that is being started is healthy")
		}
		go func() { ok(t, rt.Close(ctx)) }()
		if err := <-started; !errors.Is(err, interlock.ErrClosed) {
			t.Errorf("started: %v", err)
		}
	})
}

var logged int // how often TestLogIsLimited ran

// TestLogIsLimited: while a store is down, the failures of all shards do not flood the log.
func TestLogIsLimited(t *testing.T) {
	logged++
	virtual.Test(t, func(t *testing.T) {
		time.Sleep(time.Duration(logged) * time.Second) // the limit is that of the process, so each run has its own second
		lines := testbed.CaptureLog(t)
		d := memory.NewSpace().Open(nil)
		defer d.Close(context.Background())
		rt, err := txn.New(t.Context(), memory.NewJournal(), d, nil, nil)
		ok(t, err)
		for range 100 {
			rt.Go(func(context.Context) error { return errors.New("no connection") })
		}
		synctest.Wait()
		ok(t, rt.Close(t.Context()))
		if n := strings.Count(lines.String(), `not served here for now" error="no connection"`); n != 20 {
			t.Errorf("%d lines:\n%.1000s", n, lines)
		}
	})
}

// TestGo: background work runs again after a failure, a panic and the end of its goroutine, which are
// reported, and ends with the runtime.
func TestGo(t *testing.T) {
	failure := errors.New("no connection")
	reported, ended := make(chan error, 1), make(chan error, 1)
	rt, err := txn.Open(t.Context(), "memory://go", &txn.Options{Failed: func(err error) { reported <- err }})
	ok(t, err)
	if err := rt.Health(t.Context()); err == nil {
		t.Error("a runtime that was not started is healthy")
	}
	runs := 0
	rt.Go(func(ctx context.Context) error {
		switch runs++; runs {
		case 1:
			return failure
		case 2:
			panic("oops")
		case 3:
			runtime.Goexit()
		}
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return nil
	})
	for _, want := range []string{failure.Error(), "panic: oops", "it ended its goroutine"} {
		if err := <-reported; !strings.Contains(err.Error(), want) {
			t.Errorf("reported %v, want %s", err, want)
		}
	}
	ok(t, rt.Close(t.Context()))
	select {
	case <-ended:
	default:
		if runs > 3 {
			t.Error("work runs after Close")
		}
	}
}

// TestPausesOfGo: work that ran for long begins again soon, however often it had failed before.
func TestPausesOfGo(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		d := memory.NewSpace().Open(nil)
		defer d.Close(context.Background())
		rt, err := txn.New(t.Context(), memory.NewJournal(), d, nil, &txn.Options{Failed: func(error) {}})
		ok(t, err)
		runs, ended, again := 0, time.Time{}, make(chan time.Duration, 1)
		rt.Go(func(ctx context.Context) error {
			switch runs++; runs {
			case 20:
				time.Sleep(time.Minute)
				ended = time.Now()
			case 21:
				again <- time.Since(ended)
				<-ctx.Done()
			}
			return errors.New("no connection")
		})
		if pause := <-again; pause > 200*time.Millisecond {
			t.Errorf("it begins again after %v", pause)
		}
		ok(t, rt.Close(t.Context()))
	})
}

// TestLogOfTheRuntime: the log of the coordinator's hooks receives what the runtime and its locks log.
func TestLogOfTheRuntime(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		byDefault, lines := testbed.CaptureLog(t), bytes.Buffer{}
		space := memory.NewSpace()
		d := space.Open(nil)
		rt, err := txn.New(t.Context(), memory.NewJournal(), d, space.Values(), &txn.Options{Shards: 1, Coordinator: &coordinator.Options{
			Hooks: &observe.Coordinator{Log: slog.New(slog.NewTextHandler(&lines, nil))}}})
		ok(t, err)
		ok(t, rt.Start(t.Context()))
		time.Sleep(time.Minute)
		ok(t, d.Close(t.Context())) // its claims are lost
		time.Sleep(time.Minute)
		_ = rt.Close(t.Context())
		for _, want := range []string{"partition lost", "not served here for now"} {
			if !strings.Contains(lines.String(), want) {
				t.Errorf("%q is missing:\n%.2000s", want, lines.String())
			}
		}
		if byDefault.Len() > 0 {
			t.Errorf("the default log has:\n%.2000s", byDefault)
		}
	})
}
