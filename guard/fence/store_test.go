package fence_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/history"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/observe"
)

// TestStore on memory; the suite of driver.Fence tests servers.
func TestStore(t *testing.T) {
	f := memory.NewSpace().Fence()
	get := func(key string) string {
		value, _ := f.Get(key)
		return string(value)
	}
	store := fence.NewStore(f)
	ctx := t.Context()
	put := func(value string) driver.Write { return driver.Write{Key: "k", Value: []byte(value)} }

	ok(t, store.Enter(ctx, grant(2, bound), "r"))
	ok(t, store.Enter(ctx, grant(2, bound), "r", put("two")))
	wantStale(t, store.Enter(ctx, grant(1, bound), "r", put("one")), token(2), token(1))
	wantStale(t, store.EnterOnce(ctx, grant(2, bound), "r", put("again")), token(2), token(2))
	expired, lost := grant(9, -time.Second), grant(9, bound)
	lost.End(interlock.ErrLost)
	wantKind(t, store.Enter(ctx, expired, "r", put("nine")), interlock.Definite, interlock.ErrExpired)
	wantKind(t, store.Enter(ctx, lost, "r", put("nine")), interlock.Definite, interlock.ErrLost)
	absurd := grant(3, bound)
	absurd.Number = math.MaxInt64
	wantKind(t, store.Enter(ctx, absurd, "r", put("most")), interlock.Definite, interlock.ErrImplausibleToken)
	absurd.Number = 0
	wantKind(t, store.Enter(ctx, absurd, "r", put("none")), interlock.Bug, nil)
	wantKind(t, store.Enter(ctx, grant(3, bound), "", put("none")), interlock.Bug, interlock.ErrName)
	if m, err := store.Show(ctx, "r"); err != nil || m.Token != token(2) || m.Source != grant(2, 0).Owner() || get("k") != "two" {
		t.Errorf("mark %+v, %v; value %q", m, err, get("k"))
	}

	for _, blank := range [][2]string{{"", "ops"}, {"restored", " "}} {
		_, err := store.Rebase(ctx, "r", token(1), blank[0], blank[1])
		wantKind(t, err, interlock.Bug, nil)
	}
	old, err := store.Rebase(ctx, "r", token(1), "restored", "ops")
	if err != nil || old.Token != token(2) {
		t.Errorf("it replaced %+v, %v", old, err)
	}
	ok(t, store.Enter(ctx, grant(1, bound), "r", put("one")))
	if get("k") != "one" {
		t.Errorf("value %q", get("k"))
	}
	want := memory.Rebase{From: token(2), To: token(1), Reason: "restored", By: "ops"}
	all := f.Rebases("r")
	if len(all) == 1 {
		all[0].At = time.Time{}
	}
	if len(all) != 1 || all[0] != want {
		t.Errorf("recorded: %+v, want %+v", all, want)
	}
}

// TestStoreRefusesWhatIsOver: an ended claim is refused even with a valid token,
// and an invalid call changes nothing.
func TestStoreRefusesWhatIsOver(t *testing.T) {
	f := memory.NewSpace().Fence()
	store, ctx := fence.NewStore(f), t.Context()
	put := driver.Write{Key: "k", Value: []byte("late")}
	for _, cause := range []error{interlock.ErrReleased, interlock.ErrLost, interlock.ErrSessionEnded} {
		over := grant(1, bound)
		over.End(cause)
		wantKind(t, store.Enter(ctx, over, "r", put), interlock.Definite, cause)
		wantKind(t, store.EnterOnce(ctx, over, "r", put), interlock.Definite, cause)
	}
	_, err := store.Show(ctx, "")
	wantKind(t, err, interlock.Bug, interlock.ErrName)
	_, err = store.Rebase(ctx, "", 0, "why", "ops")
	wantKind(t, err, interlock.Bug, interlock.ErrName)
	_, err = store.Rebase(ctx, "r", -1, "why", "ops")
	wantKind(t, err, interlock.Bug, nil)
	if m, err := store.Show(ctx, "r"); err != nil || m.Token != 0 || len(f.Rebases("r")) > 0 {
		t.Errorf("something was done: %+v, %v, %+v", m, err, f.Rebases("r"))
	}
	if _, ok := f.Get("k"); ok {
		t.Error("a claim that is over wrote")
	}
}

// bypassed is a store that reports each written key as bypassed.
type bypassed struct{ driver.Fence }

func (b bypassed) Enter(ctx context.Context, r driver.Raise, writes ...driver.Write) error {
	for _, w := range writes {
		r.Bypassed(w.Key)
	}
	return b.Fence.Enter(ctx, r, writes...)
}

