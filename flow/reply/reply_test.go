package reply_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/flow/reply"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/observe"
)

const bound = 30 * time.Second

// silent has a lease longer than any test: a handler runs again only if it fails.
var silent = &queue.Options{MinPause: time.Millisecond, MaxPause: 10 * time.Millisecond, Lease: time.Hour, Hooks: &observe.Queue{Log: observe.Silent}}

var ok = testbed.OK

// world is a database of effects and results, and a queue elsewhere or in it.
type world struct {
	*databases.DB
	queue driver.Queue
	send  reply.Send
}

func TestReply(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		for name, test := range map[string]func(*testing.T, world){
			"a call has its result": testCall, "a repeated call": testRepeated, "a refusal": testRefusal, "another message": testMismatch,
			"a lost answer of the commit": testLostCommit, "cancel": testCancel, "cancel against handlers": testCancelRace,
			"a call ends with its context": testContext, "a result that cannot be read": testUnreadable, "results are swept": testSweep, "what cannot be": testBadInput, "costs": testCosts, "a notifier": testNotifier,
		} {
			for _, where := range []string{"in the database", "elsewhere"} {
				t.Run(name+", the queue is "+where, func(t *testing.T) {
					t.Parallel()
					test(t, newWorld(t, open(t), where == "elsewhere"))
				})
			}
		}
	})
}

func newWorld(t *testing.T, db *databases.DB, elsewhere bool) world {
	db.Do(t, reply.Table{}.Create)
	db.Do(t, reply.Table{}.Create)
	db.Exec(t, `create table effect (id varchar(64) not null)`)
	if elsewhere {
		q := memory.NewQueue()
		return world{db, q, func(_ context.Context, m queue.Message) error { return q.Add("calls", m) }}
	}
	db.Do(t, queue.Table{}.Create)
	return world{db, queue.FromTable(db, queue.Table{}, nil), sendIn(db)}
}

// sendIn adds messages to the queue in a database.
func sendIn(db driver.Beginner[driver.SQL]) reply.Send {
	return func(ctx context.Context, m queue.Message) error {
		return queue.Tx(ctx, db, nil, func(ctx context.Context, tx driver.SQL) error { return queue.Table{}.Add(ctx, tx, "calls", m) })
	}
}

// consume handles the calls of a queue until the test ends.
func (w world) consume(t *testing.T, h queue.Handler) {
	t.Helper()
	c, err := queue.New(t.Context(), w.queue, "calls", h, silent)
	ok(t, err)
	t.Cleanup(func() { _ = c.Close(context.WithoutCancel(t.Context())) })
}

// effect applies the effect of a message, and returns its payload twice.
func effect(ctx context.Context, tx driver.SQL, m queue.Received) ([]byte, error) {
	_, err := tx.Exec(ctx, `insert into effect (id) values ('`+m.ID+`')`)
	return append(m.Payload, m.Payload...), err
}

func (w world) effects(t *testing.T, id string) int64 {
	return databases.One[int64](t, w.DB, `select count(*) from effect where id = '`+id+`'`)
}

// wantResult requires a result, and one effect.
func (w world) wantResult(t *testing.T, id string, got []byte, err error, want string) {
	t.Helper()
	if err != nil || string(got) != want || w.effects(t, id) != 1 {
		t.Errorf("call %s: %.50q, %v, %d effects; want %q", id, got, err, w.effects(t, id), want)
	}
}

func call(id string) queue.Message {
	return queue.Message{ID: id, Key: "k" + id[:1], Payload: []byte(id)}
}

func testCall(t *testing.T, w world) {
	w.consume(t, reply.Handler(w.DB, reply.Table{}, nil, effect))
	caller := reply.NewCaller(w.DB, reply.Table{}, nil, w.send)
	var calls sync.WaitGroup
	for n := range 20 {
		calls.Go(func() {
			id := fmt.Sprint(n)
			got, err := caller.Call(t.Context(), call(id))
			w.wantResult(t, id, got, err, id+id)
		})
	}
	calls.Wait()
	got, err := caller.Call(t.Context(), queue.Message{ID: "nothing"})
	w.wantResult(t, "nothing", got, err, "")
}

