package proxy_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/guard/proxy"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// testACauseIsNoProof: the user's client fails with the cause of its context, after it
// has sent. The cause may report that nothing was done, but of another operation.
func testACauseIsNoProof(t *testing.T, db *databases.DB) {
	api := newAPI(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	plain := &http.Transport{}
	defer plain.CloseIdleConnections()
	stale := &interlock.StaleTokenError{Resource: "of a sibling"}
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		testbed.Eventually(t, "the call is on its way", bound, func() bool { return len(api.seen()) == 1 })
		cancel(stale)
	}()
	_, err := caller(t, db, nil).Do(ctx, grant(1, bound), "api", "a", post(plain, api.URL, "1"))
	wantKind(t, err, interlock.Uncertain, stale)
	if r := record(t, db, "a"); r.Attempts != 1 || r.Settled {
		t.Errorf("recorded %+v", r)
	}
}

// testACallEndsWithItsConnection: requests to the database are silently lost; the call
// ends before the next owner may send. Another connection records its answer.
func testACallEndsWithItsConnection(t *testing.T, db *databases.DB) {
	path := testbed.NewProxy(t, db.Server.Addr())
	far, closed, err := databases.Connect(t.Context(), db.Client, strings.Replace(db.URL, db.Server.Addr(), path.Addr(), 1))
	ok(t, err)
	defer closed()
	c := grant(1, 3*time.Second)
	c.Stubborn = true // it is renewed over another connection
	status, err := caller(t, far, nil).Do(t.Context(), c, "api", "a", func(ctx context.Context, call *proxy.Call) (int, error) {
		ok(t, call.Ready())
		path.Cut()
		select {
		case <-ctx.Done():
		case <-time.After(bound / 2):
			t.Error("it was not told")
		}
		path.Heal()
		wantKind(t, call.Ready(), interlock.Retryable, nil)
		return 200, nil
	})
	if r := record(t, db, "a"); status != 200 || err != nil || !r.Settled {
		t.Errorf("%d %v, recorded %+v", status, err, r)
	}
}

// testAnEarlierIdleTimeout: requests to the database are silently lost, and it ends the session by an idle timeout
// of the user, earlier than the claim requires. The call ends before the next owner may send.
func testAnEarlierIdleTimeout(t *testing.T, db *databases.DB) {
	path := testbed.NewProxy(t, db.Server.Addr())
	url, setting := strings.Replace(db.URL, db.Server.Addr(), path.Addr(), 1), "idle_in_transaction_session_timeout=2s"
	if db.Dialect == driver.MariaDB {
		setting = "idle_transaction_timeout=2"
	}
	far, closed, err := databases.Connect(t.Context(), db.Client, databases.With(url, setting))
	ok(t, err)
	defer closed()
	c := grant(1, time.Hour)
	c.Stubborn = true // it is renewed over another connection
	_, err = caller(t, far, nil).Do(t.Context(), c, "api", "a", func(_ context.Context, call *proxy.Call) (int, error) {
		ok(t, call.Ready())
		path.Cut()
		defer path.Heal()
		_, err := caller(t, db, nil).Do(t.Context(), grant(2, bound), "api", "b", func(context.Context, *proxy.Call) (int, error) {
			wantKind(t, call.Ready(), interlock.Retryable, nil)
			return 200, nil
		})
		ok(t, err)
		return 0, errors.New("no answer")
	})
	wantKind(t, err, interlock.Uncertain, nil)
}

// testACallThatIsOverSendsNothing: a request that a Send left running is not sent after
// its outcome is returned, even under a valid claim, nor after a panic.
func testACallThatIsOverSendsNothing(t *testing.T, db *databases.DB) {
	for name, calls := range map[string]*proxy.Caller{"strict": caller(t, db, nil), "loose": looseCaller()} {
		for _, panics := range []bool{false, true} {
			var left *proxy.Call
			func() {
				defer func() { _ = recover() }()
				_, err := calls.Do(t.Context(), grant(1, bound), "api", "a", func(_ context.Context, call *proxy.Call) (int, error) {
					if left = call; panics {
						panic("no")
					}
					return 0, &interlock.Error{Op: "give up", Kind: interlock.Retryable, Err: errors.New("too slow")}
				})
				wantKind(t, err, interlock.Retryable, nil)
			}()
			if left.Ready() == nil {
				t.Errorf("%s, panic %v: it may be sent, and the caller cannot know that", name, panics)
			}
		}
	}
}