func TestBypassingWritesAreCounted(t *testing.T) {
	var told []observe.FenceBypassed
	store := fence.NewStore(bypassed{memory.NewSpace().Fence()}).WithHooks(&observe.Fence{
		Bypassed: func(e observe.FenceBypassed) { told = append(told, e) }})
	c := grant(2, bound)
	ok(t, store.Enter(t.Context(), c, "r"))
	ok(t, store.Enter(t.Context(), c, "r", driver.Write{Key: "k"}))
	want := observe.FenceBypassed{Resource: "r", Key: "k", Owner: c.Owner(), Token: c.Token()}
	if len(told) != 1 || told[0] != want {
		t.Errorf("told %+v, want %+v", told, want)
	}
	silent := fence.NewStore(bypassed{memory.NewSpace().Fence()}).WithHooks(&observe.Fence{Log: observe.Silent})
	ok(t, silent.Enter(t.Context(), c, "r", driver.Write{Key: "k"}))
}

// system has the SQL that the tests need for a kind of database.
type system struct {
	// Options of a URL.
	isolation  map[string]string // by the level's name
	impatience string            // wait for locks a second at most

	// Statements and parts of them.
	quote     func(name string) string
	sleep     string // for 30 seconds
	timedOut  string // SQLSTATE of a statement that ran for too long
	session   string // its id
	sessions  string // the count of sessions with that id
	idleLimit string // in ms
	audit     string // the rebases, in one text
	// snapshots means that a transaction can write rows that it cannot see, as in InnoDB.
	snapshots bool
}

var systems = map[driver.Dialect]system{driver.Postgres: {
	isolation: map[string]string{"repeatable read": "default_transaction_isolation=repeatable%20read",
		"serializable": "default_transaction_isolation=serializable"},
	impatience: "lock_timeout=1000",
	quote:      func(name string) string { return `"` + name + `"` },
	sleep:      `select pg_sleep(30)`,
	timedOut:   "57014",
	session:    `select pg_backend_pid()`,
	sessions:   `select concat(count(*)) from pg_stat_activity where pid = %d`,
	idleLimit:  `select setting::bigint from pg_settings where name = 'idle_in_transaction_session_timeout'`,
	audit: `select string_agg(concat_ws('|', resource, from_token, to_token, reason, rebased_by), ';' order by id)
		from interlock_fence_rebase where abs(extract(epoch from rebased_at - now())) < 3600`,
}, driver.MariaDB: {
	isolation: map[string]string{"repeatable read": "tx_isolation=%27REPEATABLE-READ%27",
		"serializable": "tx_isolation=%27SERIALIZABLE%27", "read committed": "tx_isolation=%27READ-COMMITTED%27"},
	impatience: "innodb_lock_wait_timeout=1",
	quote:      func(name string) string { return "`" + name + "`" },
	sleep:      `select sleep(30)`,
	timedOut:   "70100",
	session:    `select connection_id()`,
	sessions:   `select concat(count(*)) from information_schema.processlist where id = %d`,
	idleLimit:  `select 1000 * @@idle_transaction_timeout`,
	audit: `select group_concat(concat_ws('|', resource, from_token, to_token, reason, rebased_by) order by id separator ';')
		from interlock_fence_rebase where abs(timestampdiff(second, rebased_at, utc_timestamp())) < 3600`,
	snapshots: true,
}}

// testRace lets workers with tokens of all ages read a balance and write it back
// after a pause. Accepted writes must add up, in order.
func testRace(t *testing.T, w world) {
	for kind, marks := range w.marks() {
		var file bytes.Buffer
		hw, err := history.NewWriter(&file, history.Header{Run: kind}, nil)
		ok(t, err)
		var wg sync.WaitGroup
		for lane := range 6 {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(1, uint64(lane)))
				for i := range 20 {
					c := grant(i+r.IntN(6), bound) // mostly rising, often stale
					call := hw.Invoke(history.Event{Lane: fmt.Sprint(lane), Op: history.OpWrite, Key: kind, Token: c.Token()})
					call.End(w.tx(t.Context(), marks, c, "alice", func(ctx context.Context, db driver.SQL) error {
						balance, err := databases.Value[int64](ctx, db, `select balance from account where id = 'alice'`)
						if err != nil {
							return err
						}
						_, err = db.Exec(ctx, fmt.Sprintf(`update account set balance = %d where id = 'alice'`, balance+1))
						return err
					}))
				}
			})
		}
		wg.Wait()
		hr, err := history.NewReader(&file)
		ok(t, err)
		report, err := history.CheckTokens(hr.Events())
		ok(t, err)
		want := fmt.Sprint(100 + report.Accepted)
		got := w.text(t, `select concat(balance) from account where id = 'alice'`)
		if !report.OK() || report.Accepted == 0 || report.Rejected == 0 || report.Accepted+report.Rejected != 120 || got != want {
			t.Errorf("%s: balance %s, want %s; %v", kind, got, want, report)
		}
		w.Exec(t, `update account set balance = 100`)
	}
}