// testRepeated: after its caller has left, another process repeats the call, before and after the
// result; the message is delivered again, too.
func testRepeated(t *testing.T, w world) {
	caller := reply.NewCaller(w.DB, reply.Table{}, nil, w.send)
	ctx, leave := context.WithCancel(t.Context())
	sent := make(chan struct{})
	first := reply.NewCaller(w.DB, reply.Table{}, nil, func(ctx context.Context, m queue.Message) error {
		defer close(sent)
		return w.send(ctx, m)
	})
	gone := make(chan error)
	go func() {
		_, err := first.Call(ctx, call("1"))
		gone <- err
	}()
	<-sent
	leave()
	if err := <-gone; interlock.Kind(err) != interlock.Uncertain || !errors.Is(err, context.Canceled) {
		t.Errorf("the caller that has gone: %v", err)
	}
	w.consume(t, reply.Handler(w.DB, reply.Table{}, nil, effect))
	for range 3 {
		got, err := caller.Call(t.Context(), call("1"))
		w.wantResult(t, "1", got, err, "11")
	}
	ok(t, w.send(t.Context(), call("1")))
	got, err := caller.Call(t.Context(), queue.Message{ID: "2", Key: "k1"}) // after it in its key
	w.wantResult(t, "2", got, err, "")
	if n := w.effects(t, "1"); n != 1 {
		t.Errorf("%d effects", n)
	}
}

func testRefusal(t *testing.T, w world) {
	var runs atomic.Int32
	w.consume(t, reply.Handler(w.DB, reply.Table{}, nil, func(ctx context.Context, tx driver.SQL, m queue.Received) ([]byte, error) {
		if _, err := effect(ctx, tx, m); err != nil {
			return nil, err
		}
		if runs.Add(1) == 1 {
			return nil, errors.New("it fails, and is tried again")
		}
		return nil, fmt.Errorf("reserve: %w", reply.Refuse("no seats"))
	}))
	caller := reply.NewCaller(w.DB, reply.Table{}, nil, w.send)
	for range 2 {
		var refused *reply.RefusedError
		if _, err := caller.Call(t.Context(), call("1")); !errors.As(err, &refused) || refused.Reason != "no seats" || interlock.Kind(err) != interlock.Definite {
			t.Errorf("%v", err)
		}
	}
	if n := w.effects(t, "1"); n != 0 || runs.Load() != 2 {
		t.Errorf("%d effects, %d runs", n, runs.Load())
	}
}

// testMismatch: caller and handler reject the id of another message.
func testMismatch(t *testing.T, w world) {
	w.consume(t, reply.Handler(w.DB, reply.Table{}, nil, effect))
	caller := reply.NewCaller(w.DB, reply.Table{}, nil, w.send)
	got, err := caller.Call(t.Context(), call("1"))
	w.wantResult(t, "1", got, err, "11")
	other := queue.Message{ID: "1", Key: "k1", Payload: []byte("other")}
	if _, err := caller.Call(t.Context(), other); !errors.Is(err, reply.ErrMismatch) || interlock.Kind(err) != interlock.Definite {
		t.Errorf("%v", err)
	}
	ok(t, w.send(t.Context(), other))
	got, err = caller.Call(t.Context(), queue.Message{ID: "2", Key: "k1"}) // after it in its key
	w.wantResult(t, "2", got, err, "")
	if n := w.effects(t, "1"); n != 1 {
		t.Errorf("%d effects", n)
	}
}

