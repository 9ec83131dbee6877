package idempotency_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/idempotency"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

var roles = map[string]crash.Role{"order": orderRole, "folded": foldedRole, "stalled": stalledRole}

// connect returns the records and the store of a role. Leases are so long that none is renewed,
// since a renewal has no fixed place among the steps. It ends the leases of earlier processes.
func connect(ctx context.Context, at *crash.Points, args []string) (*idempotency.SQL[tx], *idempotency.Store, func(), error) {
	db, closed, err := databases.Connect(ctx, args[0], args[1])
	if err != nil {
		return nil, nil, nil, err
	}
	begun, err := db.Begin(ctx)
	if err == nil {
		_, err = begun.Exec(ctx, lapsed[begun.Dialect()])
	}
	if err == nil {
		err = begun.Commit(ctx)
	}
	if err != nil {
		closed()
		return nil, nil, nil, err
	}
	records := idempotency.NewSQL(crash.Beginner[tx](db, at), idempotency.Table{})
	store, err := idempotency.New(records, nil)
	return records, store, closed, err
}

// orderRole has a phase, or two, and an answer.
func orderRole(ctx context.Context, at *crash.Points, args []string) error {
	records, store, closed, err := connect(ctx, at, args)
	if err != nil {
		return err
	}
	defer closed()
	_, err = store.Do(ctx, order(args[2]), func(ctx context.Context) (idempotency.Response, error) {
		paid, err := phase(ctx, records, "pay")
		if err != nil {
			return idempotency.Response{}, err
		}
		if args[3] == "short" {
			return answer(200, paid), nil
		}
		sent, err := phase(ctx, records, "send")
		return answer(200, paid+", "+sent), err
	})
	return err
}

// foldedRole has one phase, with the answer in it.
func foldedRole(ctx context.Context, at *crash.Points, args []string) error {
	records, store, closed, err := connect(ctx, at, args)
	if err != nil {
		return err
	}
	defer closed()
	_, err = store.Do(ctx, order(args[2]), func(ctx context.Context) (idempotency.Response, error) {
		attempt := idempotency.From(ctx).Attempt()
		return idempotency.LastPhase(ctx, records, func(ctx context.Context, db tx) (idempotency.Response, error) {
			return answer(200, fmt.Sprint("pay of attempt ", attempt)), effect(ctx, db, args[2], "pay", attempt)
		})
	})
	return err
}

// keys numbers the requests of scenes.
var keys atomic.Int64

// scenes are requests of one database, each with its own key.
func scenes(w world, more string) func(testing.TB) crash.Scene {
	return func(testing.TB) crash.Scene {
		key := fmt.Sprint("k", keys.Add(1))
		return crash.Scene{Args: []string{w.Client, w.URL, key, more}, Want: func(tb testing.TB) {
			tb.Helper()
			for range 2 {
				got, err := w.store.Do(tb.Context(), order(key), never)
				effects := strings.ReplaceAll(w.effects(tb, key), " by ", " of attempt ")
				if err != nil || !got.Replayed || string(got.Body) != effects {
					tb.Errorf("answer %q, %v; effects %q", got.Body, err, effects)
				}
			}
		}}
	}
}

// eachBeside runs test on all databases in parallel.
func eachBeside(t *testing.T, test func(t *testing.T, w world), clients ...string) {
	for _, client := range clients {
		t.Run(client, func(t *testing.T) {
			t.Parallel()
			databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
				test(t, newWorld(t, open(t), nil))
			}, client)
		})
	}
}

// TestKilledAnywhere: a process is killed between any two statements of claim,
// phases and finish; the databases divide the places. The request takes effect once, and its answer is that of the
// effect.
func TestKilledAnywhere(t *testing.T) {
	eachBeside(t, func(t *testing.T, w world) {
		part := slices.Index(clients, w.Client)
		if n := crash.Share(t, "order", part, len(clients), scenes(w, "")); n != 18 {
			t.Errorf("%d points", n) // 4 of the claim, 5 of each phase, 4 of the finish
		}
		if n := crash.Share(t, "folded", part, len(clients), scenes(w, "")); n != 9 {
			t.Errorf("%d points with the answer in the phase", n)
		}
	}, clients...)
}

