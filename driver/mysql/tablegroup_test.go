package mysql_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// atOnce does something for many names, and returns the answers.
func atOnce(many int, do func(name string) error) <-chan error {
	answers := make(chan error, many)
	for i := range many {
		go func() { answers <- do(fmt.Sprintf("n/%03d", i)) }()
	}
	return answers
}

// TestCostOfManyRowsAtOnce: what waits while statements are under way shares the next one.
func TestCostOfManyRowsAtOnce(t *testing.T) {
	server := testbed.MariaDB(t)
	admin, d := open(t, server.URL()), modes[1].mustOpen(t, server.URL(), &mysql.Options{TTL: time.Minute})
	const many = 256
	ctx := context.WithoutCancel(t.Context())
	inserts := func() int64 { return admin.status(t, "Com_insert_select") + admin.status(t, "Com_insert") }
	before, updates, reads := inserts(), admin.status(t, "Com_update"), admin.status(t, "Handler_read_key")
	acquired := atOnce(many, func(name string) error {
		_, err := d.Acquire(ctx, driver.Request{Name: name, Owner: "o" + name})
		return err
	})
	for range many {
		if err := <-acquired; err != nil {
			t.Fatal(err)
		}
	}
	if n := inserts() - before; n > many/2 {
		t.Errorf("%d inserts for %d callers", n, many)
	}
	if n := admin.status(t, "Handler_read_key") - reads; n > many/2 { // each statement reads the counter of swept rows once
		t.Errorf("%d reads by a key for %d callers", n, many)
	}
	answers := atOnce(many, func(name string) error { return d.Release(ctx, name, "o"+name) })
	for range many {
		if err := <-answers; err != nil {
			t.Fatal(err)
		}
	}
	if n := admin.status(t, "Com_update") - updates; n > many/2 {
		t.Errorf("%d updates for %d callers", n, many)
	}
	if n := admin.text(t, "select count(*) from interlock_lease where owner <> x'' and expires > utc_timestamp(6)"); n != "0" {
		t.Errorf("%s rows are held after their release", n)
	}
}

// TestLockedRowHoldsUpNobody who shares its statement.
func TestLockedRowHoldsUpNobody(t *testing.T) {
	server := testbed.MariaDB(t)
	admin, d := open(t, server.URL()), modes[1].mustOpen(t, server.URL(), &mysql.Options{TTL: time.Minute})
	ctx := context.WithoutCancel(t.Context())
	const many = 32
	acquire := func(name string) error {
		_, err := d.Acquire(ctx, driver.Request{Name: name, Owner: "o" + name})
		return err
	}
	release := func(name string) error { return d.Release(ctx, name, "o"+name) }
	for answers, i := atOnce(many, acquire), 0; i < many; i++ { // the rows are there
		if err := <-answers; err != nil {
			t.Fatal(err)
		}
	}
	for _, do := range []func(string) error{release, acquire} {
		tx, err := admin.BeginTx(ctx, nil)
		if err == nil {
			_, err = tx.ExecContext(ctx, "update interlock_lease set since = since where name = 'n/007'")
		}
		if err != nil {
			t.Fatal(err)
		}
		answers := atOnce(many, do)
		for range many - 1 {
			select {
			case err = <-answers:
			case <-time.After(5 * time.Second): // half of what the locked one may wait
				t.Fatal("a locked row held up others")
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		if err := <-answers; err != nil {
			t.Fatal(err)
		}
	}
}