// testLostCommit: a handler whose commit has no answer runs again, and finds the result. Its
// message does not become a dead letter.
func testLostCommit(t *testing.T, w world) {
	var commits atomic.Int32
	db := databases.Unanswered(w.DB, func() bool { return commits.Add(1) <= 3 })
	w.consume(t, reply.Handler(db, reply.Table{}, nil, effect))
	caller := reply.NewCaller(w.DB, reply.Table{}, nil, w.send)
	for _, id := range []string{"1", "2", "3", "4"} {
		got, err := caller.Call(t.Context(), call(id))
		w.wantResult(t, id, got, err, id+id)
	}
}

// testCancel: a message is cancelled before, while and after it is handled.
func testCancel(t *testing.T, w world) {
	caller := reply.NewCaller(w.DB, reply.Table{}, nil, w.send)
	cancel := func(id string, want bool) {
		t.Helper()
		if was, err := caller.Cancel(t.Context(), id); err != nil || was != want {
			t.Errorf("cancel %s: %v, %v", id, was, err)
		}
	}
	wantCancelled := func(id string) {
		t.Helper()
		if _, err := caller.Call(t.Context(), call(id)); !errors.Is(err, reply.ErrCancelled) || interlock.Kind(err) != interlock.Definite || w.effects(t, id) != 0 {
			t.Errorf("call %s: %v, %d effects", id, err, w.effects(t, id))
		}
	}
	ok(t, w.send(t.Context(), call("1")))
	cancel("1", true)
	begun, go_on := make(chan struct{}), make(chan struct{})
	w.consume(t, reply.Handler(w.DB, reply.Table{}, nil, func(ctx context.Context, tx driver.SQL, m queue.Received) ([]byte, error) {
		if m.ID == "2" {
			close(begun)
			<-go_on
		}
		return effect(ctx, tx, m)
	}))
	ok(t, w.send(t.Context(), call("2")))
	<-begun
	cancel("2", true)
	close(go_on)
	got, err := caller.Call(t.Context(), queue.Message{ID: "3", Key: "k2"}) // after it in its key
	w.wantResult(t, "3", got, err, "")
	cancel("3", false)
	cancel("2", true)
	wantCancelled("1")
	wantCancelled("2")
}

// testCancelRace: in any order of events, a message is cancelled without effects, or has one effect
// and a result; all callers get the same answer.
func testCancelRace(t *testing.T, w world) {
	const calls = 40
	// A caller leaves, and cancels, as soon as the handler reaches a point: its message is sent,
	// the effect begins, or the effect is there and is not committed. Other callers leave before
	// they send, or do not leave.
	const before, sent, begun, ended, never = 0, 1, 2, 3, 4
	var leave [calls]context.CancelFunc
	at := func(id string, point int) {
		if n, _ := strconv.Atoi(id); n%5 == point {
			leave[n]()
		}
	}
	handle := func(ctx context.Context, tx driver.SQL, m queue.Received) ([]byte, error) {
		at(m.ID, begun)
		defer at(m.ID, ended)
		return effect(ctx, tx, m)
	}
	caller := reply.NewCaller(w.DB, reply.Table{}, nil, func(ctx context.Context, m queue.Message) error {
		defer at(m.ID, sent)
		return w.send(ctx, m)
	})
	var cancelled, handled atomic.Int32
	race := func(n int, ctx context.Context) {
		id := fmt.Sprint(n)
		at(id, before)
		_, _ = caller.Call(ctx, call(id)) // may end before the message is sent, or with a result
		was, err := caller.Cancel(t.Context(), id)
		if err != nil {
			t.Errorf("cancel %s: %v", id, err)
			return
		}
		got, err := caller.Call(t.Context(), call(id))
		if was {
			cancelled.Add(1)
			if !errors.Is(err, reply.ErrCancelled) || w.effects(t, id) != 0 {
				t.Errorf("call %s was cancelled: %q, %v, %d effects", id, got, err, w.effects(t, id))
			}
			return
		}
		handled.Add(1)
		w.wantResult(t, id, got, err, id+id)
	}
	var contexts [calls]context.Context
	for n := range calls {
		contexts[n], leave[n] = context.WithCancel(t.Context())
	}
	for range 3 {
		w.consume(t, reply.Handler(w.DB, reply.Table{}, nil, handle))
	}
	var all sync.WaitGroup
	for n, ctx := range contexts {
		all.Go(func() { race(n, ctx) })
	}
	all.Wait()
	if c, h := cancelled.Load(), handled.Load(); c < calls/5 || h < calls/5 {
		t.Errorf("%d cancelled, %d handled, want %d of each at least", c, h, calls/5)
	}
}