// testAnAttemptForgetsOnlyItself: a caller retries under the same claim by another
// proxy, whose call stays in doubt, while the first attempt is withdrawn.
func testAnAttemptForgetsOnlyItself(t *testing.T, db *databases.DB) {
	do := func(c *proxy.Caller) error {
		_, err := c.Do(t.Context(), grant(1, bound), "api", "a", func(_ context.Context, call *proxy.Call) (int, error) {
			ok(t, call.Ready())
			return 0, errors.New("connection reset")
		})
		return err
	}
	overtaken := false
	first := caller(t, databases.Committing[driver.SQL]{BeginnerAt: db, Instead: func(ctx context.Context, tx driver.Tx[driver.SQL]) error {
		if overtaken {
			return tx.Commit(ctx)
		}
		overtaken = true
		ok(t, tx.Rollback(ctx))
		wantKind(t, do(caller(t, db.Again(t), nil)), interlock.Uncertain, nil)
		return databases.ErrNoReply
	}}, nil)
	wantKind(t, do(first), interlock.Retryable, nil)
	if r := record(t, db, "a"); r.Attempts != 1 || r.Settled {
		t.Errorf("the attempt of another is forgotten: %+v", r)
	}
	var doubt *proxy.InDoubtError
	if err := do(first); !errors.As(err, &doubt) {
		t.Errorf("made again: %v", err)
	}
}

// between runs other once, between the two transactions of a call.
type between struct {
	driver.Beginner[driver.SQL]
	begun int
	other func()
}

func (b *between) Begin(ctx context.Context) (driver.Tx[driver.SQL], error) {
	if b.begun++; b.begun == 2 {
		b.other()
	}
	return b.Beginner.Begin(ctx)
}

// testAnAnswerIsRecordedWhoeverTriesAgain: another attempt under the same claim, by
// another proxy, began before this one was sent, and failed.
func testAnAnswerIsRecordedWhoeverTriesAgain(t *testing.T, db *databases.DB) {
	do := func(by driver.Beginner[driver.SQL], status int, err error) error {
		_, failed := caller(t, by, &proxy.Options{Repeat: true}).Do(t.Context(), grant(1, bound), "api", "a",
			func(context.Context, *proxy.Call) (int, error) { return status, err })
		return failed
	}
	again := db.Again(t)
	ok(t, do(&between{Beginner: db, other: func() {
		wantKind(t, do(again, 0, &interlock.Error{Op: "dial", Kind: interlock.Retryable, Err: errors.New("refused")}), interlock.Retryable, nil)
	}}, 200, nil))
	if r := record(t, db, "a"); r.Status != 200 || !r.Settled {
		t.Errorf("the answer was returned, and the record is %+v", r)
	}
	var done *proxy.DoneError
	if err := do(again, 200, nil); !errors.As(err, &done) {
		t.Errorf("made again: %v", err)
	}
}

// testARepeatedCallHasOneAnswer: another proxy has had the answer, under the same claim, before this
// one sent. Then it sends nothing, though it may repeat calls in doubt.
func testARepeatedCallHasOneAnswer(t *testing.T, db *databases.DB) {
	sent := 0
	do := func(by driver.Beginner[driver.SQL]) error {
		_, err := caller(t, by, &proxy.Options{Repeat: true}).Do(t.Context(), grant(1, bound), "api", "a",
			func(context.Context, *proxy.Call) (int, error) { sent++; return 201, nil })
		return err
	}
	var done *proxy.DoneError
	again := db.Again(t)
	if err := do(&between{Beginner: db, other: func() { ok(t, do(again)) }}); !errors.As(err, &done) || done.Status != 201 || sent != 1 {
		t.Errorf("sent %d times: %v", sent, err)
	}
	if r := record(t, db, "a"); r.Status != 201 || !r.Settled {
		t.Errorf("recorded %+v", r)
	}
}

// TestDialingThatIsEndedLeavesNoDoubt: nothing was written.
func TestDialingThatIsEndedLeavesNoDoubt(t *testing.T) {
	c := grant(1, bound)
	base := &http.Transport{DialContext: dialing(func() { c.End(interlock.ErrLost) })}
	by := proxy.NewTransport(&proxy.TransportOptions{Base: base})
	defer by.CloseIdleConnections()
	_, err := looseCaller().Do(t.Context(), c, "api", "a", post(by, "http://api.example", "1"))
	if wantKind(t, err, interlock.Retryable, interlock.ErrLost); !strings.Contains(err.Error(), "not sent") {
		t.Error(err)
	}
}

// dialing does not dial: it calls begun, and waits for its context.
func dialing(begun func()) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		begun()
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
}

// Places where an owner waits for a line before it continues.
const (
	nowhere  = "nowhere"
	ready    = "ready"    // entered, and about to send
	socket   = "socket:"  // after the last check, before the system call; waits for the named file
	careless = "careless" // ready, and then sends without another check
	dies     = "dies"     // kills itself after the answer
)

