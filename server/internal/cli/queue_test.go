package cli_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/observe"
)

var unhappyMessages = []queue.Message{{ID: "m1", Key: "order/7", Payload: []byte("{}")}, {ID: "m2", Key: "order/7"}, {ID: "m3", Key: "order/8"}}

// handleUnhappily parks order/8, and makes dead letters of the other messages.
func handleUnhappily(_ context.Context, m queue.Received) error {
	if m.Key == "order/8" {
		return queue.Park(errors.New("no such warehouse"))
	}
	return queue.Dead(errors.New("no such customer"))
}

// unhappyQueue creates the queue "orders" with two dead letters of order/7, and order/8 parked.
func unhappyQueue(t *testing.T, db *databases.DB) {
	t.Helper()
	var table queue.Table
	db.Do(t, table.Create)
	db.Do(t, func(ctx context.Context, sql driver.SQL) error {
		return table.Add(ctx, sql, "orders", unhappyMessages...)
	})
	c, err := queue.New(t.Context(), queue.FromTable(db, table, nil), "orders", handleUnhappily, &queue.Options{Hooks: &observe.Queue{Log: observe.Silent}})
	testbed.OK(t, err)
	testbed.Eventually(t, "the messages are settled", patience, func() (settled bool) {
		db.Do(t, func(ctx context.Context, sql driver.SQL) error {
			all, err := table.Status(ctx, sql)
			settled = len(all) == 1 && all[0].Dead == 2 && all[0].Parked == 1 && all[0].Leased == 0
			return err
		})
		return settled
	})
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	testbed.OK(t, c.Close(ctx))
}

// testSilentDiscard discards a dead letter over a path on which all replies are lost while it waits for another
// operator: the command ends with its --timeout, and does not say that the change may be done, because it was not
// committed.
func testSilentDiscard(t *testing.T, db *databases.DB, url string, place int64) {
	t.Helper()
	const timeout = 2 * time.Second
	path := testbed.NewProxy(t, db.Server.Addr())
	other := db.Begun(t, driver.SessionIsolation)
	testbed.OK(t, queue.Table{}.Discard(t.Context(), other, "orders", queue.By{Actor: "bob", Reason: "x"}, place))
	ended := make(chan time.Duration, 1)
	go func() {
		began := time.Now()
		if code, text, said := outcome(t, "queue", "discard", "orders", fmt.Sprint(place), "--reason", "x", "--timeout", timeout.String(),
			"--backend", strings.Replace(url, db.Server.Addr(), path.Addr(), 1)); code != 69 || strings.Contains(said, "may be done") {
			t.Errorf("exit code %d: %s%s", code, text, said)
		}
		ended <- time.Since(began)
	}()
	testbed.Eventually(t, "the command waits for the dead letter", patience, func() bool { return db.Waiting(t) > 0 || len(ended) > 0 })
	path.DropReplies()
	if took := <-ended; took > timeout+8*time.Second {
		t.Errorf("it took %v", took)
	}
	path.Heal()
	testbed.OK(t, other.Rollback(t.Context()))
}

