package cli_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// shop fills the outbox of a database with two undeliverable dead letters of order 42, and a
// message after them. A message of order 7 blocks its key.
func shop(t *testing.T, db *databases.DB) {
	t.Helper()
	var box outbox.Table
	db.Do(t, box.Create)
	db.Do(t, func(ctx context.Context, tx driver.SQL) error {
		return box.Add(ctx, tx,
			driver.Message{ID: "m1", Topic: "orders", Key: "order/42", Payload: []byte(`{"state":"paid"}`), Headers: map[string]string{"Trace": "t1"}},
			driver.Message{ID: "m2", Topic: "orders", Key: "order/42", Payload: []byte{0xff, 0xfe}},
			driver.Message{ID: "m3", Topic: "orders", Key: "order/42", Payload: []byte("behind")})
	})
	deliver(t, db, outbox.Options{Poison: outbox.ToDeadLetters, Attempts: 1, AfterDeadLetter: outbox.Park, MinPause: time.Millisecond, MaxPause: time.Millisecond},
		"orders", func(s outbox.Status) bool { return s.Dead == 1 })
	db.Do(t, func(ctx context.Context, tx driver.SQL) error {
		return errors.Join(box.MakeDeadLetter(ctx, tx, "m2", "made dead for this page", "test"),
			box.Add(ctx, tx, driver.Message{ID: "m4", Topic: "mail", Key: "order/7", Payload: []byte("hello")}))
	})
	deliver(t, db, outbox.Options{MaxPause: time.Hour, MinPause: time.Hour}, "mail",
		func(s outbox.Status) bool { return len(s.Waiting) == 2 })
}

// deliver runs a relay to a receiver that refuses a topic, until the outbox has a
// status.
func deliver(t *testing.T, db *databases.DB, o outbox.Options, refused string, until func(outbox.Status) bool) {
	t.Helper()
	sink := outbox.Func(func(_ context.Context, m driver.Message) error {
		if m.Topic == refused {
			return &interlock.Error{Op: "publish", Kind: interlock.Definite, Err: errors.New("no such receiver")}
		}
		return nil
	})
	relay, err := outbox.NewRelay(db, outbox.Table{}, sink, &o)
	testbed.OK(t, err)
	d := memory.NewSpace().Open(nil)
	defer d.Close(t.Context())
	locks, err := lock.NewFenced(d, &lock.Options{Identity: "relay"})
	testbed.OK(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- locks.Do(ctx, "outbox", func(ctx context.Context, c interlock.Claim) error { return relay.RunAll(ctx, c) })
	}()
	testbed.Eventually(t, "the relay has done its work", patience, func() bool {
		var s outbox.Status
		db.Do(t, func(ctx context.Context, tx driver.SQL) (err error) {
			s, err = outbox.Table{}.Status(ctx, tx)
			return err
		})
		return until(s)
	})
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// shopURL returns a database's URL for the commands.
func shopURL(db *databases.DB) string {
	if db.Dialect == driver.MariaDB {
		name, _, _ := strings.Cut(db.URL[strings.LastIndexByte(db.URL, '/')+1:], "?")
		return "mysql://root@" + db.Server.Addr() + "/" + name
	}
	return db.URL
}

// TestOutbox: waiting messages are shown with the reason; dead letters are listed,
// shown, replayed in order, discarded, and each decision needs a reason.
func TestOutbox(t *testing.T) {
	t.Parallel()
	program(t)
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		url := shopURL(db)
		_, said := run(t, 78, "outbox", "status", "--backend", url)
		if !strings.Contains(said, "--only outbox") {
			t.Errorf("a missing table is reported as %q", said)
		}
		shop(t, db)
		text, _ := run(t, 0, "outbox", "status", "--backend", url, "-o", "json")
		var status struct {
			Dead    int `json:"dead_letters"`
			Slices  []struct{ Ready, Parked int }
			Waiting []struct {
				ID, Why, Topic, Key string
				LastError           string `json:"last_error"`
			}
		}
		if err := json.Unmarshal([]byte(text), &status); err != nil || status.Dead != 2 || len(status.Slices) != outbox.DefaultSlices || len(status.Waiting) != 2 {
			t.Fatalf("%v: %s", err, text)
		}
		text, _ = run(t, 0, "outbox", "status", "--backend", url)
		for _, want := range []string{"dead letters: 2", "blocked", "m4", "no such receiver", "LAST SERVED BY", "relay"} {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in\n%s", want, text)
			}
		}

		text, _ = run(t, 0, "dlq", "ls", "--backend", url, "-o", "json")
		if m1, m2 := strings.Index(text, `"id":"m1"`), strings.Index(text, `"id":"m2"`); m1 < 0 || m2 < m1 {
			t.Errorf("dead letters: %s", text)
		}
		if _, text = run(t, 0, "dlq", "ls", "--topic", "mail", "--backend", url); text != "interlock: there are no dead letters\n" {
			t.Errorf("of another topic: %s", text)
		}
		text, _ = run(t, 0, "dlq", "show", "m1", "--backend", url)
		for _, want := range []string{`{"state":"paid"}`, "Trace: t1", "no such receiver", "order/42"} {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in\n%s", want, text)
			}
		}
		if text, _ = run(t, 0, "dlq", "show", "m2", "--backend", url); !strings.Contains(text, "2 bytes that are no text") {
			t.Errorf("a binary payload:\n%s", text)
		}

		run(t, 64, "dlq", "replay", "m1", "--backend", url)
		run(t, 64, "dlq", "discard", "--reason", "x", "--backend", url)
		run(t, 64, "outbox", "dead-letter", "m4", "--reason", " ", "--backend", url)
		for _, args := range [][]string{{"dlq", "show", "nothing"}, {"dlq", "replay", "m2", "--reason", "too early"}, {"dlq", "discard", "m1", "nothing", "--reason", "x"},
			{"outbox", "retry", "m1"}, {"outbox", "dead-letter", "nothing", "--reason", "x"}} {
			if _, said := run(t, 1, append(args, "--backend", url)...); strings.Count(said, "\n") != 1 {
				t.Errorf("%v: %s", args, said)
			}
		}
		run(t, 0, "outbox", "retry", "m4", "--backend", url)
		run(t, 0, "outbox", "dead-letter", "m4", "--reason", "nobody reads mail", "--backend", url)
		text, _ = run(t, 0, "dlq", "discard", "m4", "--reason", "nobody reads mail", "--by", "alice", "--backend", url, "-o", "json")
		if text != `{"done":"discarded","messages":["m4"]}`+"\n" {
			t.Errorf("discarded: %s", text)
		}
		text, _ = run(t, 0, "outbox", "replay", "--topic", "orders", "--key", "order/42", "--reason", "fixed", "--backend", url)
		if text != "replayed: m1\nreplayed: m2\n" {
			t.Errorf("replayed: %s", text)
		}
		if text, _ = run(t, 0, "outbox", "replay", "--reason", "again", "--backend", url); text != "replayed: none\n" {
			t.Errorf("replayed again: %s", text)
		}
		run(t, 64, "dlq", "ls", "--backend", "redis://127.0.0.1:1")
		testOutboxReplayBesideDiscard(t, db, url)
		testOutboxReplayOfOneID(t, db, url)
		testOutboxSlices(t, db, url)
	}, databases.Pgx, databases.Maria)
}