// owner makes one call, and prints its outcome. Its arguments: the database's client or "redis",
// its URL, the API's URL, a token, how long the claim lasts, whether it is stubborn, and a
// place.
func owner(ctx context.Context, _ *crash.Points, args []string) error {
	place, file := args[6], ""
	if f, ok := strings.CutPrefix(place, socket); ok {
		file = f
	}
	calls, closed, err := connect(ctx, args[0], args[1], file != "")
	if err != nil {
		return err
	}
	defer closed()
	n, _ := strconv.Atoi(args[3])
	ttl, _ := time.ParseDuration(args[4])
	c := grant(n, ttl)
	c.Stubborn = args[5] == "stubborn"
	base := &http.Transport{DialContext: (&net.Dialer{}).DialContext}
	if file != "" {
		base.DialContext = stopping(file)
	}
	status, err := calls.Do(ctx, c, "api", "operation of "+args[3], func(ctx context.Context, call *proxy.Call) (int, error) {
		var by http.RoundTripper = proxy.NewTransport(&proxy.TransportOptions{Base: base})
		if place == ready || place == careless {
			wait()
		}
		if place == careless {
			by, ctx = http.DefaultTransport, context.WithoutCancel(ctx)
		}
		status, err := post(by, args[2], args[3])(ctx, call)
		if place == dies {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		return status, err
	})
	fmt.Println(status, err)
	return nil
}

// connect returns a caller. A late one treats its session as valid until it has written: only so
// does the test reach the remaining window.
func connect(ctx context.Context, client, url string, late bool) (c *proxy.Caller, closed func(), err error) {
	if client == "redis" {
		conn, err := redis.Dial(url)
		if err != nil {
			return nil, nil, err
		}
		return proxy.NewUnrecorded(fence.NewStore(redis.NewFence(conn)), nil), conn.Close, nil
	}
	db, closed, err := databases.Connect(ctx, client, url)
	if err != nil {
		return nil, nil, err
	}
	begin := driver.Beginner[driver.SQL](db)
	if late {
		begin = paced{begin, func() { <-written }}
	}
	c, err = proxy.NewRecorded(begin, fence.Table{}, proxy.Calls{}, nil)
	return c, closed, err
}

// paced calls beat instead of the statements that keep a session alive.
type paced struct {
	driver.Beginner[driver.SQL]
	beat func()
}

func (p paced) Begin(ctx context.Context) (driver.Tx[driver.SQL], error) {
	tx, err := p.Beginner.Begin(ctx)
	return pacedTx{tx, p.beat}, err
}

type pacedTx struct {
	driver.Tx[driver.SQL]
	beat func()
}

func (t pacedTx) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	if query == "select 1" {
		t.beat()
		return 0, nil
	}
	return t.Tx.Exec(ctx, query, args...)
}

// written is closed once stopping has written.
var written = make(chan struct{})

var input = bufio.NewReader(os.Stdin)

// wait prints that it waits, and blocks until it reads a line.
func wait() {
	fmt.Println("waiting")
	_, _ = input.ReadString('\n')
}

// stopping dials connections that wait for a file directly before their first write.
func stopping(file string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return &stopped{Conn: c, file: file}, err
	}
}

type stopped struct {
	net.Conn
	file string
	once sync.Once
}

func (s *stopped) Write(p []byte) (int, error) {
	first := false
	s.once.Do(func() {
		fmt.Println("waiting")
		for _, err := os.Stat(s.file); err != nil; _, err = os.Stat(s.file) {
		}
		first = true
	})
	n, err := s.Conn.Write(p)
	if first {
		close(written)
	}
	return n, err
}

// worker makes one call, with points before and after each external effect. It also
// ends if the call was made before, or is in doubt.
func worker(ctx context.Context, at *crash.Points, args []string) error {
	db, closed, err := databases.Connect(ctx, args[0], args[1])
	if err != nil {
		return err
	}
	defer closed()
	// The statements that keep the session are no crash points, since their number depends on the
	// duration of the call. The claim lasts long enough without them.
	points := paced{crash.Beginner[driver.SQL](db, at), func() {}}
	calls, err := proxy.NewRecorded(points, fence.Table{}, proxy.Calls{}, &proxy.Options{Repeat: args[3] == "repeat"})
	if err != nil {
		return err
	}
	by := proxy.NewTransport(&proxy.TransportOptions{KeyHeader: "Idempotency-Key"})
	_, err = calls.Do(ctx, grant(2, time.Minute), "api", "payout", func(ctx context.Context, call *proxy.Call) (int, error) {
		at.Pass()
		defer at.Pass()
		return post(by, args[2], "pay")(ctx, call)
	})
	var done *proxy.DoneError
	if _, found := errors.AsType[*proxy.InDoubtError](err); errors.As(err, &done) || found {
		return nil
	}
	return err
}
