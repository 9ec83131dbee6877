package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

var roles = map[string]crash.Role{"relay": playRelay}

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
	table  string
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
	if n, failed := databases.Value[int64](ctx, look, rowsOf(t.w.table)); failed == nil && n == 0 {
		t.w.end()
	}
	return err
}

// rowsOf counts the messages and waiting keys of a table.
func rowsOf(table string) string {
	return `select (select count(*) from ` + table + `) + (select count(*) from ` + table + `_lane)`
}

// playRelay delivers all messages to a file. Its arguments are the client, the URL, the table and the file.
func playRelay(ctx context.Context, at *crash.Points, args []string) error {
	db, closed, err := databases.Connect(ctx, args[0], args[1])
	if err != nil {
		return err
	}
	defer closed()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, err := outbox.NewRelay(watched{crash.Beginner[driver.SQL](db, at), db, args[2], cancel}, outbox.Table{Name: args[2]},
		fileSink{at, args[3], "a/2"}, &outbox.Options{Batch: 2, MinPause: time.Millisecond, MaxPause: time.Millisecond})
	if err != nil {
		return err
	}
	// The token of each process is above those of the processes before it.
	if err := r.Run(ctx, grant(1), 0); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// crashScenes gives each run a table with some messages, and a file. The table has one slice, so that a
// process does one step at a time.
func crashScenes(db *databases.DB, kind string) func(testing.TB) crash.Scene {
	var number atomic.Int64
	return func(tb testing.TB) crash.Scene {
		table := outbox.Table{Name: fmt.Sprint("box_", kind, number.Add(1)), Slices: 1}
		db.Do(tb, table.Create)
		db.Do(tb, func(ctx context.Context, sql driver.SQL) error {
			return table.Add(ctx, sql, slices.Concat(keyed("a", 1, 2), keyed("b", 1, 1), keyed("a", 3, 3), keyed("b", 2, 2))...)
		})
		name := filepath.Join(tb.TempDir(), "delivered")
		ok(tb, os.WriteFile(name, nil, 0o600))
		return crash.Scene{Args: []string{db.Client, db.URL, table.Name, name}, Want: func(tb testing.TB) {
			tb.Helper()
			text, err := os.ReadFile(name)
			ok(tb, err)
			var messages []driver.Message
			for _, id := range strings.Fields(string(text)) {
				messages = append(messages, driver.Message{ID: id})
			}
			inOrder(tb, "a", firsts(messages), 3)
			inOrder(tb, "b", firsts(messages), 2)
			if n := databases.One[int64](tb, db, rowsOf(table.Name)); n != 0 {
				tb.Errorf("%d rows are left", n)
			}
		}}
	}
}

// TestKilledAnywhere kills a relay at every statement, commit and call of the sink, and
// another one continues: nothing is lost, and keys keep their order.
func TestKilledAnywhere(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		if points := crash.Share(t, "relay", crash.Part(t), 2, crashScenes(open(t), "once")); points < 40 {
			t.Errorf("only %d points", points)
		}
	}, databases.Pgx, databases.Maria)
}

// TestKilledTwice kills the second relay too.
func TestKilledTwice(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		crash.Pairs(t, "relay", 8, crashScenes(open(t), "twice"))
	}, databases.Pgx, databases.Maria)
}
