package proxy_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
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
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/guard/proxy"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/observe"
)

// testCallsAreInOrder lets callers with tokens of all ages race, through several instances: the API
// receives one call at a time, with rising tokens.
func testCallsAreInOrder(t *testing.T, db *databases.DB) {
	var callers []*proxy.Caller
	for range 3 {
		callers = append(callers, caller(t, db.Again(t), nil))
	}
	race(t, callers)
}

// TestLooseCallsAreInOrder in one process.
func TestLooseCallsAreInOrder(t *testing.T) { race(t, []*proxy.Caller{looseCaller()}) }

func race(t *testing.T, callers []*proxy.Caller) {
	api, by := newAPI(t, nil), transport(t)
	var all sync.WaitGroup
	var sent, refused atomic.Int64
	for lane := range 6 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(5, uint64(lane)))
			for i := range 12 {
				n := i + 1 + r.IntN(6)
				_, err := callers[r.IntN(len(callers))].Do(t.Context(), grant(n, bound), "api", fmt.Sprint(lane, i), post(by, api.URL, strconv.Itoa(n)))
				switch {
				case err == nil:
					sent.Add(1)
				case errors.Is(err, interlock.ErrStaleToken):
					refused.Add(1)
				case interlock.Kind(err) != interlock.Retryable: // a deadlock in Enter is not the caller's error
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	numbers := make([]int, 0, 72)
	for _, text := range api.seen() {
		n, _ := strconv.Atoi(text)
		numbers = append(numbers, n)
	}
	if !slices.IsSorted(numbers) || api.most.Load() != 1 || int(sent.Load()) != len(numbers) || sent.Load() == 0 || refused.Load() == 0 {
		t.Errorf("%d sent, %d refused, %d at once: %v", sent.Load(), refused.Load(), api.most.Load(), numbers)
	}
	for _, c := range callers {
		if c.Busy() != 0 {
			t.Errorf("%d resources are remembered", c.Busy())
		}
	}
}

// testOperationsAreMadeOnce: an answered operation is not sent again, under any claim.
// One that may have been sent is in doubt until it is settled, or sent again with the
// same key.
func testOperationsAreMadeOnce(t *testing.T, db *databases.DB) {
	statuses := []int{201, 503, 500, 404}
	api := newAPI(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(statuses[0]); statuses = statuses[1:] })
	by := transport(t)
	careful, bold := caller(t, db, nil), caller(t, db, &proxy.Options{Repeat: true})
	do := func(c *proxy.Caller, n int, operation string) (int, error) {
		return c.Do(t.Context(), grant(n, bound), "api", operation, post(by, api.URL, operation))
	}
	want := func(status int, err error, wanted int) {
		t.Helper()
		if err != nil || status != wanted {
			t.Errorf("%d %v, want %d", status, err, wanted)
		}
	}
	status, err := do(careful, 1, "a")
	want(status, err, 201)
	for n, c := range map[int]*proxy.Caller{1: careful, 2: bold} {
		var done *proxy.DoneError
		if _, err := do(c, n, "a"); !errors.As(err, &done) || done.Status != 201 || interlock.Kind(err) != interlock.Definite {
			t.Errorf("made again: %v", err)
		}
	}
	status, err = do(careful, 3, "b")
	want(status, err, 503)
	var doubt *proxy.InDoubtError
	if _, err := do(careful, 3, "b"); !errors.As(err, &doubt) || doubt.Status != 503 || !errors.Is(err, interlock.ErrUncertain) {
		t.Errorf("in doubt, and then: %v", err)
	}
	status, err = do(bold, 3, "b")
	want(status, err, 500)
	status, err = do(bold, 4, "b")
	want(status, err, 404)
	if _, err := do(bold, 4, "b"); interlock.Kind(err) != interlock.Definite {
		t.Errorf("settled, and then: %v", err)
	}
	if got := fmt.Sprint(api.seen()); got != "[a b b b]" {
		t.Errorf("sent %s", got)
	}
	if keys := api.seenKeys(); keys[1] != proxy.Key("api", "b") || keys[2] != keys[1] || keys[3] != keys[1] || keys[0] == keys[1] || len(keys[0]) != 64 {
		t.Errorf("keys %v", keys)
	}
	if r := record(t, db, "b"); r.Attempts != 3 || r.Status != 404 || !r.Settled || r.Token != token(4) || time.Since(r.Called).Abs() > time.Hour {
		t.Errorf("recorded %+v", r)
	}
}

