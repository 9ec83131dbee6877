package once_test

import (
	"context"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/once"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

func testNames(t *testing.T, w world) {
	ids := []string{"a", "A", "a ", " a", "é", "e\u0301", "ключ", "a\nb", "a\\", "%", "_", "'; drop table effect; --", `"`, "\u2028<&>",
		"$1", "?", strings.Repeat("x", 255), strings.Repeat("x", 254) + "y", "💥"}
	run := func(context.Context, driver.SQL) error { return nil }
	for _, wanted := range []once.Outcome{once.Done, once.Duplicate} {
		for _, id := range ids {
			outcome, err := once.Tx(t.Context(), w.DB, w.inbox, once.Message{ID: id}, run)
			want(t, outcome, err, wanted)
			outcome, err = once.Tx(t.Context(), w.DB, w.inbox, once.Message{Key: id, Seq: 1}, run)
			want(t, outcome, err, wanted)
			in := w.inbox
			in.Consumer = id
			outcome, err = once.Tx(t.Context(), w.DB, in, once.Message{ID: "of another consumer"}, run)
			want(t, outcome, err, wanted)
		}
	}
}

func testBadInput(t *testing.T, w world) {
	run := func(context.Context, driver.SQL) error { return nil }
	bug := func(in once.Inbox, m once.Message, is error) {
		t.Helper()
		outcome, err := once.Tx(t.Context(), w.DB, in, m, run)
		if wantKind(t, err, interlock.Bug, is); outcome != once.Undone {
			t.Errorf("%v", outcome)
		}
		_, err = once.BatchTx(t.Context(), w.DB, in, []once.Message{message(1), m}, nothingNew)
		wantKind(t, err, interlock.Bug, is)
	}
	for _, id := range []string{"", strings.Repeat("x", 256), "\xff", "a\x00b"} {
		bug(w.inbox, once.Message{ID: id}, interlock.ErrName)
		in := w.inbox
		in.Consumer = id
		bug(in, message(1), interlock.ErrName)
		outcome, err := once.Tx(t.Context(), w.DB, w.inbox, once.Message{ID: "m1", Key: id, Seq: 1}, run)
		if wantKind(t, err, interlock.Bug, interlock.ErrName); outcome != once.Undone {
			t.Errorf("%v", outcome)
		}
	}
	for _, m := range []once.Message{{ID: "m", Seq: -1}, {ID: "m", Epoch: -1}, {ID: "m", Hash: []byte{1}}} {
		bug(w.inbox, m, nil)
	}
	bug(once.Inbox{Consumer: "c", Retention: -1}, message(1), nil)
	bug(once.Inbox{Consumer: "c", Name: "a.b.c"}, message(1), interlock.ErrName)
	bug(once.Inbox{Consumer: "c", Name: strings.Repeat("n", 60)}, message(1), interlock.ErrName)
	for _, err := range []error{
		second(once.Tx[driver.SQL](t.Context(), nil, w.inbox, message(1), run)),
		second(once.Tx(t.Context(), w.DB, w.inbox, message(1), nil)),
		second(once.BatchTx(t.Context(), w.DB, w.inbox, nil, nil)),
		second(w.inbox.Once(t.Context(), nil, message(1), func(context.Context) error { return nil })),
		second(w.inbox.Once(t.Context(), foreign{}, message(1), func(context.Context) error { return nil })),
		second(w.inbox.Batch(t.Context(), nil, nil, func(context.Context, []once.Message) error { return nil })),
		second(once.BatchTx(t.Context(), w.DB, w.inbox, []once.Message{{Key: "k", Seq: 1}}, nothingNew)),
		w.inbox.Skip(t.Context(), nil, "k", 0, 1), w.inbox.Skip(t.Context(), foreign{}, "k", 0, 0),
		w.inbox.Create(t.Context(), nil),
	} {
		wantKind(t, err, interlock.Bug, nil)
	}
	missing := w.inbox
	missing.Name = "nowhere"
	_, err := once.Tx(t.Context(), w.DB, missing, message(1), run)
	if wantKind(t, err, interlock.Definite, nil); !strings.Contains(err.Error(), "with Create") {
		t.Errorf("%v does not say what to do", err)
	}
	db, closed, err := databases.Connect(t.Context(), w.Client, w.URL)
	ok(t, err)
	closed()
	if outcome, err := once.Tx(t.Context(), db, w.inbox, message(1), run); err == nil || outcome != once.Undone {
		t.Errorf("on a closed database: %v, %v", outcome, err)
	}
	outcome, err := w.deliver(t.Context(), message(1)) // nothing of all that was recorded
	want(t, outcome, err, once.Done)
}

func second[T any](_ T, err error) error { return err }

func nothingNew(context.Context, driver.SQL, []once.Message) error { return nil }

// foreign is a database of another kind.
type foreign struct{ driver.SQL }

func (foreign) Dialect() driver.Dialect { return "sqlite" }
