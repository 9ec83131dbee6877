package crdt_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/flow/crdt"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/internal/testbed"
)

var ok = testbed.OK

// TestDeltasByOutboxAndQueue: a region keeps a set in PostgreSQL. Each transaction replaces its
// state and adds the delta to an outbox, which sends it to a queue on Redis Streams, here twice.
// The other region merges it. A rolled back addition neither remains nor arrives, and the next
// addition reuses its number.
func TestDeltasByOutboxAndQueue(t *testing.T) {
	t.Parallel()
	ctx, at := t.Context(), testbed.Postgres(t).URL()
	client, err := redis.Dial("redis://" + testbed.Redis(t).Addr())
	ok(t, err)
	defer client.Close()
	sink := redis.NewStream(client, nil)
	twice := outbox.Func(func(ctx context.Context, m outbox.Message) error {
		again := m
		again.ID += "/again"
		return errors.Join(sink.Publish(ctx, []driver.Message{m, again})...)
	})
	box := outbox.Table{Slices: 2}
	relay, err := outbox.Start(ctx, at, box, twice, nil)
	ok(t, err)
	defer func() { ok(t, relay.Close(context.WithoutCancel(ctx))) }()
	there := crdt.NewStore(redis.NewLattices(client, "us/"))
	merge := func(ctx context.Context, m queue.Received) error {
		var delta crdt.ORSet
		if err := crdt.Decode(m.Payload, &delta); err != nil {
			return queue.Dead(err)
		}
		return there.Merge(ctx, m.Key, &delta)
	}
	merged := make(chan string, 100)
	c, err := queue.New(ctx, redis.NewQueue(client, nil), "deltas", func(ctx context.Context, m queue.Received) error {
		err := merge(ctx, m)
		if err == nil {
			merged <- m.ID
		}
		return err
	}, nil)
	ok(t, err)
	defer func() { ok(t, c.Close(context.WithoutCancel(ctx))) }()

	pool, err := pgxpool.New(ctx, at)
	ok(t, err)
	defer pool.Close()
	_, err = pool.Exec(ctx, "create table replicated (name text primary key, state bytea not null)")
	ok(t, err)
	var empty, here, copied crdt.ORSet
	state, err := crdt.Encode(&empty)
	ok(t, err)
	_, err = pool.Exec(ctx, "insert into replicated values ('tags', $1)", state)
	ok(t, err)
	errBack := errors.New("rolled back")
	write := func(tx pgx.Tx, operation func(tags *crdt.ORSet) (delta crdt.ORSet, err error)) error {
		var state []byte
		var tags crdt.ORSet
		if err := tx.QueryRow(ctx, "select state from replicated where name = 'tags' for update").Scan(&state); err != nil {
			return err
		}
		if err := crdt.Decode(state, &tags); err != nil {
			return err
		}
		delta, err := operation(&tags)
		if err != nil {
			return err
		}
		state, err = crdt.Encode(&tags)
		if err != nil {
			return err
		}
		message, err := crdt.Encode(&delta)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "update replicated set state = $1 where name = 'tags'", state); err != nil {
			return err
		}
		return box.Add(ctx, postgres.Tx(tx), outbox.Message{Topic: "deltas", Key: "tags", Payload: message})
	}
	change := func(operation func(tags *crdt.ORSet) (delta crdt.ORSet, err error), end error) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return errors.Join(write(tx, operation), end) })
	}
	add := func(tag string) func(*crdt.ORSet) (crdt.ORSet, error) {
		return func(tags *crdt.ORSet) (crdt.ORSet, error) { return tags.Add("eu", tag) }
	}
	for i := range 10 {
		if err := change(add(fmt.Sprint("lost ", i)), errBack); !errors.Is(err, errBack) {
			t.Fatal(err)
		}
		ok(t, change(add(fmt.Sprint(i)), nil))
	}
	ok(t, change(func(tags *crdt.ORSet) (crdt.ORSet, error) { return tags.Remove("3"), nil }, nil))

	ids := map[string]bool{}
	for deadline := time.After(time.Minute); len(ids) < 22; {
		select {
		case id := <-merged:
			ids[id] = true
		case <-deadline:
			t.Fatalf("%d messages were merged, want 22", len(ids))
		}
	}
	ok(t, pool.QueryRow(ctx, "select state from replicated").Scan(&state))
	ok(t, crdt.Decode(state, &here))
	ok(t, there.Load(ctx, "tags", &copied))
	if want := []string{"0", "1", "2", "4", "5", "6", "7", "8", "9"}; !slices.Equal(here.Elements(), want) || !slices.Equal(copied.Elements(), want) {
		t.Errorf("the regions have %q and %q, want %q", here.Elements(), copied.Elements(), want)
	}
}
