package outbox_test

import (
	"context"
	"errors"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestStart: relays of two processes, opened by URL, deliver a message in one of them; when
// that one closes the other goes on. On MariaDB the lock is one without values, in a table.
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