// testStatusesMeanWhatTheTableSays: final calls are not sent again, refused ones are,
// and the rest is in doubt; another API has another table.
func testStatusesMeanWhatTheTableSays(t *testing.T, db *databases.DB) {
	const final, refused, doubt = "final", "refused", "in doubt"
	after := func(o *proxy.Options, status int) string {
		operation := fmt.Sprintf("%d %v", status, o == nil)
		again := 0
		do := func(o *proxy.Options, answer int) error {
			_, err := caller(t, db, o).Do(t.Context(), grant(1, bound), "api", operation,
				func(context.Context, *proxy.Call) (int, error) { again++; return answer, nil })
			return err
		}
		ok(t, do(o, status))
		var done *proxy.DoneError
		var unsure *proxy.InDoubtError
		switch err := do(o, 200); {
		case err == nil && again == 2:
			return refused
		case errors.As(err, &done) && done.Status == status && again == 1:
			return final
		case errors.As(err, &unsure) && unsure.Status == status && again == 1:
			ok(t, do(&proxy.Options{Repeat: true}, 429)) // refused: the first attempt stays in doubt
			if errors.As(do(o, 200), &unsure) {
				return doubt
			}
		}
		return "neither"
	}
	for status, want := range map[int]string{
		200: final, 204: final, 400: final, 404: final, 410: final, 422: final,
		401: refused, 403: refused, 425: refused, 429: refused,
		302: doubt, 408: doubt, 409: doubt, 500: doubt, 502: doubt, 503: doubt, 504: doubt,
	} {
		if got := after(nil, status); got != want {
			t.Errorf("after %d the call is %s, want %s", status, got, want)
		}
	}
	other := &proxy.Options{Statuses: map[int]proxy.Outcome{409: proxy.Final, 403: proxy.Final, 404: proxy.NotDone, 202: proxy.Unknown}}
	for status, want := range map[int]string{409: final, 403: final, 404: refused, 202: doubt, 429: refused} {
		if got := after(other, status); got != want {
			t.Errorf("with another table: after %d the call is %s, want %s", status, got, want)
		}
	}
}

// testWhatIsKnownToBeUnsentLeavesNoDoubt; otherwise the call is in doubt.
func testWhatIsKnownToBeUnsentLeavesNoDoubt(t *testing.T, db *databases.DB) {
	c := caller(t, db, nil)
	failing := func(err error) proxy.Send { return func(context.Context, *proxy.Call) (int, error) { return 0, err } }
	lost := &interlock.Error{Op: "dial", Kind: interlock.Retryable, Err: errors.New("refused")}
	for range 2 {
		_, err := c.Do(t.Context(), grant(1, bound), "api", "a", failing(lost))
		wantKind(t, err, interlock.Retryable, lost)
	}
	if r := record(t, db, "a"); r.Attempts != 0 {
		t.Errorf("recorded %+v", r)
	}
	_, err := c.Do(t.Context(), grant(1, bound), "api", "a", failing(errors.New("connection reset")))
	wantKind(t, err, interlock.Uncertain, nil)
	// The end of a context is no proof, nor is any error after Ready has permitted the call.
	_, err = c.Do(t.Context(), grant(1, bound), "api", "b", failing(context.DeadlineExceeded))
	wantKind(t, err, interlock.Uncertain, context.DeadlineExceeded)
	_, err = c.Do(t.Context(), grant(1, bound), "api", "c", func(_ context.Context, call *proxy.Call) (int, error) {
		ok(t, call.Ready())
		return 0, lost
	})
	wantKind(t, err, interlock.Uncertain, lost)
	for _, operation := range []string{"b", "c"} {
		if r := record(t, db, operation); r.Attempts != 1 || r.Settled {
			t.Errorf("%s: recorded %+v", operation, r)
		}
	}
	if r := record(t, db, "a"); r.Attempts != 1 || r.Settled {
		t.Errorf("recorded %+v", r)
	}
	// An earlier attempt stays in doubt for any outcome of a later one.
	_, err = caller(t, db, &proxy.Options{Repeat: true}).Do(t.Context(), grant(1, bound), "api", "a", failing(lost))
	wantKind(t, err, interlock.Retryable, lost)
	for range 2 { // nor does a refusal
		_, err = c.Do(t.Context(), grant(1, bound), "api", "b", failing(nil))
		if _, found := errors.AsType[*proxy.InDoubtError](err); !found {
			t.Errorf("not in doubt any more: %v", err)
		}
	}
	if r := record(t, db, "a"); r.Attempts != 1 || r.Settled {
		t.Errorf("recorded %+v", r)
	}
}

