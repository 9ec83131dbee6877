package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
)

// roles are what processes of this package's own do that crash.
var roles = map[string]crash.Role{"branch": drive}

// drive is a coordinator of one branch, which keeps its decision in a file: with a first
// run it begins, and with each further one it finishes. Its arguments are the URL, the
// transaction and the file.
func drive(ctx context.Context, at *crash.Points, args []string) error {
	config, err := pgxpool.ParseConfig(args[0])
	if err != nil {
		return err
	}
	var wire crash.Wire
	config.ConnConfig.DialFunc = wire.Dial
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	p, err := postgres.OpenParticipant(ctx, pool, "crash", nil)
	if err != nil {
		return err
	}
	wire.Watch(at)
	x, file := one(args[1]), args[2]
	decided, err := os.ReadFile(file)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return begin(ctx, p, x, file)
	case err != nil:
		return err
	case string(decided) == "commit":
		return untilDone(func() error { return p.Commit(ctx, x) })
	}
	return untilDone(func() error { return p.Rollback(ctx, x) })
}

func begin(ctx context.Context, p *postgres.Participant[pgx.Tx], x driver.XID, file string) error {
	if err := decide(file, "begun"); err != nil {
		return err
	}
	tx, b, err := p.Begin(ctx, x)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `insert into account values ('`+x.Transaction+`', 1)`); err != nil {
		return err
	}
	if vote, err := b.Prepare(ctx); vote != driver.VoteYes || err != nil {
		return fmt.Errorf("it votes %v: %w", vote, err)
	}
	if err := decide(file, "commit"); err != nil {
		return err
	}
	return untilDone(func() error { return p.Commit(ctx, x) })
}

// decide writes all of the file, or nothing.
func decide(file, text string) error {
	if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// untilDone repeats what is Retryable: the server has to notice that a process died.
func untilDone(try func() error) (err error) {
	for end := time.Now().Add(bound); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if err = try(); interlock.Kind(err) != interlock.Retryable {
			return err
		}
	}
	return err
}

// TestKilledAtEveryRequest: a process that is killed before or after any request of a
// branch leaves nothing that the next one cannot finish as it was decided.
func TestKilledAtEveryRequest(t *testing.T) {
	t.Parallel()
	server := testbed.Postgres(t)
	b := openBank(t, server.URL(), "crash", nil)
	var n atomic.Int64
	points := crash.Once(t, "branch", func(tb testing.TB) crash.Scene {
		transaction, file := fmt.Sprint("t", n.Add(1)), filepath.Join(tb.TempDir(), "decision")
		return crash.Scene{Args: []string{server.URL(), transaction, file}, Want: func(tb testing.TB) {
			tb.Helper()
			decided, err := os.ReadFile(file)
			if err != nil {
				tb.Fatal(err)
			}
			want := map[string]string{"begun": "0 0", "commit": "1 0"}[string(decided)]
			got := b.text(tb, `select (select count(*) from account where id = '`+transaction+`') || ' ' ||
				(select count(*) from pg_prepared_xacts where gid like '%/`+transaction+`')`)
			if got != want {
				tb.Errorf("decided %q: rows and branches in doubt are %s, want %s", decided, got, want)
			}
		}}
	})
	if points < 10 {
		t.Errorf("only %d points", points)
	}
}
