package barrier

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/internal/virtual"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
)

// TestMoves: the whole barrier, written by hand. For each state it has the answers to a forward
// call, a finish and an undo. The next state is given in a transaction / before an outside call.
// "-" means no change.
func TestMoves(t *testing.T) {
	const table = `
absent      run:tried/started  violation:-               nothing:blocked
started     run:tried/started  violation:-               run:cancelled/cancelling
tried       again:-            run:confirmed/confirming  run:cancelled/cancelling
refused     refuse:-           violation:-               nothing:-
doubted     refuse:-           violation:-               run:cancelled/cancelling
confirming  again:-            run:confirmed/confirming  violation:-
confirmed   again:-            nothing:-                 violation:-
cancelling  late:-             violation:-               run:cancelled/cancelling
cancelled   late:-             violation:-               nothing:-
blocked     late:-             violation:-               nothing:-`
	words := map[string]verdict{"run": run, "again": again, "refuse": refuse, "late": late, "nothing": nothing, "violation": violation}
	seen := 0
	for line := range strings.Lines(strings.TrimSpace(table)) {
		fields := strings.Fields(line)
		from := state(fields[0])
		seen++
		for i, e := range []event{forward, finish, back} {
			word, to, _ := strings.Cut(fields[i+1], ":")
			to, via, _ := strings.Cut(to, "/")
			if to == "-" {
				to = string(from)
			}
			if via == "" {
				via = to
			}
			m := moves[from][e]
			if m.verdict != words[word] || m.to != state(to) || m.after(false) != state(to) || m.after(true) != state(via) {
				t.Errorf("%s, event %d: %+v, want %s", from, e, m, fields[i+1])
			}
		}
		// A refusal is stored if the branch has no row yet, and otherwise answered like any repeated
		// call.
		want := moves[from][forward]
		switch from {
		case absent:
			want = move{refused, "", refuse}
		case started:
			want = move{doubted, "", refuse}
		}
		if m := moves[from][refusal]; m != want {
			t.Errorf("%s, refusal: %+v, want %+v", from, m, want)
		}
	}
	if seen != len(moves) {
		t.Errorf("%d states in the table, %d in the code", seen, len(moves))
	}
}

// TestReachable: from any state no events confirm an undone branch, or undo a confirmed one, with
// any mix of forms.
func TestReachable(t *testing.T) {
	reach := func(from state) map[state]bool {
		seen, todo := map[state]bool{}, []state{from}
		for len(todo) > 0 {
			s := todo[0]
			todo = todo[1:]
			for e := range events {
				for _, out := range []bool{false, true} {
					if to := moves[s][e].after(out); !seen[to] {
						seen[to] = true
						todo = append(todo, to)
					}
				}
			}
		}
		return seen
	}
	for _, undone := range []state{cancelling, cancelled, blocked, refused} {
		for _, done := range []state{tried, started, confirming, confirmed} {
			if reach(undone)[done] {
				t.Errorf("%s leads to %s", undone, done)
			}
		}
	}
	for _, sold := range []state{confirming, confirmed} {
		for s := range reach(sold) {
			if s != confirming && s != confirmed {
				t.Errorf("%s leads to %s", sold, s)
			}
		}
	}
}

// TestForgetInForce: a mark stored by another process deletes nothing until the calls that began
// before it have ended.
func TestForgetInForce(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		db.Do(t, Table{}.Create)
		ctx := branch.With(t.Context(), branch.Call{Transaction: "tx", Branch: "b", Operation: branch.Do, Begun: time.UnixMilli(5)})
		if _, err := Do(ctx, db, Table{}, nil, func(context.Context, driver.SQL) (int, error) { return 1, nil }); err != nil {
			t.Fatal(err)
		}
		removed := func() (n int64) {
			t.Helper()
			if err := inOwnTransaction(ctx, db, Table{}, "remove", func(l ledger) (err error) {
				n, err = l.remove(ctx, 10)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			return n
		}
		db.Exec(t, fmt.Sprintf(`insert into interlock_barrier_mark (generation, mark) values (2, %d)`, rowSpread+10))
		txntest.Equal(t, "removed rows", removed(), 0)
		db.Exec(t, `delete from interlock_barrier_mark where generation = 1`)
		txntest.Equal(t, "removed rows", removed(), 1)
	}, databases.Pgx)
}

// undoneByOthers is the error of drivers for a deadlock.
var undoneByOthers = &interlock.Error{Op: "run statement", Driver: "x", Kind: interlock.Retryable, Err: errors.New("deadlock")}

// TestRepeat: a transaction that the database undid because of others runs again, with pauses, a
// bounded number of times; no other does. It is reported as not done.
func TestRepeat(t *testing.T) {
	plain := errors.New("plain")
	for _, c := range []struct {
		what   string
		errs   []error // of the runs; the last one repeats
		table  Table
		runs   int
		target error
		class  branch.Class
	}{
		{"done", []error{nil}, Table{}, 1, nil, branch.ClassUnknown},
		{"done later", []error{undoneByOthers, undoneByOthers, nil}, Table{}, 3, nil, branch.ClassUnknown},
		{"never done", []error{undoneByOthers}, Table{}, DefaultAttempts, undoneByOthers, branch.ClassRetry},
		{"once only", []error{undoneByOthers}, Table{Attempts: 1}, 1, undoneByOthers, branch.ClassRetry},
		{"none is one", []error{undoneByOthers}, Table{Attempts: -1}, 1, undoneByOthers, branch.ClassRetry},
		{"plain", []error{plain}, Table{}, 1, plain, branch.ClassUnknown},
		{"unknown", []error{&interlock.Error{Op: "commit", Driver: "x", Kind: interlock.Uncertain, Err: plain}}, Table{}, 1, plain, branch.ClassUnknown},
		{"the function's own", []error{branch.Retry(undoneByOthers)}, Table{}, 1, undoneByOthers, branch.ClassRetry},
		{"ongoing", []error{branch.InProgress(time.Second)}, Table{}, 1, nil, branch.ClassInProgress},
	} {
		t.Run(c.what, func(t *testing.T) {
			virtual.Test(t, func(t *testing.T) {
				runs, began := 0, time.Now()
				err := c.table.repeat(t.Context(), func() error {
					runs++
					return c.errs[min(runs, len(c.errs))-1]
				})
				class, _ := branch.ClassOf(err)
				if runs != c.runs || c.target != nil && !errors.Is(err, c.target) || class != c.class {
					t.Errorf("%d runs, %v (%v)", runs, err, class)
				}
				if took := time.Since(began); took == 0 != (c.runs == 1) || took > time.Second {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// TestRepeatEnds: repetition ends with the caller's context.
func TestRepeatEnds(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		runs, began := 0, time.Now()
		err := Table{}.repeat(ctx, func() error { runs++; return undoneByOthers })
		if runs != 1 || !errors.Is(err, undoneByOthers) || time.Since(began) > time.Millisecond {
			t.Errorf("%d runs, %v, after %v", runs, err, time.Since(began))
		}
	})
}

// TestReason: the stored reason of a refusal is bounded, and is text.
func TestReason(t *testing.T) {
	long := make([]byte, maxReason+1)
	for i := range long {
		long[i] = 'x'
	}
	copy(long[maxReason-1:], "é")
	if got := reason(errors.New(string(long))); len(got) != maxReason-1 {
		t.Errorf("%d bytes", len(got))
	}
	if got := reason(errors.New("a\xffb")); got != "a�b" {
		t.Errorf("%q", got)
	}
}