func testDoubtsAreSettled(t *testing.T, db *databases.DB) {
	c := caller(t, db, nil)
	unsure := func(context.Context, *proxy.Call) (int, error) { return 0, errors.New("reset") }
	fine := func(context.Context, *proxy.Call) (int, error) { return 200, nil }
	settle := func(operation string, status int) error {
		return db.Try(t.Context(), func(ctx context.Context, tx driver.SQL) error {
			return proxy.Calls{}.Settle(ctx, tx, "api", operation, status)
		})
	}
	for _, operation := range []string{"made", "not made", "left"} {
		_, err := c.Do(t.Context(), grant(1, bound), "api", operation, unsure)
		wantKind(t, err, interlock.Uncertain, nil)
	}
	ok(t, settle("made", 202))
	ok(t, settle("not made", 0))
	wantKind(t, settle("left", 503), interlock.Bug, nil)
	var done *proxy.DoneError
	if _, err := c.Do(t.Context(), grant(1, bound), "api", "made", fine); !errors.As(err, &done) || done.Status != 202 {
		t.Error(err)
	}
	_, err := c.Do(t.Context(), grant(1, bound), "api", "not made", fine)
	ok(t, err)
	ok(t, settle("made", 0)) // too late
	ok(t, settle("not made", 404))
	if r, s := record(t, db, "made"), record(t, db, "not made"); r.Status != 202 || s.Status != 200 {
		t.Errorf("recorded %+v and %+v", r, s)
	}
	clean := func(age time.Duration) error {
		return db.Try(t.Context(), func(ctx context.Context, tx driver.SQL) error { return proxy.Calls{}.Clean(ctx, tx, age) })
	}
	ok(t, clean(time.Hour))
	if r := record(t, db, "made"); !r.Settled {
		t.Error("a young record was removed")
	}
	ok(t, clean(0))
	if r, s := record(t, db, "made"), record(t, db, "left"); r.Attempts != 0 || s.Attempts != 1 {
		t.Errorf("after cleaning: %+v, in doubt %+v", r, s)
	}
	wantKind(t, clean(-1), interlock.Bug, nil)
}

// testCleaningBlocksNoCall: while a transaction that has removed old records is open, calls are made.
func testCleaningBlocksNoCall(t *testing.T, db *databases.DB) {
	c := caller(t, db, nil)
	fine := func(context.Context, *proxy.Call) (int, error) { return 200, nil }
	for _, operation := range []string{"old", "older"} {
		_, err := c.Do(t.Context(), grant(1, bound), "api", operation, fine)
		ok(t, err)
	}
	ok(t, db.Try(t.Context(), func(ctx context.Context, tx driver.SQL) error {
		if err := (proxy.Calls{}).Clean(ctx, tx, 0); err != nil {
			return err
		}
		short, cancel := context.WithTimeout(ctx, bound)
		defer cancel()
		_, err := c.Do(short, grant(1, bound), "api", "new", fine)
		return err
	}))
	if db.Dialect == driver.Postgres {
		plan := &databases.Planned{BeginnerAt: db}
		plan.Do(t, func(ctx context.Context, tx driver.SQL) error { return proxy.Calls{}.Clean(ctx, tx, 0) })
		plan.Want(t, "settled_at")
	}
	if r, s := record(t, db, "old"), record(t, db, "new"); r.Attempts != 0 || s.Status != 200 {
		t.Errorf("recorded %+v and %+v", r, s)
	}
}