// TestQueue lists queues and repairs one.
func TestQueue(t *testing.T) {
	t.Parallel()
	program(t)
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		url := shopURL(db)
		queueOf := func(code int, args ...string) (string, string) {
			t.Helper()
			return run(t, code, append(append([]string{"queue"}, args...), "--backend", url)...)
		}
		queueOf(78, "ls")
		unhappyQueue(t, db)
		shown := func(messages, dead, parked int) {
			t.Helper()
			var all []struct {
				Queue                  string
				Messages, Dead, Parked int
			}
			text, _ := queueOf(0, "ls", "-o", "json")
			if err := json.Unmarshal([]byte(text), &all); err != nil || len(all) != 1 || all[0].Queue != "orders" || all[0].Messages != messages || all[0].Dead != dead || all[0].Parked != parked {
				t.Errorf("%v: %s", err, text)
			}
		}
		shown(1, 2, 1)
		var letters []struct {
			Place   int64
			ID, Key string
			Payload []byte
		}
		text, _ := queueOf(0, "letters", "orders", "-o", "json")
		if err := json.Unmarshal([]byte(text), &letters); err != nil || len(letters) != 2 || letters[0].ID != "m1" || letters[0].Key != "order/7" || string(letters[0].Payload) != "{}" {
			t.Fatalf("%v: %s", err, text)
		}
		for _, args := range [][]string{{"letters"}, {"letters", "orders", "--limit", "0"}, {"replay", "orders", "--reason", "x"}, {"replay", "orders", "m1", "--reason", "x"}, {"discard"}, {"resume", "orders"},
			{"replay", "orders", fmt.Sprint(letters[0].Place)}, {"discard", "orders", fmt.Sprint(letters[0].Place), "--reason", " "}, {"resume", "orders", "order/8"}, {"stuck", "orders", "--limit", "0"},
			{"show", "orders", "m1"}, {"edit", "orders", fmt.Sprint(letters[0].Place), "--reason", "x"}, {"edit", "orders", fmt.Sprint(letters[0].Place), "--payload", "x"}} {
			queueOf(64, args...)
		}
		why := []string{"--reason", "fixed", "--by", "alice"}
		act := func(code int, args ...string) string {
			t.Helper()
			text, _ := queueOf(code, append(args, why...)...)
			return text
		}
		first, second := fmt.Sprint(letters[0].Place), fmt.Sprint(letters[1].Place)
		act(1, "replay", "orders", "999999")
		act(1, "discard", "orders", second, "999999")
		act(1, "edit", "orders", "999999", "--payload", "x")
		act(1, "resume", "orders", "order/7")
		queueOf(1, "show", "orders", "999999")
		shown(1, 2, 1)
		if text, _ := queueOf(0, "stuck", "orders"); !strings.Contains(text, "order/8  m3  0         parked  no such warehouse") {
			t.Errorf("stuck: %q", text)
		}
		if text, said := run(t, 0, "dlq", "queue", "orders", "--backend", url, "--limit", "1"); !strings.Contains(text, "m1") || strings.Contains(text, "m2") || !strings.Contains(said, "--after "+first) {
			t.Errorf("dlq queue: %q, %q", text, said)
		}
		act(64, "edit", "orders", first, "--payload", strings.Repeat("x", queue.MaxPayload+1))
		run(t, 78, "dlq", "queue", "orders", "--table", "other", "--backend", url)
		act(0, "edit", "orders", first, "--payload", `{"customer":7}`)
		if text, _ := queueOf(0, "show", "orders", first); !strings.Contains(text, `{"customer":7}`) || !strings.Contains(text, "no such customer") {
			t.Errorf("show: %q", text)
		}
		act(0, "replay", "orders", first)
		testSilentDiscard(t, db, url, letters[1].Place)
		act(0, "discard", "orders", second)
		if text := act(0, "resume", "orders", "order/8"); text != "resumed: order/8\n" {
			t.Errorf("resumed: %q", text)
		}
		if n := databases.One[int64](t, db, `select count(*) from interlock_queue_audit where reason = 'fixed' and done_by = 'alice' and queue = 'orders'`); n != 4 {
			t.Errorf("%d actions are recorded, want 4", n)
		}
		if n := databases.One[int64](t, db, `select count(*) from interlock_queue where message_id = 'm1' and payload = '{"customer":7}'`); n != 1 {
			t.Errorf("%d replayed messages have the edited payload", n)
		}
		shown(2, 0, 0)
		if text, told := queueOf(0, "letters", "orders"); text != "" || told != "interlock: there are no dead letters in orders\n" {
			t.Errorf("letters: %q, and %q", text, told)
		}
	}, databases.Pgx, databases.Maria)
}

// TestQueueOnRedis lists the queues of a Redis, and repairs one.
func TestQueueOnRedis(t *testing.T) {
	t.Parallel()
	program(t)
	url := backends["redis"](t)
	client, err := redis.Dial(url)
	testbed.OK(t, err)
	t.Cleanup(client.Close)
	orders := redis.NewQueue(client, nil)
	testbed.OK(t, orders.Add(t.Context(), "orders", unhappyMessages...))
	c, err := queue.Open(t.Context(), url, "orders", queue.Table{}, handleUnhappily, &queue.Options{Hooks: &observe.Queue{Log: observe.Silent}})
	testbed.OK(t, err)
	testbed.Eventually(t, "the messages are settled", patience, func() bool {
		all, err := orders.Status(t.Context())
		return err == nil && len(all) == 1 && all[0].Dead == 2 && all[0].Parked == 1 && all[0].Leased == 0
	})
	testbed.OK(t, c.Close(t.Context()))
	queueOf := func(code int, args ...string) string {
		t.Helper()
		text, _ := run(t, code, append(append([]string{"queue"}, args...), "--backend", url)...)
		return text
	}
	for _, c := range []struct {
		code int
		args []string
		want string // in the output
	}{
		{0, []string{"ls"}, "orders  1 "},
		{0, []string{"stuck", "orders"}, "order/8  m3  0         parked  no such warehouse"},
		{0, []string{"letters", "orders", "--key", "order/7"}, "no such customer"},
		{0, []string{"letters", "orders", "--key", "order/8"}, ""},
		{0, []string{"show", "orders", "1"}, "no such customer"},
		{1, []string{"show", "orders", "3"}, ""},
		{78, []string{"edit", "orders", "1", "--payload", "x", "--reason", "x"}, ""},
		{1, []string{"replay", "orders", "1", "3", "--reason", "x"}, ""},
		{64, []string{"replay", "orders", "1"}, ""},
		{0, []string{"replay", "orders", "1", "--reason", "x"}, "replayed: orders 1"},
		{0, []string{"discard", "orders", "2", "--reason", "x"}, "discarded: orders 2"},
		{1, []string{"resume", "orders", "order/7", "--reason", "x"}, ""},
		{0, []string{"resume", "orders", "order/8", "--reason", "x"}, "resumed: order/8"},
		{0, []string{"ls", "-o", "json"}, `"messages":2`},
	} {
		if text := queueOf(c.code, c.args...); !strings.Contains(text, c.want) {
			t.Errorf("%v: %q, want %q", c.args, text, c.want)
		}
	}
}
