package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

var roles = map[string]crash.Role{"relay": playRelay}

// single has one slice, so that a process does one step at a time.
var single = outbox.Table{Slices: 1}

// fileSink appends the ids of messages to a file, which outlives the process. It loses the answer
// to the first delivery of one message.
type fileSink struct {
	at   *crash.Points
	name string
	lost string
}

func (s fileSink) Publish(_ context.Context, messages []driver.Message) []error {
	answers := make([]error, len(messages))
	failed := map[string]bool{}
	for i, m := range messages {
		if failed[m.Key] {
			answers[i] = driver.ErrNotSent
			continue
		}
		s.at.Pass()
		before, err := os.ReadFile(s.name)
		if err == nil {
			err = s.append(m.ID)
		}
		if err == nil && m.ID == s.lost && !slices.Contains(strings.Fields(string(before)), m.ID) {
			err = errors.New("the answer is lost")
		}
		answers[i], failed[m.Key] = err, err != nil
		s.at.Pass()
	}
	return answers
}

func (s fileSink) append(id string) error {
	f, err := os.OpenFile(s.name, os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(id + "\n")
	return err
}

// watched ends the relay when a read finds no messages.
type watched struct {
	driver.Beginner[driver.SQL]
	direct driver.Beginner[driver.SQL]
	end    context.CancelFunc
}

func (w watched) Begin(ctx context.Context) (driver.Tx[driver.SQL], error) {
	tx, err := w.Beginner.Begin(ctx)
	return watchedTx{tx, w}, err
}

type watchedTx struct {
	driver.Tx[driver.SQL]
	w watched
}

func (t watchedTx) Rollback(ctx context.Context) error {
	err := t.Tx.Rollback(ctx)
	look, begun := t.w.direct.Begin(ctx)
	if begun != nil {
		return err
	}
	defer func() { _ = look.Rollback(ctx) }()
	n, failed := databases.Value[int64](ctx, look, `select (select count(*) from interlock_outbox) + (select count(*) from interlock_outbox_lane)`)
	if failed == nil && n == 0 {
		t.w.end()
	}
	return err
}

// playRelay delivers all messages to a file. Its arguments are the client, the URL and the file.
func playRelay(ctx context.Context, at *crash.Points, args []string) error {
	return relayAll(ctx, at, args, grant(1))
}

// relayAll does the work of playRelay, under a claim.
func relayAll(ctx context.Context, at *crash.Points, args []string, c *claim) error {
	db, closed, err := databases.Connect(ctx, args[0], args[1])
	if err != nil {
		return err
	}
	defer closed()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, err := outbox.NewRelay(watched{crash.Beginner[driver.SQL](db, at), db, cancel}, single, fileSink{at, args[2], "a/2"},
		&outbox.Options{Batch: 2, MinPause: time.Millisecond, MaxPause: time.Millisecond})
	if err != nil {
		return err
	}
	if err := r.Run(ctx, c, 0); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// resume delivers the remaining messages, in this process. Its token is far above those of the
// children, which began later.
func resume(tb testing.TB, args []string) {
	tb.Helper()
	ok(tb, relayAll(tb.Context(), nil, args, grant(1<<30)))
}

// scene returns an outbox with some messages, and a check of the final state.
func scene(tb testing.TB, db *databases.DB) (args []string, want func()) {
	tb.Helper()
	db.Do(tb, single.Create)
	db.Exec(tb, `delete from interlock_outbox_fence`) // marks of the previous scene
	add(tb, db, slices.Concat(keyed("a", 1, 2), keyed("b", 1, 1), keyed("a", 3, 3), keyed("b", 2, 2))...)
	name := filepath.Join(tb.TempDir(), "delivered")
	ok(tb, os.WriteFile(name, nil, 0o600))
	return []string{db.Client, db.URL, name}, func() {
		tb.Helper()
		ids := deliveredTo(tb, name)
		inOrder(tb, "a", ids, 3)
		inOrder(tb, "b", ids, 2)
		if n := count(tb, db, `interlock_outbox`) + count(tb, db, `interlock_outbox_lane`); n != 0 {
			tb.Errorf("%d rows are left", n)
		}
	}
}

// deliveredTo returns the ids in a file, in the order of their first delivery.
func deliveredTo(tb testing.TB, name string) []string {
	tb.Helper()
	text, err := os.ReadFile(name)
	ok(tb, err)
	var messages []driver.Message
	for _, id := range strings.Fields(string(text)) {
		messages = append(messages, driver.Message{ID: id})
	}
	return firsts(messages)
}

// TestKilledAnywhere kills a relay at every statement, commit and call of the sink, and
// another one continues: nothing is lost, and keys keep their order. PostgreSQL has the
// odd points and MariaDB the even ones, unless all are requested.
func TestKilledAnywhere(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		t.Parallel()
		db := open(t)
		points, first, step := 0, 1, 1
		if !crash.Full() {
			step = 2
		}
		if db.Dialect == driver.MariaDB {
			first = step
		}
		for point, killed := first, true; killed; point += step {
			args, want := scene(t, db)
			if _, killed = crash.Run(t, "relay", point, args...); killed {
				points = point
				resume(t, args)
			}
			if want(); t.Failed() {
				t.Fatalf("killed at %d", point)
			}
		}
		t.Logf("%d points", points)
		if points < 40 {
			t.Errorf("only %d points", points)
		}
	}, databases.Pgx, databases.Maria)
}

// TestKilledTwice kills the second relay too: for each fifth point of the first, at another
// one, or with INTERLOCK_CRASHES=full for each at every one (make soak-crashes).
func TestKilledTwice(t *testing.T) {
	t.Parallel()
	full := crash.Full()
	clients, parts := []string{databases.Pgx}, 1
	if full {
		clients, parts = append(clients, databases.Maria), 4
	}
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		t.Parallel()
		for part := range parts {
			t.Run(fmt.Sprintf("part %d of %d", part+1, parts), func(t *testing.T) {
				t.Parallel()
				killTwice(t, open(t), part+1, parts, full)
			})
		}
	}, clients...)
}

// killTwice kills the first relay at the from-th point and each step-th after it.
func killTwice(t *testing.T, db *databases.DB, from, step int, full bool) {
	pairs, again := 0, 0
	if !full {
		step = 5
	}
	for first, killed := from, true; killed; first += step {
		// The later the first point, the fewer points remain; the cost to start is paid each time.
		second := 1 + first*37%71
		if full {
			second = 1
		}
		for twice := true; killed && twice; second++ {
			args, want := scene(t, db)
			if _, killed = crash.Run(t, "relay", first, args...); killed {
				pairs++
				if _, twice = crash.Run(t, "relay", second, args...); twice {
					again++
				}
			}
			resume(t, args)
			if want(); t.Failed() {
				t.Fatalf("killed at %d and %d", first, second)
			}
			twice = twice && full
		}
	}
	t.Logf("%d relays were killed, and %d of those that followed", pairs, again)
	if again < pairs/3 {
		t.Errorf("only %d of %d were killed twice", again, pairs)
	}
}