// testOlderTable: Create adds the index of Clean to the table of a former version.
func testOlderTable(t *testing.T, db *databases.DB) {
	db.Exec(t, `drop table interlock_call`)
	db.Exec(t, `create table interlock_call (id varchar(64) primary key, settled_at timestamp(6) null)`)
	db.Do(t, proxy.Calls{}.Create)
	query := `select count(*) from pg_indexes where schemaname = current_schema() and tablename = 'interlock_call' and indexdef like '%(settled_at)%'`
	if db.Dialect == driver.MariaDB {
		query = `select count(*) from information_schema.statistics where table_schema = database() and table_name = 'interlock_call' and column_name = 'settled_at'`
	}
	if n := databases.One[int64](t, db, query); n != 1 {
		t.Errorf("%d indexes", n)
	}
}

// testALivingCallKeepsItsTurn: it takes longer than the idle timeout of its session.
func testALivingCallKeepsItsTurn(t *testing.T, db *databases.DB) {
	api := newAPI(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			<-time.After(5 * time.Second) // the API takes its time
		}
	})
	by, c := transport(t), grant(1, 6*time.Second) // idle for 4 at most
	c.Stubborn = true                              // renewed each time
	var all sync.WaitGroup
	all.Go(func() {
		if status, err := caller(t, db, nil).Do(t.Context(), c, "api", "slow", post(by, api.URL+"/slow", "1")); status != 200 || err != nil {
			t.Errorf("the slow call: %d %v", status, err)
		}
	})
	testbed.Eventually(t, "the slow call is on its way", bound, func() bool { return len(api.seen()) == 1 })
	_, err := caller(t, db.Again(t), nil).Do(t.Context(), grant(2, bound), "api", "next", post(by, api.URL, "2"))
	ok(t, err)
	all.Wait()
	if api.most.Load() != 1 {
		t.Error("both were made at once")
	}
}

// TestACallEndsWithItsSession: after an operator ends it, the call ends within a second, and is in
// doubt.
func TestACallEndsWithItsSession(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := prepared(t, open(t))
		_, err := caller(t, db.Again(t), nil).Do(t.Context(), grant(1, bound), "api", "a", func(ctx context.Context, call *proxy.Call) (int, error) {
			ok(t, call.Ready())
			db.Exec(t, `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and state = 'idle in transaction'`)
			select {
			case <-ctx.Done():
			case <-time.After(bound):
				t.Error("it was not told")
			}
			wantKind(t, call.Ready(), interlock.Retryable, nil)
			return 0, context.Cause(ctx)
		})
		wantKind(t, err, interlock.Uncertain, nil)
		if r := record(t, db, "a"); r.Attempts != 1 || r.Settled {
			t.Errorf("recorded %+v", r)
		}
	}, databases.Pgx)
}

// testAnAnswerOutlivesTheClaim: an answer is recorded, although the claim ended
// meanwhile.
func testAnAnswerOutlivesTheClaim(t *testing.T, db *databases.DB) {
	c := grant(1, bound)
	status, err := caller(t, db, nil).Do(t.Context(), c, "api", "a", func(ctx context.Context, _ *proxy.Call) (int, error) {
		c.End(interlock.ErrLost)
		<-ctx.Done()
		return 200, nil
	})
	if r := record(t, db, "a"); status != 200 || err != nil || !r.Settled || r.Status != 200 {
		t.Errorf("%d %v, recorded %+v", status, err, r)
	}
}

