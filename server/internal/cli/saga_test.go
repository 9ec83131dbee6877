package cli_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/server/internal/backend"
	"github.com/interlock-dev/interlock/server/internal/cli"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/choreography"
	"github.com/interlock-dev/interlock/txn/coordinator"
	txnjournal "github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/saga"
	"github.com/interlock-dev/interlock/txn/tcc"
)

// orders is a service whose sagas reserve, then pay. The payment of a "bad" thing is refused, and
// a reservation can be undone only while the stock is well.
type orders struct {
	engine *saga.Engine
	order  saga.Definition[string]
	well   atomic.Bool
	said   string // appended to participants' errors

	tccProtocol *tcc.Engine
	flight      tcc.Definition[string, string]
}

// plane is a resource that holds seats, and refuses to confirm them.
type plane struct{}

func (plane) Try(context.Context, string, time.Time) (string, error) { return "12A", nil }
func (plane) Confirm(context.Context, string, string) error {
	return branch.Fail(errors.New("the plane is gone"))
}
func (plane) Cancel(context.Context, string, *string) error { return nil }

func serveOrders(t *testing.T, url string) *orders {
	t.Helper()
	ok := func(err error) {
		t.Helper()
		testbed.OK(t, err)
	}
	s := &orders{}
	quick := saga.Policy{First: time.Millisecond, Max: 10 * time.Millisecond, Undos: 2}
	s.order = saga.Define("order",
		saga.Step("reserve", func(context.Context, string) (string, error) { return "shelf 7", nil }).
			Undo("release", func(context.Context, string, *string) error {
				if !s.well.Load() {
					return errors.New("the stock does not answer" + s.said)
				}
				return nil
			}).Retry(quick),
		saga.Step("pay", func(_ context.Context, item string) (int, error) {
			if item == "bad" {
				return 0, saga.Fail(errors.New("the card was refused" + s.said))
			}
			if item == "gone" {
				return 0, saga.InProgress(time.Hour)
			}
			return 7, nil
		}).Pivot().Retry(quick))
	target, err := backend.Parse(url)
	ok(err)
	store, disconnect, err := target.Journal(t.Context(), "")
	ok(err)
	j, err := txnjournal.New(store, nil)
	ok(err)
	c, err := coordinator.New(j, &coordinator.Options{Poll: 50 * time.Millisecond})
	ok(err)
	s.engine, err = saga.New(c, nil, s.order)
	ok(err)
	s.flight = tcc.Define("flight", tcc.Resource[string, string](plane{}))
	s.tccProtocol, err = tcc.New(c, &tcc.Options{Retry: tcc.Policy{First: time.Millisecond, Refusals: 1}}, s.flight)
	ok(err)
	d := memory.NewSpace().Open(nil)
	locks, err := lock.NewFenced(d, nil)
	ok(err)
	claim, err := locks.Acquire(t.Context(), "sagas")
	ok(err)
	served := make(chan error, 1)
	go func() { served <- c.Run(context.Background(), claim) }()
	t.Cleanup(func() {
		ctx := context.Background()
		ok(claim.Release(ctx))
		<-served
		ok(locks.Close(ctx))
		ok(d.Close(ctx))
		ok(j.Close())
		disconnect()
	})
	return s
}

// run runs an order to its end.
func (s *orders) run(t *testing.T, id, item string) {
	t.Helper()
	if _, err := s.order.Do(t.Context(), s.engine, id, item); err != nil && interlock.Kind(err) == interlock.Bug {
		t.Fatal(err)
	}
}