func testContext(t *testing.T, w world) {
	ctx, leave := context.WithCancel(t.Context())
	caller := reply.NewCaller(w.DB, reply.Table{}, nil, func(context.Context, queue.Message) error {
		leave()
		return nil
	})
	if _, err := caller.Call(ctx, call("1")); interlock.Kind(err) != interlock.Uncertain || !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "same id") {
		t.Errorf("%v", err)
	}
	failed := errors.New("the broker is away")
	caller = reply.NewCaller(w.DB, reply.Table{}, nil, func(context.Context, queue.Message) error { return failed })
	if _, err := caller.Call(t.Context(), call("2")); err != failed {
		t.Errorf("%v", err)
	}
}

// testUnreadable: the database refuses to read the result of a message that was sent. It may have effects.
func testUnreadable(t *testing.T, w world) {
	caller := reply.NewCaller(w.DB, reply.Table{}, nil, func(context.Context, queue.Message) error {
		w.Exec(t, `drop table interlock_reply`)
		return nil
	})
	_, err := caller.Call(t.Context(), call("1"))
	testbed.WantKind(t, err, interlock.Uncertain, interlock.ErrUncertain)
	if !strings.Contains(err.Error(), "a table is missing") {
		t.Errorf("%v", err)
	}
}

func testSweep(t *testing.T, w world) {
	caller := reply.NewCaller(w.DB, reply.Table{}, nil, w.send)
	for _, id := range []string{"1", "2", "3"} {
		if was, err := caller.Cancel(t.Context(), id); err != nil || !was {
			t.Fatal(was, err)
		}
	}
	sweep := func(retention time.Duration, limit, want int) {
		t.Helper()
		w.Do(t, func(ctx context.Context, db driver.SQL) error {
			n, err := reply.Table{Retention: retention}.Sweep(ctx, db, limit)
			if n != want {
				t.Errorf("%d swept, want %d", n, want)
			}
			return err
		})
	}
	sweep(0, 100, 0)
	sweep(time.Hour, 100, 0)
	sweep(time.Microsecond, 2, 2)
	sweep(time.Microsecond, 100, 1)
}