// testOutboxReplayBesideDiscard discards a dead letter while a command replays all: the command replays the others.
func testOutboxReplayBesideDiscard(t *testing.T, db *databases.DB, url string) {
	t.Helper()
	var box outbox.Table
	db.Do(t, func(ctx context.Context, tx driver.SQL) error {
		return errors.Join(box.MakeDeadLetter(ctx, tx, "m1", "x", "test"), box.MakeDeadLetter(ctx, tx, "m2", "x", "test"))
	})
	other := db.Begun(t, driver.SessionIsolation)
	testbed.OK(t, box.Discard(t.Context(), other, []string{"m1"}, "a test order", "bob"))
	var code int
	var text, said string
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		code, text, said = outcome(t, "outbox", "replay", "--topic", "orders", "--reason", "fixed", "--timeout", "1m", "--backend", url)
	}()
	testbed.Eventually(t, "the command waits for the dead letter", patience, func() bool { return db.Waiting(t) > 0 })
	testbed.OK(t, other.Commit(t.Context()))
	<-ended
	if code != 0 || text != "replayed: m2\n" {
		t.Errorf("exit code %d: %s%s", code, text, said)
	}
}

// testOutboxReplayOfOneID replays two dead letters of one id: one at a time.
func testOutboxReplayOfOneID(t *testing.T, db *databases.DB, url string) {
	t.Helper()
	for range 2 {
		db.Do(t, func(ctx context.Context, tx driver.SQL) error {
			return errors.Join(outbox.Table{}.Add(ctx, tx, driver.Message{ID: "m5", Topic: "twice", Key: "k"}), outbox.Table{}.MakeDeadLetter(ctx, tx, "m5", "x", "test"))
		})
	}
	db.Do(t, func(ctx context.Context, tx driver.SQL) error {
		return errors.Join(outbox.Table{}.Add(ctx, tx, driver.Message{ID: "m6", Topic: "twice", Key: "k"}), outbox.Table{}.MakeDeadLetter(ctx, tx, "m6", "x", "test"))
	})
	if text, said := run(t, 0, "outbox", "replay", "--topic", "twice", "--reason", "x", "--backend", url); text != "replayed: m5\n" || !strings.Contains(said, "there are more than 1") {
		t.Errorf("%s%s", text, said)
	}
	run(t, 1, "outbox", "replay", "--topic", "twice", "--reason", "x", "--backend", url)
}

// testOutboxSlices shows and changes the number of slices, and an unfinished change.
func testOutboxSlices(t *testing.T, db *databases.DB, url string) {
	if text, _ := run(t, 0, "outbox", "slices", "--backend", url); text != "8 slices\n" {
		t.Errorf("slices: %s", text)
	}
	run(t, 64, "outbox", "slices", "--set", "9", "--backend", url)
	run(t, 64, "outbox", "slices", "--set", "0", "--reason", "x", "--backend", url)
	text, _ := run(t, 0, "outbox", "slices", "--set", "9", "--reason", "more relays", "--by", "alice", "--backend", url)
	if !strings.HasPrefix(text, "9 slices, ") {
		t.Errorf("slices: %s", text)
	}
	if n := databases.One[int64](t, db, `select count(*) from interlock_outbox_audit where action = 'slices' and done_by = 'alice' and reason = 'more relays'`); n != 2 {
		t.Errorf("%d records", n)
	}
	db.Exec(t, `update interlock_outbox_layout set slices = -3 where one = 1`)
	text, said := run(t, 0, "outbox", "slices", "--backend", url, "-o", "json")
	if text != `{"slices":3,"changing":true,"moved":0}`+"\n" || !strings.Contains(said, "--set 3") {
		t.Errorf("during a change: %s%s", text, said)
	}
}