// testNothingIsSentUnderAnEndedClaim, nor once it ended on the way.
func testNothingIsSentUnderAnEndedClaim(t *testing.T, db *databases.DB) {
	never := func(context.Context, *proxy.Call) (int, error) { t.Error("it was sent"); return 0, nil }
	lost := grant(1, bound)
	lost.End(interlock.ErrLost)
	for _, calls := range []*proxy.Caller{caller(t, db, nil), proxy.NewUnrecorded(fence.NewStore(memory.NewSpace().Fence()), nil)} {
		_, err := calls.Do(t.Context(), lost, "api", "a", never)
		wantKind(t, err, interlock.Definite, interlock.ErrLost)
		_, err = calls.Do(t.Context(), grant(1, -1), "api", "a", never)
		wantKind(t, err, interlock.Definite, interlock.ErrExpired)
		c := grant(1, bound)
		api := newAPI(t, nil)
		_, err = calls.Do(t.Context(), c, "api", "a", func(ctx context.Context, call *proxy.Call) (int, error) {
			c.End(interlock.ErrLost)
			return post(transport(t), api.URL, "1")(context.WithoutCancel(ctx), call)
		})
		if wantKind(t, err, interlock.Definite, interlock.ErrLost); len(api.seen()) != 0 {
			t.Errorf("sent %v", api.seen())
		}
	}
	if r := record(t, db, "a"); r.Attempts != 0 {
		t.Errorf("recorded %+v", r)
	}
}