// book makes a trip a dead letter.
func (s *orders) book(t *testing.T, id string) {
	t.Helper()
	if _, err := s.tccProtocol.Run(t.Context(), "booking", id, s.flight.Try("12A")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.tccProtocol.Wait(t.Context(), id); !errors.Is(err, tcc.ErrDeadLetter) {
		t.Fatal(err)
	}
}

// Sagas are listed, shown record by record, and repaired. That the journals of other backends do the
// same, the suite of package journal shows.
func TestSagasByHand(t *testing.T) {
	t.Parallel()
	url := backends["etcd"](t)
	s := serveOrders(t, url)
	s.run(t, "order/1", "book")
	for _, id := range []string{"order/2", "order/3", "order/4"} {
		s.run(t, id, "bad")
	}
	interlock := func(code int, args ...string) string {
		t.Helper()
		out, said := run(t, code, append(args, "--backend", url)...)
		return out + said
	}
	wants := func(text string, all ...string) {
		t.Helper()
		for _, want := range all {
			if !strings.Contains(text, want) {
				t.Errorf("%s\nhas no %q", text, want)
			}
		}
	}
	wants(interlock(0, "tcc", "reconcile", "-o", "json"), `{"wrong":0,"repaired":0,"unknown":0,"findings":[]}`)
	wants(interlock(0, "saga", "ls"), "order/1", "SUCCEEDED", "order/2", "DEAD_LETTER", "card was refused")
	wants(interlock(0, "dlq", "sagas"), "order/2", "order/3", "order/4")
	if text := interlock(0, "dlq", "sagas", "--after", "order/2", "--limit", "1"); !strings.Contains(text, "order/3") || strings.Contains(text, "order/4 ") {
		t.Error(text)
	}
	if text := interlock(0, "saga", "ls", "--state", "succeeded"); strings.Contains(text, "order/2") {
		t.Error(text)
	}
	wants(interlock(0, "saga", "ls", "--limit", "1"), "more than 1")
	wants(interlock(0, "saga", "show", "order/2"), "reserve", "dead", "does not answer", "decide", "abort")
	if text := interlock(0, "saga", "show", "order/2", "--at", "1"); strings.Contains(text, "DEAD_LETTER") {
		t.Error(text)
	}
	interlock(64, "saga", "show", "order/2", "--at", "99")
	wants(interlock(64, "saga", "shoe", "order/2"), `no command "shoe"`)
	wants(interlock(1, "saga", "resolve", "order/1", "--reason", "x"), `interlock: cannot resolve transaction "order/1", which is SUCCEEDED: it resolves a DEAD_LETTER`)
	wants(interlock(0, "saga", "show", "order/2", "-o", "json"), `"type":"order"`, `"input":"bad"`, `"due":"20`, `"history":[{"position":1,`)
	wants(interlock(0, "saga", "ls", "--state", "dead_letter", "--type", "order", "-o", "json"), `"id":"order/4"`, `"dead":[{"step":"reserve"`)
	wants(interlock(0, "saga", "ls", "--type", "other"), "no such sagas")
	wants(interlock(1, "saga", "show", "order/9"), "no such transaction", "--journal")
	for _, command := range []string{"xa show", "tcc show", "xa retry --reason x", "tcc retry --reason x"} {
		wants(interlock(1, append(strings.Fields(command), "order/2")...), `"order/2" is of saga, not of `, ": interlock saga show order/2")
	}
	wants(interlock(1, "saga", "watch", "order/2"), "DEAD_LETTER")
	wants(interlock(0, "saga", "watch", "order/1", "-o", "json"), `"kind":"begin"`, `"state":"SUCCEEDED"`)

	interlock(64, "saga", "forget", "--before", "1h")
	interlock(64, "saga", "forget", "--reason", "x")
	wants(interlock(0, "saga", "forget", "--before", "1h", "--reason", "too young"), "forgotten: 0")
	wants(interlock(0, "saga", "show", "order/1"), "SUCCEEDED")
	s.run(t, "order/old", "book")
	time.Sleep(10 * time.Millisecond) // it becomes older than --before
	wants(interlock(0, "saga", "forget", "--before", "1ms", "--reason", "full", "--by", "ada", "-o", "json"), `"forgotten":`, `"record":"interlock.forget/`)
	wants(interlock(1, "saga", "show", "order/old"), "no such transaction")
	wants(interlock(0, "saga", "show", "order/2"), "DEAD_LETTER")
	wants(interlock(0, "saga", "export"), "interlock.forget/", "retention:forget")
	s.run(t, "order/1", "book")

	interlock(64, "saga", "retry", "order/2")
	interlock(64, "saga", "retry", "order/2", "--reason", "x", "--input", "{")
	interlock(64, "saga", "retry", "order/2", "--reason", strings.Repeat("x", 2000))
	interlock(64, "saga", "start", "order/2", "")
	s.well.Store(true)
	wants(interlock(0, "saga", "retry", "order/2", "--reason", "the stock is back", "--by", "ann"), "retried: order/2")
	testbed.Eventually(t, "it is undone", patience, func() bool {
		o, err := s.engine.Look(t.Context(), "order/2")
		return err == nil && o.State == saga.Compensated
	})
	wants(interlock(1, "saga", "retry", "order/2", "--reason", "again"), "order/2")
	wants(interlock(0, "saga", "show", "order/2"), "ann the stock is back")
	wants(interlock(0, "saga", "skip", "order/3", "reserve", "--reason", "put back by hand"), "skipped: order/3")
	wants(interlock(0, "saga", "resolve", "order/4", "--reason", "ticket 7"), "resolved: order/4")
	wants(interlock(0, "saga", "ls", "--state", "RESOLVED"), "order/4")
	wants(interlock(0, "saga", "ls", "--unfinished"), "no such sagas")
	wants(interlock(1, "saga", "now", "order/1", "--reason", "hurry"), `interlock: cannot end the wait of transaction "order/1"`)

	wants(interlock(0, "saga", "start", "order/5", "order", "--input", `"pen"`), "started: order/5")
	wants(interlock(1, "saga", "start", "order/5", "order", "--input", `"ink"`), "other input")
	for _, command := range []string{"start order/6 order", "ls", "show order/1", "retry order/1 --reason x", "export"} {
		wants(interlock(78, append(strings.Fields("saga "+command), "--shards", "5")...), "the journal has")
	}
	wants(interlock(0, "saga", "watch", "order/5"), "SUCCEEDED")
	for id, found := range map[string][]string{"order/7": {"--done", "--output", "9"}, "order/8": {"--not-done"}} {
		interlock(0, "saga", "start", id, "order", "--input", `"gone"`)
		silent := []string{"saga", "settle", id, "pay", "--reason", "the bank was asked", "--by", "ann"}
		settle := slices.Clip(slices.Concat(silent, found))
		testbed.Eventually(t, "it is paid", patience, func() bool { return strings.Contains(interlock(0, "saga", "show", id), "pay ") })
		interlock(64, silent...)
		interlock(64, append(settle, "--done", "--not-done")...)
		interlock(64, append(settle, "--output", "{")...)
		wants(interlock(1, "saga", "settle", id, "reserve", "--done", "--reason", "x"), "it settles a step that was called")
		wants(interlock(1, "saga", "settle", id, "nope", "--done", "--reason", "x"), `no step "nope" has begun; those that have are: "reserve", "pay"`)
		wants(interlock(0, settle...), "settled: "+id)
		ends := map[bool]int{found[0] == "--not-done": 1} // undone is no success
		interlock(ends[true], "saga", "watch", id)
		wants(interlock(0, "saga", "show", id), "settle", "ann the bank was asked")
	}
	interlock(0, "saga", "start", "odd/1", "unheard of", "--input", "1")
	wants(interlock(0, "saga", "abort", "odd/1", "--reason", "a slip of the pen", "--by", "ann"), "aborted: odd/1")
	wants(interlock(0, "saga", "show", "odd/1"), "COMPENSATED", "ann: a slip of the pen")
	wants(interlock(1, "saga", "abort", "order/5", "--reason", "x"), "SUCCEEDED", "has not called its pivot")

	s.book(t, "trip/1")
	s.book(t, "trip/2")
	wants(interlock(0, "tcc", "ls", "--state", "DEAD_LETTER", "-o", "json"), `"id":"trip/1"`, "plane is gone")
	wants(interlock(0, "tcc", "show", "trip/1", "-o", "json"), `"decision":"confirm"`, `"kind":"dead","step":"flight","why":"the plane`)
	wants(interlock(1, "tcc", "show", "trip/9"), "--journal")
	wants(interlock(1, "tcc", "show", "order/1"), "order/1")
	wants(interlock(1, "saga", "show", "trip/1"), "interlock tcc show trip/1")
	interlock(64, "tcc", "skip", "trip/1", "--reason", "x")
	interlock(64, "tcc", "resolve", "trip/2")
	wants(interlock(0, "tcc", "skip", "trip/1", "flight", "--reason", "by telephone"), "skipped: trip/1")
	wants(interlock(0, "tcc", "resolve", "trip/2", "--reason", "ticket 8"), "resolved: trip/2")
	wants(interlock(0, "tcc", "show", "trip/2"), "RESOLVED", "ticket 8")
	wants(interlock(1, "tcc", "retry", "trip/2", "--reason", "once more"), "trip/2")
	wants(interlock(1, "tcc", "retry", "trip/9", "--reason", "once more"), "trip/9")

	file := filepath.Join(t.TempDir(), "journal.jsonl")
	interlock(0, "saga", "export", "--to", file)
	text, err := os.ReadFile(file)
	testbed.OK(t, err)
	n, err := txnjournal.Verify(strings.NewReader(string(text)))
	if err != nil || n < 15 || n+2 != strings.Count(string(text), "\n") {
		t.Errorf("%d records, %v", n, err)
	}
	interlock(1, "saga", "export", "--to", file)
	wants(interlock(0, "saga", "verify", file, "-o", "json"), `{"records":`)
	wants(interlock(1, "saga", "export", "order/1", "order/9", "--to", file+".2"), "order/9")
	if _, err := os.Stat(file + ".2"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an export that failed has left a file: %v", err)
	}
	lines := strings.SplitAfter(string(text), "\n")
	testbed.OK(t, os.WriteFile(file, []byte(strings.Join(append(lines[:2:2], lines[3:]...), "")), 0o600))
	wants(interlock(1, "saga", "verify", file), "line 3")
	if err := json.Unmarshal([]byte(interlock(0, "saga", "ls", "-o", "json")), &struct{}{}); err != nil {
		t.Error(err)
	}

	interlock(0, "saga", "start", "注文\u3000\u202e7", "order", "--input", `"pen"`) // characters that a terminal does not get
	_, exported, _ := cli.RunWithin(t, "saga", "export", "注文\u3000\u202e7", "--backend", url)
	testbed.OK(t, os.WriteFile(file, []byte(exported), 0o600))
	interlock(0, "saga", "verify", file)

	interlock(64, "saga", "shards", "--set", "16")
	wants(interlock(0, "saga", "shards", "--set", "16", "--reason", "fewer services", "--by", "ada", "-o", "json"), `"shards":16`, `"record":"interlock.shards/`)
	wants(interlock(0, "saga", "export"), `"type":"layout:shards"`)
	if _, err := s.order.Do(t.Context(), s.engine, "order/last", "book"); err == nil || !strings.Contains(err.Error(), "16 shards") {
		t.Errorf("a service with the former number of shards has begun a saga: %v", err)
	}
}

// An outage of the journal ends no watch, and is reported once.
func TestSagaWatchSurvivesAnInterruption(t *testing.T) {
	t.Parallel()
	through := testbed.NewProxy(t, strings.TrimPrefix(backends["etcd"](t), "etcd://"))
	url := "etcd://" + through.Addr()
	run(t, 0, "saga", "start", "order/1", "order", "--backend", url)
	w := testbed.Command(t, program(t), "saga", "watch", "order/1", "--backend", url, "--timeout", "1s", "--every", "50ms")
	if line := w.Line(patience); !strings.HasSuffix(line, "RUNNING") {
		t.Fatal(line)
	}
	through.Cut()
	saysOf(t, w, `interrupted: .+; trying again\n`)
	through.Heal()
	saysOf(t, w, `the journal answers again\n`)
	w.Signal(syscall.SIGINT)
	wantCode(t, w, -1)
	if n := strings.Count(w.Stderr(), "interrupted"); n != 1 {
		t.Errorf("reported %d times: %s", n, w.Stderr())
	}
}

// Reading a missing journal is an error and creates nothing; reading an existing one
// needs only the right to read.
func TestLookingMakesNoJournal(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) (database, of string, client string, reader []string){
		"postgres": func(t *testing.T) (string, string, string, []string) {
			s := testbed.Postgres(t)
			return s.URL(), "pgx", s.URL(), []string{`create role reader login`, `grant select on all tables in schema public to reader`}
		},
		"mariadb": func(t *testing.T) (string, string, string, []string) {
			s := testbed.MariaDB(t)
			return mariadbURL(s), "mysql", s.URL(), []string{`create user reader@'%'`, `grant select on test.* to reader@'%'`}
		},
	} {
		t.Run(name, func(t *testing.T) {
			database, of, dsn, allow := start(t)
			db, err := sql.Open(of, dsn)
			testbed.OK(t, err)
			defer db.Close()
			tables := func() (n int) {
				t.Helper()
				testbed.OK(t, db.QueryRow(`select count(*) from information_schema.tables where table_name like 'typo%' or table_name like 'interlock%'`).Scan(&n))
				return n
			}
			for _, command := range []string{"saga ls", "saga ls --journal typo", "saga show 1", "saga watch 1", "saga export", "saga retry 1 --reason x",
				"dlq sagas", "tcc ls", "tcc show 1", "tcc retry 1 --reason x", "xa ls", "xa show 1", "xa resolve 1 --reason x"} {
				_, said := run(t, 78, append(strings.Fields(command), "--backend", database)...)
				wanted := "no journal interlock_journal on "
				if strings.HasSuffix(command, "typo") {
					wanted = "no journal typo on "
				}
				if !strings.Contains(said, wanted) || !strings.Contains(said, "--journal") {
					t.Errorf("%s: %s", command, said)
				}
			}
			if n := tables(); n != 0 {
				t.Errorf("looking has made %d tables", n)
			}
			run(t, 64, "saga", "ls", "--journal", "a.b.c", "--backend", database)

			run(t, 0, "saga", "start", "order/1", "order", "--backend", database)
			for _, query := range allow {
				if _, err := db.Exec(query); err != nil {
					t.Fatal(err)
				}
			}
			u, err := url.Parse(database)
			testbed.OK(t, err)
			u.User = url.User("reader")
			for _, command := range []string{"saga ls", "saga show order/1", "saga export", "tcc ls", "xa ls"} {
				out, _ := run(t, 0, append(strings.Fields(command), "--backend", u.String())...)
				if strings.HasPrefix(command, "saga") && !strings.Contains(out, "order/1") {
					t.Errorf("%s: %s", command, out)
				}
			}
			run(t, 77, "saga", "start", "order/2", "order", "--backend", u.String())
		})
	}
}

// TestSagaChoreographed lists the sagas of a tracker: all, stalled ones, those of a state.
func TestSagaChoreographed(t *testing.T) {
	t.Parallel()
	program(t)
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		ls := func(code int, args ...string) string {
			t.Helper()
			text, _ := run(t, code, append([]string{"saga", "ls", "--choreographed", "--backend", shopURL(db)}, args...)...)
			return text
		}
		ls(78) // there is no table
		d := &choreography.Definition{Name: "order", Topic: "orders", Cancelled: "cancelled", Stalled: time.Hour, Steps: []choreography.Step{
			{Done: "placed", Undone: "closed"}, {Done: "charged", Undone: "refunded", Failed: "declined"}}}
		tracker := choreography.Tracker{Definition: d}
		db.Do(t, tracker.Create)
		for saga, events := range map[string]string{"1": "placed", "2": "placed charged", "3": "charged declined"} {
			for _, name := range strings.Fields(events) {
				m := d.Message(choreography.Event{Saga: saga, Name: name})
				db.Do(t, func(ctx context.Context, tx driver.SQL) error {
					return tracker.Observe(ctx, tx, driver.QueueMessage{Headers: m.Headers})
				})
			}
		}
		db.Exec(t, `update interlock_choreography set stalled = 1 where id = '1'`)
		text := ls(0)
		for _, want := range []string{"1   order  running", "2   order  completed", "3   order  contradictory", `"charged" and "declined" both happened`} {
			if !strings.Contains(text, want) {
				t.Errorf("%s\nwithout %s", text, want)
			}
		}
		if text := ls(0, "--stalled"); !strings.Contains(text, "1   order  running") || !strings.Contains(text, "stalled") || strings.Contains(text, "completed") || strings.Contains(text, "contradictory") {
			t.Error(text)
		}
		if text := ls(0, "--state", "COMPLETED", "--type", "order", "-o", "json"); !strings.Contains(text, `"completed"`) || strings.Contains(text, `"running"`) {
			t.Error(text)
		}
		ls(64, "--after", "1")
		if text := ls(0, "--type", "order", "--after", "1"); strings.Contains(text, "running") || !strings.Contains(text, "completed") {
			t.Error(text)
		}
		if text := ls(0, "--type", "refund", "-o", "json"); strings.Contains(text, "order") {
			t.Error(text)
		}
		ls(64, "--unfinished")
		ls(64, "--limit", "0")
	})
}
