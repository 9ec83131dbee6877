package outbox_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/partition"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// TestRelaysShareSlices lets relays join and leave a group that owns the slices, by locks in the same
// database, while messages are added.
func TestRelaysShareSlices(t *testing.T) {
	t.Parallel()
	db := made(t, databases.Open(t, testbed.Postgres(t), databases.Pgx))
	config, err := pgx.ParseConfig(db.URL)
	ok(t, err)
	values := memory.NewSpace().Values() // for the layout; the test is about the locks
	var sink memory.Sink
	layout := partition.Layout{Partitions: box.Slices}
	var group *partition.Group
	join := func(name string) (leave func()) {
		d, err := postgres.Open(t.Context(), config, &postgres.Options{TTL: 3 * time.Second})
		ok(t, err)
		r := anyRelay(t, db, &sink, outbox.Options{Batch: 4})
		g, err := partition.Join(t.Context(), d, values, "outbox", layout, &partition.Options{Identity: name,
			Work: func(ctx context.Context, p partition.Partition) error {
				return r.RunOf(ctx, p.Claim, p.Index, p.Layout.Count())
			}})
		ok(t, err)
		group = g
		return func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), bound)
			defer cancel()
			ok(t, g.Leave(ctx))
			ok(t, d.Close(ctx))
		}
	}
	total := 0
	more := func() {
		from := total/2 + 1
		for i := range 20 {
			add(t, db, slices.Concat(keyed("a", from+i, from+i), keyed("b", from+i, from+i))...)
		}
		total += 40
	}
	a := join("a")
	more()
	b := join("b")
	more()
	delivered(t, &sink, total)
	owners := func(n int) {
		testbed.Eventually(t, "the slices are spread", bound, func() bool {
			found := map[string]bool{}
			for _, s := range status(t, db).Slices { // the number of box, so far
				found[s.Owner] = true
			}
			return len(found) == n
		})
	}
	owners(2)
	a()
	more()
	delivered(t, &sink, total)
	c := join("c")
	more()
	b()
	// More slices: first those of the table, then the partitions of the group.
	setSlices(t, db, 3)
	more()
	layout.Partitions = 3
	ok(t, group.Resize(t.Context(), layout))
	ids := delivered(t, &sink, total)
	inOrder(t, "a", ids, total/2)
	inOrder(t, "b", ids, total/2)
	empty(t, db)
	c()
	t.Logf("%d of %d messages were delivered twice", len(sink.Messages())-total, total)
}

// TestCreatedTogether: a process creates the tables that another one is creating, also if its sessions begin
// with transactions of one snapshot.
func TestCreatedTogether(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		first := db.Begun(t, driver.ReadCommitted)
		ok(t, box.Create(t.Context(), first))
		second, closed, err := databases.Connect(t.Context(), db.Client, databases.With(db.URL, "default_transaction_isolation=repeatable%20read"))
		ok(t, err)
		t.Cleanup(closed)
		created := make(chan error, 1)
		go func() { created <- driver.Create(t.Context(), second, box) }()
		testbed.Eventually(t, "it waits for the first one", bound, func() bool { return db.Waiting(t) > 0 })
		ok(t, first.Commit(t.Context()))
		ok(t, testbed.Receive(t, created, "the tables"))
	}, databases.Pgx, databases.PgxStd)
}

// TestStart: of two relays opened by URL, one delivers a message; after it closes, the
// other continues. On MariaDB the lock is in a table, without values.
func TestStart(t *testing.T) {
	for name, url := range map[string]func(t *testing.T) string{
		"postgres": func(t *testing.T) string { return testbed.Postgres(t).URL() },
		"mariadb":  func(t *testing.T) string { return "mysql://root@" + testbed.MariaDB(t).Addr() + "/test?mode=table" },
	} {
		t.Run(name, func(t *testing.T) {
			at := url(t)
			delivered := map[string]chan string{"here": make(chan string, 100), "there": make(chan string, 100)}
			start := func(process string) *outbox.Running {
				sink := outbox.Func(func(_ context.Context, m driver.Message) error {
					delivered[process] <- m.ID
					return nil
				})
				r, err := outbox.Start(t.Context(), at, box, sink, nil)
				ok(t, err)
				return r
			}
			running := map[string]*outbox.Running{"here": start("here"), "there": start("there")}
			b, err := backend.Open(t.Context(), at)
			ok(t, err)
			defer b.Close(t.Context())
			db, _ := b.SQL()
			put := func(id string) {
				tx, err := db.Begin(t.Context())
				if err == nil {
					err = errors.Join(box.Add(t.Context(), tx, driver.Message{ID: id, Topic: "t", Payload: []byte("x")}), tx.Commit(t.Context()))
				}
				ok(t, err)
			}
			put("first")
			active, other := "here", "there"
			select {
			case id := <-delivered["here"]:
				t.Log("here", id)
			case id := <-delivered["there"]:
				t.Log("there", id)
				active, other = other, active
			}
			ok(t, running[active].Close(t.Context()))
			put("second")
			if id := <-delivered[other]; id != "second" && id != "first" { // a message may come twice
				t.Errorf("delivered %s", id)
			}
			ok(t, running[other].Close(t.Context()))
			for process, r := range running {
				select {
				case <-r.Ended():
				default:
					t.Errorf("the relay of %s still runs", process)
				}
			}
		})
	}
	if _, err := outbox.Start(t.Context(), "memory://x", box, outbox.Func(nil), nil); interlock.Kind(err) != interlock.Definite {
		t.Errorf("a backend without tables: %v", err)
	}
}
