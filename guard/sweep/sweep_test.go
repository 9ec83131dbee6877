package sweep_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/backend"
	_ "github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/guard/sweep"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// database counts the transactions that were committed.
type database struct {
	interlock.Tx[interlock.SQL]
	committed int
}

func (d *database) Begin(context.Context) (interlock.Tx[interlock.SQL], error) { return d, nil }
func (d *database) Commit(context.Context) error                               { d.committed++; return nil }
func (d *database) Rollback(context.Context) error                             { return nil }

// TestSweeper: each pass empties each table, a failure does not affect others and is retried in
// the next pass, and Close ends it.
func TestSweeper(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var mu sync.Mutex // for the race detector: virtual time orders nothing
		rows, calls, broken := 25, 0, errors.New("broken")
		var failed []error
		full := sweep.Func(func(_ context.Context, _ interlock.SQL, limit int) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			n := min(rows, limit)
			rows -= n
			return n, nil
		})
		fails := sweep.Func(func(context.Context, interlock.SQL, int) (int, error) {
			if calls++; calls == 2 {
				panic("no")
			}
			return 0, broken
		})
		db := &database{}
		s, err := sweep.New(db, &sweep.Options{Every: time.Minute, Batch: 10, Failed: func(err error) {
			mu.Lock()
			defer mu.Unlock()
			failed = append(failed, err)
		}}, fails, full)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		mu.Lock()
		if rows != 0 || db.committed != 4 || len(failed) != 1 || !errors.Is(failed[0], broken) {
			t.Errorf("%d rows are left after %d transactions; failed: %v", rows, db.committed, failed)
		}
		rows = 1
		mu.Unlock()
		time.Sleep(75 * time.Second)
		synctest.Wait()
		if rows != 0 || len(failed) != 2 || interlock.Kind(failed[1]) != interlock.Bug {
			t.Errorf("after the second pass: %d rows, failed: %v", rows, failed)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Hour)
		if calls != 2 {
			t.Errorf("%d passes", calls)
		}
	})
}

// TestFailuresFloodNoLog: a table that cannot be swept is logged, up to 20 times in a second.
func TestFailuresFloodNoLog(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		lines := testbed.CaptureLog(t)
		s, err := sweep.New(&database{}, &sweep.Options{Every: time.Millisecond}, sweep.Func(func(context.Context, interlock.SQL, int) (int, error) {
			return 0, errors.New("broken")
		}))
		testbed.OK(t, err)
		time.Sleep(999 * time.Millisecond)
		testbed.OK(t, s.Close(t.Context()))
		if n := strings.Count(lines.String(), "could not be swept"); n != 20 {
			t.Errorf("logged %d times", n)
		}
	})
}

// TestLongestInterval: there is one pass.
func TestLongestInterval(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		passes := 0
		s, err := sweep.New(&database{}, &sweep.Options{Every: math.MaxInt64}, sweep.Func(func(ctx context.Context, _ interlock.SQL, _ int) (int, error) {
			if passes++; passes > 10 {
				<-ctx.Done()
			}
			return 0, nil
		}))
		testbed.OK(t, err)
		time.Sleep(time.Hour)
		testbed.OK(t, s.Close(t.Context()))
		if passes != 1 {
			t.Errorf("%d passes", passes)
		}
	})
}

// TestMisuse: what cannot be swept is refused.
func TestMisuse(t *testing.T) {
	if _, err := sweep.Start(t.Context(), "memory://sweep", nil); !errors.As(err, new(*backend.URLError)) {
		t.Errorf("a system without tables: %v", err)
	}
	for name, err := range map[string]error{
		"no database": second(sweep.New[interlock.SQL](nil, nil)),
		"no table":    second(sweep.New(&database{}, nil, nil)),
		"an interval": second(sweep.New(&database{}, &sweep.Options{Every: -1})),
	} {
		if interlock.Kind(err) != interlock.Bug {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }
