package twopc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
)

// roles are the processes that are killed and paused.
var roles = map[string]crash.Role{"teller": telling, "teller in turn": tellingInTurn, "finisher": finishing}

// way carries the messages of a process.
type way struct {
	at    *crash.Points
	turns *sync.Mutex // nil: messages to participants may be concurrent
}

// hasty presumes and scans soon, so that tests need not wait.
var hasty = Options{Patience: 300 * time.Millisecond, Scan: 50 * time.Millisecond}

// telling is the process that is killed: it makes one transfer, and finishes those of its
// predecessors.
func telling(ctx context.Context, at *crash.Points, args []string) error {
	return tell(ctx, way{at: at}, hasty, args)
}

// tellingInTurn sends one message after the other, without scans.
func tellingInTurn(ctx context.Context, at *crash.Points, args []string) error {
	return tell(ctx, way{at, &sync.Mutex{}}, Options{Scan: time.Hour}, args)
}

func tell(ctx context.Context, on way, o Options, args []string) error {
	t, stop, err := hire(ctx, on, txntest.Present(), &o, args[0], args[1], args[2])
	defer stop()
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	err = t.Run(bounded, "1", t.move("1"))
	for interlock.Kind(err) != interlock.Definite && bounded.Err() == nil {
		err = t.Run(bounded, "1", t.move("1"))
	}
	if err != nil && !errors.Is(err, ErrAborted) {
		return err
	}
	if o, unread := t.Look(bounded, "1"); err == nil && (unread != nil || o.Decision != Commit) {
		return fmt.Errorf("it got the answer that it is committed, and the journal says %q, %w", o.Decision, unread)
	}
	return t.finished(bounded)
}

// finishing finishes the transfers of others, and makes none.
func finishing(ctx context.Context, at *crash.Points, args []string) error {
	t, stop, err := hire(ctx, way{at: at}, txntest.Present(), &hasty, args[0], args[1], args[2])
	defer stop()
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return t.finished(bounded)
}

// killing returns a scene of one transfer.
func (b branches) killing() crash.Scene {
	return crash.Scene{Args: []string{b.north.URL, b.south.URL, b.namespace()}, Want: func(tb testing.TB) { tb.Helper(); b.judge(tb, nil) }}
}

// TestKilled: a process that is killed between any two of its messages leaves a transfer
// from Postgres to MariaDB that the next one finishes: all of it or nothing.
func TestKilled(t *testing.T) {
	t.Parallel()
	pg, maria := testbed.Postgres(t), testbed.MariaDB(t)
	// A machine so slow that patience ends has messages repeated, which are points too.
	points := crash.Once(t, "teller", func(tb testing.TB) crash.Scene { return build(tb, pg, maria).killing() })
	if points < 12 {
		t.Errorf("%d points, want 12 at least", points)
	}
}

// TestAsleep pauses a process anywhere until another one has finished its transfer: when it
// wakes up it appends nothing after that, and changes nothing decided.
func TestAsleep(t *testing.T) {
	t.Parallel()
	pg, maria := testbed.Postgres(t), testbed.MariaDB(t)
	crash.Asleep(t, "teller", "finisher", 4, func(tb testing.TB) crash.Sleeper {
		b := build(tb, pg, maria)
		return crash.Sleeper{Scene: b.killing(), Left: b.recorded}
	})
}

// recorded returns the journal's records, and the moved amount; empty if undecided.
func (b branches) recorded(tb testing.TB) string {
	tb.Helper()
	_, records, err := journal.NewTable(b.north, "").Read(tb.Context(), Key("1"), 0)
	ok(tb, err)
	if len(records) == 0 {
		return ""
	}
	var all []string
	for _, r := range records {
		all = append(all, r.Kind+":"+r.Step)
	}
	return strings.Join(append(all, b.ledger(tb, b.north)...), " ")
}