// testBadCallsAreRefused before anything is sent or recorded.
func testBadCallsAreRefused(t *testing.T, db *databases.DB) {
	never := func(context.Context, *proxy.Call) (int, error) { t.Error("it was sent"); return 0, nil }
	c := caller(t, db, nil)
	for _, operation := range []string{strings.Repeat("o", 256), "a\x00", "\xff"} {
		_, err := c.Do(t.Context(), grant(1, bound), "api", operation, never)
		wantKind(t, err, interlock.Bug, interlock.ErrName)
	}
	for _, resource := range []string{"", strings.Repeat("r", 513), "a\x00"} {
		_, err := c.Do(t.Context(), grant(1, bound), resource, "a", never)
		wantKind(t, err, interlock.Bug, interlock.ErrName)
	}
	odd := `it's "\` + strings.Repeat("ä", 100)
	fine := func(context.Context, *proxy.Call) (int, error) { return 200, nil }
	for _, operation := range []string{odd, strings.ToUpper(odd), "%[1]s", ""} {
		_, err := c.Do(t.Context(), grant(1, bound), odd, operation, fine)
		ok(t, err)
	}
	if n := databases.One[int64](t, db, `select count(*) from interlock_call`); n != 3 {
		t.Errorf("%d records", n)
	}
	for _, marks := range []fence.Marks{fence.Table{Strict: true}, fence.Column{Strict: true}} {
		_, err := proxy.NewRecorded(db, marks, proxy.Calls{}, nil)
		wantKind(t, err, interlock.Bug, nil)
	}
	missing, err := proxy.NewRecorded(db, fence.Table{}, proxy.Calls{Name: "none"}, nil)
	ok(t, err)
	_, err = missing.Do(t.Context(), grant(1, bound), "api", "a", never)
	if wantKind(t, err, interlock.Definite, nil); !strings.Contains(fmt.Sprint(err), "with Create") {
		t.Errorf("%v does not say what to do", err)
	}
	far, err := interlock.NewToken(interlock.CounterAt(time.Now().Add(48*time.Hour)), 0)
	ok(t, err)
	ahead := grant(1, bound)
	ahead.Number = far
	_, err = c.Do(t.Context(), ahead, "api", "a", never)
	wantKind(t, err, interlock.Definite, interlock.ErrImplausibleToken)
}

// TestAClosedDatabaseSendsNothing.
func TestAClosedDatabaseSendsNothing(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		d := prepared(t, open(t))
		db, closed, err := databases.Connect(t.Context(), d.Client, d.URL)
		ok(t, err)
		closed()
		_, err = caller(t, db, nil).Do(t.Context(), grant(1, bound), "api", "a", func(context.Context, *proxy.Call) (int, error) {
			t.Error("it was sent")
			return 0, nil
		})
		if err == nil || interlock.Kind(err) == interlock.Uncertain {
			t.Errorf("%v (%v)", err, interlock.Kind(err))
		}
	})
}

// A bound that is not positive is the default.
func TestWaitingIsPositive(t *testing.T) {
	for _, waiting := range []int{-1, 0} {
		c := proxy.NewUnrecorded(fence.NewStore(memory.NewSpace().Fence()), &proxy.Options{Waiting: waiting})
		_, err := c.Do(t.Context(), grant(1, bound), "api", "a", func(context.Context, *proxy.Call) (int, error) { return 200, nil })
		if err != nil {
			t.Errorf("Waiting %d: %v", waiting, err)
		}
	}
}

// TestTurns: in the order of arrival, among waiting callers, and no more than the
// bound.
func TestTurns(t *testing.T) {
	c := proxy.NewUnrecorded(fence.NewStore(memory.NewSpace().Fence()), &proxy.Options{Waiting: 2})
	inside, leave := make(chan bool), make(chan bool)
	var all sync.WaitGroup
	all.Go(func() {
		_, err := c.Do(t.Context(), grant(1, bound), "api", "a", func(context.Context, *proxy.Call) (int, error) {
			inside <- true
			<-leave
			return 200, nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	<-inside
	fine := func(context.Context, *proxy.Call) (int, error) { return 200, nil }
	impatient := grant(1, bound)
	all.Go(func() {
		_, err := c.Do(t.Context(), impatient, "api", "b", fine)
		for interlock.Kind(err) == interlock.Retryable { // c has the place for a moment
			_, err = c.Do(t.Context(), impatient, "api", "b", fine)
		}
		wantKind(t, err, interlock.Definite, interlock.ErrExpired)
	})
	testbed.Eventually(t, "no more are let in", bound, func() bool {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := c.Do(ctx, grant(1, bound), "api", "c", fine)
		return interlock.Kind(err) == interlock.Retryable
	})
	_, err := c.Do(t.Context(), grant(1, bound), "another", "d", fine)
	ok(t, err)
	impatient.End(interlock.ErrExpired)
	testbed.Eventually(t, "the cancelled callers have left", bound, func() bool {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := c.Do(ctx, grant(1, bound), "api", "e", fine)
		return interlock.Kind(err) == interlock.Definite
	})
	close(leave)
	all.Wait()
	if c.Busy() != 0 {
		t.Errorf("%d resources are remembered", c.Busy())
	}
}

// testCosts: a call takes two commits; two bounds, one of which is read, two entries, and two
// statements for its record. The hooks report it.
func testCosts(t *testing.T, db *databases.DB) {
	var sent []observe.ProxySent
	var refused []observe.ProxyRefused
	n := &databases.Counted{BeginnerAt: db}
	c := caller(t, n, &proxy.Options{Hooks: &observe.Proxy{Sent: func(e observe.ProxySent) { sent = append(sent, e) },
		Refused: func(e observe.ProxyRefused) { refused = append(refused, e) }}})
	fine := func(context.Context, *proxy.Call) (int, error) { return 200, nil }
	entries := map[driver.Dialect]int64{driver.Postgres: 1, driver.MariaDB: 1}[db.Dialect]
	for operation, records := range map[string]int64{"a": 2, "": 0} {
		n.Reset()
		_, err := c.Do(t.Context(), grant(1, time.Hour), "api", operation, fine)
		ok(t, err)
		if got := n.Statements.Load(); got != 3+2*entries+records || n.Commits.Load() != 2 {
			t.Errorf("operation %q: %d statements, %d commits", operation, got, n.Commits.Load())
		}
	}
	_, _ = c.Do(t.Context(), grant(1, time.Hour), "api", "a", fine)
	if len(sent) != 2 || sent[0].Status != 200 || sent[0].Err != nil || sent[0].Token != token(1) || len(refused) != 1 || refused[0].Err == nil {
		t.Errorf("received %+v and %+v", sent, refused)
	}
}

// overtake pauses a process of token 1 at a place, runs the call of one of token 2, and resumes the
// first one. It returns the first one's output.
func overtake(t *testing.T, api *api, client, url, ttl, manner, place string) string {
	t.Helper()
	former := crash.Start(t, "owner", 0, client, url, api.URL, "1", ttl, manner, place)
	if line := former.Line(bound); line != "waiting" {
		t.Fatalf("the process reports %q", line)
	}
	former.Pause()
	newer := crash.Start(t, "owner", 0, client, url, api.URL, "2", "60s", "honest", nowhere)
	if line := newer.Line(bound); line != "200 <nil>" {
		t.Fatalf("the newer owner's call: %s", line)
	}
	if got := fmt.Sprint(api.seen()); got != "[2]" {
		t.Fatalf("calls %s before the former owner continues", got)
	}
	goOn(t, former, place)
	return former.Line(bound)
}

// goOn resumes a process that was paused at a place: its condition holds when it wakes
// up.
func goOn(t *testing.T, former *testbed.Process, place string) {
	t.Helper()
	if file, ok := strings.CutPrefix(place, socket); ok {
		f, err := os.Create(file)
		testbed.OK(t, err)
		f.Close()
	}
	fmt.Fprintln(former.Stdin())
	former.Resume()
}

// wantNotSent requires that the former owner sent nothing, and reports that.
func wantNotSent(t *testing.T, api *api, said string) {
	t.Helper()
	if got := fmt.Sprint(api.seen()); got != "[2]" || strings.Contains(said, "200") || strings.Contains(said, "outcome unknown") {
		t.Errorf("calls %s, and the former owner reports %q", got, said)
	}
}

// TestAPausedFormerOwnerDoesNotSend: it is paused between entering and sending, in
// another process than the newer owner, whose call waits until the database has
// ended the paused session. It does not send even if its claim still seems valid.
func TestAPausedFormerOwnerDoesNotSend(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		for _, manner := range []string{"honest", "stubborn"} {
			t.Run(manner, func(t *testing.T) {
				t.Parallel()
				db, api := prepared(t, open(t)), newAPI(t, nil)
				wantNotSent(t, api, overtake(t, api, db.Client, db.URL, "3s", manner, ready))
				// An unsent call is not in doubt.
				if r := record(t, db, "operation of 1"); r.Attempts != 0 {
					t.Errorf("recorded %+v", r)
				}
				if r := record(t, db, "operation of 2"); !r.Settled || r.Status != 200 {
					t.Errorf("recorded %+v", r)
				}
			})
		}
	}, databases.Pgx, databases.Maria)
}

// TestACarelessCallIsSentLate shows the broken variant: without the check before the
// write, the former owner's call is sent after the newer owner's.
func TestACarelessCallIsSentLate(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db, api := prepared(t, open(t)), newAPI(t, nil)
		said := overtake(t, api, db.Client, db.URL, "3s", "honest", careless)
		if got := fmt.Sprint(api.seen()); got != "[2 1]" {
			t.Errorf("calls %s: it does not need the look (%s)", got, said)
		}
	}, databases.Pgx)
}

// TestTheStopThatRemains shows the documented limit: a pause after the last check,
// directly before the system call.
func TestTheStopThatRemains(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db, api := prepared(t, open(t)), newAPI(t, nil)
		said := overtake(t, api, db.Client, db.URL, "3s", "honest", socket+filepath.Join(t.TempDir(), "go on"))
		if got := fmt.Sprint(api.seen()); got != "[2 1]" {
			t.Errorf("calls %s: the hole is closed, and the documentation is wrong (%s)", got, said)
		}
	}, databases.Pgx)
}

// TestLooseBetweenProcesses: only the claim's clock prevents a paused owner from
// sending.
func TestLooseBetweenProcesses(t *testing.T) {
	t.Parallel()
	url := testbed.Redis(t).URL()
	api := newAPI(t, nil)
	former := crash.Start(t, "owner", 0, "redis", url, api.URL, "1", "2s", "honest", ready)
	if line := former.Line(bound); line != "waiting" {
		t.Fatal(line)
	}
	former.Pause()
	c := grant(3, 2*time.Second) // a higher token than the former owner's
	testbed.Eventually(t, "the claim is over", bound, func() bool { return !c.Valid() })
	goOn(t, former, ready)
	if line := former.Line(bound); !strings.Contains(line, "expired") || len(api.seen()) != 0 {
		t.Errorf("calls %v, and it reports %q", api.seen(), line)
	}
	api = newAPI(t, nil)
	said := overtake(t, api, "redis", url, "1m", "stubborn", ready)
	if got := fmt.Sprint(api.seen()); got != "[2 1]" {
		t.Errorf("calls %s: the hole is closed, and the documentation is wrong (%s)", got, said)
	}
}

// testACrashAfterTheCallForgetsNothing: the mark of a sent call remains, although the transaction
// that held it was not committed.
func testACrashAfterTheCallForgetsNothing(t *testing.T, db *databases.DB) {
	api := newAPI(t, nil)
	newer := crash.Start(t, "owner", 0, db.Client, db.URL, api.URL, "2", "60s", "honest", dies)
	newer.Wait(bound)
	_, err := caller(t, db, nil).Do(t.Context(), grant(1, bound), "api", "late", post(transport(t), api.URL, "1"))
	if stale, found := errors.AsType[*interlock.StaleTokenError](err); !found || stale.Seen != token(2) || fmt.Sprint(api.seen()) != "[2]" {
		t.Errorf("calls %v: %v", api.seen(), err)
	}
}

// TestCrashes kills a caller at each of its points, and restarts it. With a key the call takes
// effect once. Without one it is sent at most once, and no answer denies a call that may have been
// sent.
func TestCrashes(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		for _, mode := range map[string][]string{databases.Pgx: {"repeat", "refuse"}, databases.Maria: {"refuse"}}[open(t).Client] {
			t.Run(mode, func(t *testing.T) {
				t.Parallel()
				points := crash.Once(t, "worker", func(tb testing.TB) crash.Scene {
					db, api := prepared(tb, open(tb)), newAPI(tb, nil)
					return crash.Scene{Args: []string{db.Client, db.URL, api.URL, mode}, Want: func(tb testing.TB) {
						tb.Helper()
						wantOnce(tb, mode, record(tb, db, "payout"), api.seenKeys())
					}}
				})
				// BEGIN, enter, record, COMMIT and after it; BEGIN, enter, the idle timeout, with a key a look at the
				// record, send and after it, record, COMMIT and after it.
				if want := map[string]int{"repeat": 14, "refuse": 13}[mode]; points != want {
					t.Errorf("%d points, want %d", points, want)
				}
			})
		}
	}, databases.Pgx, databases.Maria)
}

func wantOnce(tb testing.TB, mode string, r proxy.Record, keys []string) {
	tb.Helper()
	effects := map[string]bool{}
	for _, k := range keys {
		effects[k] = true
	}
	switch {
	case mode == "repeat":
		if !r.Settled || r.Status != 200 || len(effects) != 1 || !effects[proxy.Key("api", "payout")] {
			tb.Errorf("recorded %+v, sent with keys %v", r, keys)
		}
	case len(keys) > 1, r.Settled != (r.Status == 200), r.Settled && len(keys) != 1, r.Attempts != 1:
		tb.Errorf("recorded %+v, sent %d times", r, len(keys))
	}
}