func testBadInput(t *testing.T, w world) {
	caller := reply.NewCaller(w.DB, reply.Table{}, nil, w.send)
	for _, id := range []string{"", strings.Repeat("x", 256)} {
		if _, err := caller.Call(t.Context(), queue.Message{ID: id}); interlock.Kind(err) != interlock.Bug {
			t.Errorf("call %.5q: %v", id, err)
		}
		if _, err := caller.Cancel(t.Context(), id); interlock.Kind(err) != interlock.Bug {
			t.Errorf("cancel %.5q: %v", id, err)
		}
	}
	missing := reply.NewCaller(w.DB, reply.Table{Name: "missing"}, nil, w.send)
	if _, err := missing.Call(t.Context(), call("1")); interlock.Kind(err) != interlock.Definite || !strings.Contains(err.Error(), "interlock schema") {
		t.Errorf("without a table: %v", err)
	}
	for _, table := range []reply.Table{{Retention: -1}, {Name: "a b.c.d"}} {
		w.Do(t, func(ctx context.Context, db driver.SQL) error {
			if _, err := table.Sweep(ctx, db, 1); interlock.Kind(err) != interlock.Bug {
				t.Errorf("%+v: %v", table, err)
			}
			return nil
		})
	}
	w.consume(t, reply.Handler(w.DB, reply.Table{}, nil, func(_ context.Context, _ driver.SQL, m queue.Received) ([]byte, error) {
		return make([]byte, reply.MaxResult+2-len(m.ID)), nil
	}))
	ok(t, w.send(t.Context(), call("1"))) // its result is too long, and its key continues
	if got, err := caller.Call(t.Context(), queue.Message{ID: "22", Key: "k1"}); err != nil || len(got) != reply.MaxResult {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if was, err := caller.Cancel(t.Context(), "1"); err != nil || !was {
		t.Errorf("it has a result: %v, %v", was, err)
	}
}

// notifier records notifications, and counts listeners.
type notifier struct {
	memory.Notifier
	mu        sync.Mutex
	sent      []string
	listeners atomic.Int32
}

func (n *notifier) Notify(names ...string) {
	n.mu.Lock()
	n.sent = append(n.sent, names...)
	n.mu.Unlock()
	n.Notifier.Notify(names...)
}

func (n *notifier) Listen(each func(string)) func() {
	n.listeners.Add(1)
	stop := n.Notifier.Listen(each)
	return func() { stop(); n.listeners.Add(-1) }
}

// testNotifier: the handler notifies with the id after its commit, as Cancel does, and calls stop listening.
func testNotifier(t *testing.T, w world) {
	b := &notifier{}
	w.consume(t, reply.Handler(w.DB, reply.Table{}, b, effect))
	caller := reply.NewCaller(w.DB, reply.Table{}, b, w.send)
	got, err := caller.Call(t.Context(), call("1"))
	w.wantResult(t, "1", got, err, "11")
	_, err = caller.Cancel(t.Context(), "2")
	ok(t, err)
	testbed.Eventually(t, "both have notified", bound, func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.sent) == 2
	})
	if b.listeners.Load() != 0 || !slices.Contains(b.sent, "1") || !slices.Contains(b.sent, "2") {
		t.Errorf("%d listeners, sent %v", b.listeners.Load(), b.sent)
	}
}

// testCosts: beside the effects, a message costs three statements in their transaction.
func testCosts(t *testing.T, w world) {
	db := &databases.Counted{BeginnerAt: w.DB}
	handle := reply.Handler(db, reply.Table{}, nil, effect)
	m := queue.Received{QueueMessage: call("1")}
	for _, want := range [][3]int64{{4, 1, 0}, {1, 0, 1}} { // a new message, a repeated one
		db.Reset()
		ok(t, handle(t.Context(), m))
		if got := [3]int64{db.Statements.Load(), db.Commits.Load(), db.Rollbacks.Load()}; got != want {
			t.Errorf("%d statements, commits and rollbacks; want %d", got, want)
		}
	}
}

// mute is a database that does not answer reads.
type mute struct{ driver.SQL }

func (m mute) Begin(context.Context) (driver.Tx[driver.SQL], error) {
	return nil, errors.ErrUnsupported
}
func (m mute) Autocommit(driver.Isolation) driver.SQL { return m }
func (mute) Dialect() driver.Dialect                  { return driver.Postgres }
func (mute) Query(context.Context, string, []any, func(func(...any) error) error) error {
	return &interlock.Error{Op: "run statement", Driver: "postgres", Kind: interlock.Uncertain, Err: errors.New("no answer")}
}

// TestReadWithoutAnswer: the message was not sent, so it has no effects.
func TestReadWithoutAnswer(t *testing.T) {
	c := reply.NewCaller[driver.SQL](mute{}, reply.Table{}, nil, func(context.Context, queue.Message) error { t.Error("it was sent"); return nil })
	if _, err := c.Call(t.Context(), call("1")); interlock.Kind(err) != interlock.Retryable {
		t.Errorf("%v", err)
	}
}