// TestKilledTwice also kills the next process, anywhere in claim, phase and finish, at
// some pairs of places, or at all of them (make soak-crashes). On one database the finish
// is in the phase.
func TestKilledTwice(t *testing.T) {
	roles := map[string]string{databases.Pgx: "order", databases.Maria: "folded"}
	eachBeside(t, func(t *testing.T, w world) {
		crash.Pairs(t, roles[w.Client], 8, scenes(w, "short"))
	}, clients...)
}

// stalledRole pauses inside or after its phase until it reads a line, and prints the
// outcome.
func stalledRole(ctx context.Context, _ *crash.Points, args []string) error {
	db, closed, err := databases.Connect(ctx, args[0], args[1])
	if err != nil {
		return err
	}
	defer closed()
	records := idempotency.NewSQL(db, idempotency.Table{})
	store, err := idempotency.New(records, &idempotency.Options{Lease: stallLease})
	if err != nil {
		return err
	}
	stalled := false
	stall := func(where string) {
		if where == args[2] && !stalled {
			stalled = true
			fmt.Println("stalled")
			_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		}
	}
	var phased, cause error
	_, err = store.Do(ctx, order("k"), func(ctx context.Context) (idempotency.Response, error) {
		// It does not check its lease.
		_, phased = idempotency.Phase(context.WithoutCancel(ctx), records, "pay", func(_ context.Context, db tx) (string, error) {
			err := effect(context.Background(), db, "k", "pay", 1)
			stall("inside")
			return "", err
		})
		stall("after")
		<-ctx.Done()
		cause = context.Cause(ctx)
		return answer(200, "stale"), nil
	})
	fmt.Println("phase refused:", phased != nil, "lost:", errors.Is(cause, interlock.ErrLost) || errors.Is(cause, interlock.ErrExpired),
		"answer refused:", errors.Is(err, interlock.ErrLost))
	return nil
}

// stallLease is short, so that the test need not wait for long. It is longer than a busy machine takes
// from the claim to the stall.
const stallLease = 3 * time.Second

// TestStoppedAttemptWakesUp: SIGSTOP pauses a process inside its phase, or after it, for
// longer than its lease. Another attempt does the rest. When the first wakes up, it
// commits no phase and returns no answer.
func TestStoppedAttemptWakesUp(t *testing.T) {
	eachBeside(t, func(t *testing.T, w world) {
		for where, want := range map[string]struct{ said, effects, answer string }{
			"inside": {"phase refused: true lost: true answer refused: true", "pay by 2", "pay of attempt 2"},
			"after":  {"phase refused: false lost: true answer refused: true", "pay by 1", ""},
		} {
			p := crash.Start(t, "stalled", 0, w.Client, w.URL, where)
			if line := p.Line(bound); line != "stalled" {
				t.Fatal(line)
			}
			p.Pause()
			call := order("k")
			call.Wait = bound
			got, err := w.store.Do(t.Context(), call, func(ctx context.Context) (idempotency.Response, error) {
				s, err := phase(ctx, w.records, "pay")
				return answer(200, s), err
			})
			wantAnswer(t, got, err, want.answer, false)
			p.Resume()
			_, err = fmt.Fprintln(p.Stdin())
			ok(t, err)
			if line := p.Line(bound); line != want.said {
				t.Errorf("%s: %s", where, line)
			}
			if got := w.effects(t, "k"); got != want.effects {
				t.Errorf("%s: effects: %s", where, got)
			}
			w.Exec(t, `delete from effect`, `delete from interlock_idempotency`)
		}
	}, clients...)
}

// lapsed ends every lease, as if its time had passed.
var lapsed = map[driver.Dialect]string{
	driver.Postgres: `update interlock_idempotency set lease_until = clock_timestamp() - interval '1 hour'`,
	driver.MariaDB:  `update interlock_idempotency set lease_until = utc_timestamp(6) - interval 1 hour`,
}
