package main

import (
	"context"
	"strconv"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestWithdraw withdraws without faults, in each way: once within the balance, and once
// beyond it.
func TestWithdraw(t *testing.T) {
	t.Parallel()
	database, locks := testbed.Postgres(t), startLocks(t, "redis")
	program := testbed.Self(t, "bank")
	for i, flags := range [][]string{nil, {"--in-steps"}, {"--broken"}} {
		s := &story{worker: program, locks: locks, backend: "redis", dir: t.TempDir(), flags: flags,
			postgres: schema(t, database.URL(), "withdraw"+strconv.Itoa(i))}
		s.open(t)

		w := s.start(t, "within", 30)
		if code := w.rest(); code != 0 {
			t.Errorf("%v: exit code %d: %s %s", flags, code, w.told(), w.p.Stderr())
		}
		if done := w.mustFind("committed"); done.Balance == nil || *done.Balance != 70 {
			t.Errorf("%v: reported %s", flags, w.told())
		}
		w = s.start(t, "beyond", 71)
		if code := w.rest(); code != 1 {
			t.Errorf("%v: exit code %d of a withdrawal beyond the balance", flags, code)
		}
		if failed := w.mustFind("failed"); failed.Kind != interlock.Definite.String() {
			t.Errorf("%v: reported %s", flags, w.told())
		}
		if got := s.finalBalance(t); got != 70 {
			t.Errorf("%v: the balance is %d, want 70", flags, got)
		}
	}
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want int
	}{
		{nil, 2},
		{[]string{"rob"}, 2},
		{[]string{"withdraw", "--amount", "0"}, 2},
		{[]string{"withdraw", "--pause-at", "write"}, 2},
		{[]string{"withdraw", "30"}, 2},
		{[]string{"withdraw", "--postgres", "postgres://127.0.0.1:1/x", "--backend", "ftp://127.0.0.1"}, 1},
	} {
		if got := run(context.Background(), c.args); got != c.want {
			t.Errorf("bank %q: exit code %d, want %d", c.args, got, c.want)
		}
	}
}
