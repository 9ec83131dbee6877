package mysql_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// mode is one of the two kinds of driver.
type mode struct {
	name string
	open func(ctx context.Context, t testing.TB, dsn string, o *mysql.Options) (driver.Fenced, error)
}

var modes = []mode{
	{"session", func(ctx context.Context, t testing.TB, dsn string, o *mysql.Options) (driver.Fenced, error) {
		d, err := mysql.Open(ctx, config(t, dsn), o)
		if err != nil {
			return nil, err
		}
		return d, nil
	}},
	{"table", func(ctx context.Context, t testing.TB, dsn string, o *mysql.Options) (driver.Fenced, error) {
		d, err := mysql.OpenTable(ctx, open(t, dsn+"?interpolateParams=true").DB, o)
		if err != nil {
			return nil, err
		}
		return d, nil
	}},
}

func (m mode) mustOpen(t testing.TB, dsn string, o *mysql.Options) driver.Fenced {
	t.Helper()
	d, err := m.open(context.Background(), t, dsn, o)
	testbed.OK(t, err)
	testbed.CloseAfter(t, d)
	return d
}

var owners atomic.Int64

func request(name string) driver.Request {
	return driver.Request{Name: name, Owner: fmt.Sprint("test/", owners.Add(1))}
}

func acquire(t testing.TB, d driver.Fenced, r driver.Request) driver.Grant {
	t.Helper()
	g, err := d.Acquire(testbed.Bounded(t), r)
	testbed.OK(t, err)
	return g
}

func release(t testing.TB, d driver.Fenced, r driver.Request) {
	t.Helper()
	testbed.OK(t, d.Release(testbed.Bounded(t), r.Name, r.Owner))
}

// status is one of the server's own counters.
func (d database) status(t testing.TB, name string) (n int64) {
	t.Helper()
	testbed.OK(t, d.QueryRow(`show global status where variable_name = '`+name+`'`).Scan(new(string), &n))
	return n
}

// TestCost counts what the server was asked.
func TestCost(t *testing.T) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			server := mariaDB(t)
			admin := open(t, server.URL())
			d := m.mustOpen(t, server.URL(), &mysql.Options{TTL: time.Minute})
			r := request("warm")
			acquire(t, d, r)
			release(t, d, r)
			admin.status(t, "Questions")
			const rounds = 50
			var n, commits int64
			for attempt := 0; attempt < 3 && n != 2*rounds; attempt++ { // a former borrower's connection may end meanwhile
				commits = admin.status(t, "Handler_commit")
				before := admin.status(t, "Questions")
				for range rounds {
					r := request("cost")
					acquire(t, d, r)
					release(t, d, r)
				}
				n = admin.status(t, "Questions") - before - 1
			}
			if n != 2*rounds {
				t.Errorf("%d requests for %d times acquire and release", n, rounds)
			}
			if n := admin.status(t, "Handler_commit") - commits; m.name == "session" && n > 1 {
				t.Errorf("%d commits for %d times acquire and release, want that of a reservation at most", n, rounds)
			}
		})
		t.Run(m.name+", holding 1000", func(t *testing.T) {
			server := mariaDB(t)
			admin := open(t, server.URL())
			d := m.mustOpen(t, server.URL(), &mysql.Options{TTL: 3 * time.Second})
			first := request("0")
			renewed := make(chan struct{}, 100)
			first.Events.Renewed = func(_ time.Duration, err error) {
				if err == nil {
					renewed <- struct{}{}
				}
			}
			acquire(t, d, first)
			goroutines := runtime.NumGoroutine()
			grants := make([]driver.Grant, 1000)
			for i := range grants {
				grants[i] = acquire(t, d, request(fmt.Sprint("n", i)))
			}
			if n := runtime.NumGoroutine() - goroutines; n > 5 {
				t.Errorf("%d goroutines more", n)
			}
			if n := admin.status(t, "Threads_connected"); n > 4 {
				t.Errorf("%d connections", n)
			}
			<-renewed
			for len(renewed) > 0 {
				<-renewed
			}
			before, begun := admin.status(t, "Questions"), time.Now()
			<-renewed
			<-renewed
			n := admin.status(t, "Questions") - before - 1
			t.Logf("%d requests in %v", n, time.Since(begun).Round(time.Millisecond))
			if n > 30 {
				t.Errorf("%d requests for two rounds of renewal", n)
			}
			for i, g := range grants {
				if g.Lease.Remaining() <= 0 {
					t.Fatalf("number %d has ended", i)
				}
			}
		})
	}
}

// TestOpenRefuses what cannot work.
func TestOpenRefuses(t *testing.T) {
	server := mariaDB(t)
	gone := testbed.NewProxy(t, server.Addr())
	gone.Cut()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, m := range modes {
		for what, tt := range map[string]struct {
			ctx     context.Context
			dsn     string
			options *mysql.Options
			kind    interlock.ErrorKind
		}{
			"short TTL":           {t.Context(), server.URL(), &mysql.Options{TTL: time.Millisecond}, interlock.Bug},
			"namespace":           {t.Context(), server.URL(), &mysql.Options{Namespace: "a`b"}, interlock.Bug},
			"poll":                {t.Context(), server.URL(), &mysql.Options{TTL: time.Second, Poll: time.Minute}, interlock.Bug},
			"no such database":    {t.Context(), strings.TrimSuffix(server.URL(), "test") + "nowhere", nil, interlock.Definite},
			"no database":         {t.Context(), strings.TrimSuffix(server.URL(), "test"), nil, interlock.Definite},
			"nobody there":        {t.Context(), behind(server, gone), nil, interlock.Retryable},
			"a context at an end": {ended, server.URL(), nil, interlock.Definite},
		} {
			d, err := m.open(tt.ctx, t, tt.dsn, tt.options)
			if err == nil || interlock.Kind(err) != tt.kind {
				t.Errorf("%s, %s: %v (%v), want %v", m.name, what, err, interlock.Kind(err), tt.kind)
			}
			if d != nil {
				t.Errorf("%s, %s: a driver", m.name, what)
			}
		}
	}
	open(t, server.URL()).do(t, "set global read_only = 1")
	for _, m := range modes {
		if _, err := m.open(t.Context(), t, server.URL(), nil); interlock.Kind(err) != interlock.Definite {
			t.Errorf("%s, read-only: %v", m.name, err)
		}
	}
	if _, err := mysql.Open(t.Context(), nil, nil); interlock.Kind(err) != interlock.Bug {
		t.Error(err)
	}
	if _, err := mysql.OpenTable(t.Context(), nil, nil); interlock.Kind(err) != interlock.Bug {
		t.Error(err)
	}
}

// TestReadOnlyIsANumberOrAWord: it is a word from MariaDB 12 on.
func TestReadOnlyIsANumberOrAWord(t *testing.T) {
	admin := open(t, mariaDB(t).URL())
	for value, want := range map[string]string{"0": "0", "1": "1", "'OFF'": "0", "'ON'": "1", "'NO_LOCK'": "1", "'NO_LOCK_NO_ADMIN'": "1"} {
		if got := admin.text(t, "select "+strings.ReplaceAll(mysql.ReadOnlyNow, "@@global.read_only", value)); got != want {
			t.Errorf("%s: got %s, want %s", value, got, want)
		}
	}
}

// TestExhaustedPool: a request that got no connection of the pool was not sent.
func TestExhaustedPool(t *testing.T) {
	pool := open(t, mariaDB(t).URL())
	pool.SetMaxOpenConns(1)
	d, err := mysql.OpenTable(t.Context(), pool.DB, &mysql.Options{TTL: mysql.MinTTL})
	testbed.OK(t, err)
	testbed.CloseAfter(t, d)
	used, err := pool.DB.Conn(t.Context())
	testbed.OK(t, err)
	defer used.Close()
	_, err = d.Acquire(testbed.Bounded(t), request("x"))
	testbed.WantKind(t, err, interlock.Retryable, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = mysql.NewKeyValues(pool.DB, "kv").Get(ctx, "k")
	testbed.WantKind(t, err, interlock.Retryable, context.DeadlineExceeded)
}

// TestTableNeedsAutocommit: a grant of a session that does not commit by itself would end with the
// session, while its holder has a claim.
func TestTableNeedsAutocommit(t *testing.T) {
	server := mariaDB(t)
	pool := open(t, server.URL()+"?interpolateParams=true&autocommit=0")
	d, err := mysql.OpenTable(t.Context(), pool.DB, nil)
	if err != nil {
		testbed.WantKind(t, err, interlock.Definite, nil)
		return
	}
	testbed.CloseAfter(t, d)
	g := acquire(t, d, request("a"))
	testbed.OK(t, pool.Close())
	t.Errorf("a claim for %v, and %s rows", g.Lease.Remaining(), open(t, server.URL()).text(t, "select count(*) from interlock_lease"))
}

// TestDurability: what a crash of the server may cost is read from its settings.
func TestDurability(t *testing.T) {
	const synced = "--innodb-flush-method=fsync"
	server, logging := testbed.MariaDB(t, synced), testbed.MariaDB(t, synced, "--log-bin=log")
	unsynced, torn := testbed.MariaDB(t, "--innodb-flush-method=nosync"), testbed.MariaDB(t, synced, "--innodb-doublewrite=0")
	for _, tt := range []struct {
		server      *testbed.Server
		flush, sync int
		durable     bool
	}{{server, 1, 0, true}, {server, 2, 0, false}, {logging, 1, 0, false}, {logging, 1, 1, true}, {unsynced, 1, 0, false}, {torn, 1, 0, false}} {
		open(t, tt.server.URL()).do(t, fmt.Sprintf("set global innodb_flush_log_at_trx_commit = %d, sync_binlog = %d", tt.flush, tt.sync))
		for _, m := range modes {
			g := m.mustOpen(t, tt.server.URL(), nil).Guarantees()
			if g.TokensSurvive.Has(interlock.ServerCrash) != tt.durable {
				t.Errorf("%s, %+v: tokens survive %v", m.name, tt, g.TokensSurvive)
			}
			if want := tt.durable && m.name == "table"; g.ExclusionSurvives.Has(interlock.ServerCrash) != want {
				t.Errorf("%s, %+v: exclusion survives %v", m.name, tt, g.ExclusionSurvives)
			}
		}
	}
}

// TestServerCrash shows what session mode disclaims: two believe at once to hold
// a name, when its server forgot the first and could not tell it.
func TestServerCrash(t *testing.T) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			server := mariaDB(t)
			proxy := testbed.NewProxy(t, server.Addr())
			o := &mysql.Options{TTL: 10 * time.Second}
			holder := acquire(t, m.mustOpen(t, behind(server, proxy), o), request("x"))
			proxy.Cut()
			server.Kill()
			server.Restart()
			r := request("x")
			r.NoWait = true
			other, err := m.mustOpen(t, server.URL(), o).Acquire(t.Context(), r)
			if holder.Lease.Remaining() <= 0 {
				t.Skip("too slow a machine to tell")
			}
			if m.name == "table" {
				if !errors.Is(err, interlock.ErrHeld) {
					t.Errorf("another was granted: %v", err)
				}
				return
			}
			if err != nil || other.Token <= holder.Token {
				t.Errorf("token %d after %d, %v: the documentation is wrong", other.Token, holder.Token, err)
			}
		})
	}
}

// TestEndOfSessionIsToldAtOnce, and not with the next sign of life.
func TestEndOfSessionIsToldAtOnce(t *testing.T) {
	server := mariaDB(t)
	admin := open(t, server.URL())
	d := modes[0].mustOpen(t, server.URL(), &mysql.Options{TTL: time.Hour})
	lost := make(chan error, 2)
	var grants []driver.Grant
	for _, name := range []string{"a", "b"} {
		r := request(name)
		r.Events.Lost = func(cause error) { lost <- cause }
		grants = append(grants, acquire(t, d, r))
	}
	admin.do(t, "kill "+admin.text(t, "select is_used_lock(?)", mysql.LockName("test", "interlock", "a")))
	for range grants {
		if cause := testbed.Receive(t, lost, "word of the loss"); !errors.Is(cause, interlock.ErrSessionEnded) {
			t.Error(cause)
		}
	}
	for _, g := range grants {
		if left := g.Lease.Remaining(); left > 0 {
			t.Errorf("%v remain", left)
		}
	}
	next := acquire(t, d, request("a"))
	if next.Token <= grants[0].Token {
		t.Errorf("token %d after %d", next.Token, grants[0].Token)
	}
}

// TestSweepEndsSoon if somebody has locked an old row: a sweep keeps others from
// making rows.
func TestSweepEndsSoon(t *testing.T) {
	server := mariaDB(t)
	admin := open(t, server.URL())
	d, err := mysql.OpenTable(t.Context(), admin.DB, nil)
	testbed.OK(t, err)
	defer d.Close(context.Background())
	admin.do(t, "insert into interlock_lease values ('old', '', 1, '2021-01-01', '2021-01-01')")
	mustExec(t, admin.mustBegin(t), "select * from interlock_lease for update")
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	if _, err := d.Sweep(ctx, time.Hour); err == nil || ctx.Err() != nil {
		t.Errorf("swept with %v, ended by us: %v", err, ctx.Err())
	}
}

// TestHoldersOfFormerVersion: their table draws no counters.
func TestHoldersOfFormerVersion(t *testing.T) {
	server := testbed.MariaDB(t)
	admin := open(t, server.URL())
	admin.do(t, `create table interlock_holder (name varbinary(512) not null primary key, lock_name char(62) character set latin1 not null,
		owner varbinary(512) not null, counter bigint not null, since datetime(6) not null, connection bigint not null) engine = InnoDB`)
	d, err := modes[0].open(t.Context(), t, server.URL(), nil)
	if err == nil {
		_, err = d.Acquire(t.Context(), request("x"))
		testbed.CloseAfter(t, d)
	}
	testbed.WantKind(t, err, interlock.Definite, nil)
	if !strings.Contains(fmt.Sprint(err), "drop") {
		t.Errorf("it does not say what to do: %v", err)
	}
	admin.do(t, "drop table interlock_holder")
	acquire(t, modes[0].mustOpen(t, server.URL(), nil), request("x"))
}

// TestTokensDoNotFollowTheClockBack: a counter that is ahead of the clock goes on. A restart of
// the server does not change that, nor an operator who empties the table of holders.
func TestTokensDoNotFollowTheClockBack(t *testing.T) {
	for table, m := range map[string]mode{"interlock_holder": modes[0], "interlock_lease": modes[1]} {
		server := mariaDB(t)
		admin := open(t, server.URL())
		d := m.mustOpen(t, server.URL(), nil)
		r := request("x")
		counter := acquire(t, d, r).Token.Counter()
		const hour = 3600_000_000
		admin.do(t, fmt.Sprintf("update %s set counter = counter + %d", table, hour))
		release(t, d, r)
		last := counter + hour
		next := func(when string) {
			t.Helper()
			r := request("x")
			testbed.Eventually(t, when+": it is granted", bound, func() bool {
				g, err := d.Acquire(t.Context(), r)
				if err == nil && g.Token.Counter() <= last {
					t.Fatalf("%s, %s: counter %d after %d", m.name, when, g.Token.Counter(), last)
				}
				last = g.Token.Counter()
				return err == nil
			})
			release(t, d, r)
		}
		next("ahead")
		server.Kill()
		server.Restart()
		next("restarted")
		if m.name == "session" {
			admin.do(t, "truncate interlock_holder")
			next("emptied")
		}
	}
}

// TestModes: the user's pool may have any sql_mode and time zone, and names any
// characters.
func TestModes(t *testing.T) {
	server := mariaDB(t)
	for _, sqlMode := range []string{"STRICT_TRANS_TABLES,EMPTY_STRING_IS_NULL", "ORACLE,SIMULTANEOUS_ASSIGNMENT", "ANSI,NO_BACKSLASH_ESCAPES", ""} {
		db := open(t, server.URL()+"?interpolateParams=true&time_zone=%27%2B05:30%27&sql_mode="+url.QueryEscape("'"+sqlMode+"'"))
		d, err := mysql.OpenTable(t.Context(), db.DB, nil)
		testbed.OK(t, err)
		defer d.Close(context.Background())
		for _, name := range []string{`it's "\`, "\U0001f512", "\u00ff'"} {
			r := request(name)
			acquire(t, d, r)
			if state, err := d.Lock(t.Context(), name); err != nil || state.Holder == nil || state.Holder.Owner != r.Owner {
				t.Errorf("%s: %q is shown as %+v, %v", sqlMode, name, state, err)
			}
			release(t, d, r)
			if state, err := d.Lock(t.Context(), name); err != nil || state.Holder != nil {
				t.Errorf("%s: %q is released and shown as %+v, %v", sqlMode, name, state, err)
			}
		}
	}
}

// TestTablesAreMadeAgain when somebody has dropped them.
func TestTablesAreMadeAgain(t *testing.T) {
	server := mariaDB(t)
	admin := open(t, server.URL())
	for table, m := range map[string]mode{"interlock_holder": modes[0], "interlock_lease": modes[1]} {
		d := m.mustOpen(t, server.URL(), nil)
		admin.do(t, "drop table "+table)
		_, err := d.Acquire(t.Context(), request("x"))
		if interlock.Kind(err) != interlock.Retryable {
			t.Errorf("%s: %v (%v)", m.name, err, interlock.Kind(err))
		}
		acquire(t, d, request("x"))
	}
}

// TestWithoutRights: a user of the tables needs no right to create any.
func TestWithoutRights(t *testing.T) {
	server := mariaDB(t)
	admin := open(t, server.URL())
	for _, m := range modes {
		m.mustOpen(t, server.URL(), nil)
	}
	admin.do(t, "create user app@127.0.0.1", "grant select, insert, update, delete on test.* to app@127.0.0.1")
	for _, m := range modes {
		d := m.mustOpen(t, strings.Replace(server.URL(), "root@", "app@", 1), nil)
		r := request("x")
		acquire(t, d, r)
		release(t, d, r)
	}
}

// numbering is a proxy that gives connections numbers of its own.
func numbering(t *testing.T, target string) (addr string) {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	testbed.OK(t, err)
	var all sync.WaitGroup
	t.Cleanup(func() { listener.Close(); all.Wait() })
	all.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp4", target)
			if err != nil {
				conn.Close()
				return
			}
			all.Go(func() { io.Copy(server, conn); server.Close() })
			all.Go(func() { renumber(conn, server); conn.Close() })
		}
	})
	return listener.Addr().String()
}

// renumber passes on what the server says, its greeting with another number.
func renumber(to io.Writer, from io.Reader) {
	hello := make([]byte, 4<<10)
	n, err := from.Read(hello)
	if err != nil {
		return
	}
	at := 5 + strings.IndexByte(string(hello[5:n]), 0) + 1
	hello[at] ^= 0x55
	if _, err := to.Write(hello[:n]); err == nil {
		io.Copy(to, from)
	}
}

func TestProxyIsRefused(t *testing.T) {
	server := mariaDB(t)
	dsn := strings.Replace(server.URL(), server.Addr(), numbering(t, server.Addr()), 1)
	_, err := mysql.Open(t.Context(), config(t, dsn), nil)
	var proxy *mysql.ProxyError
	if !errors.As(err, &proxy) || interlock.Kind(err) != interlock.Definite || !strings.Contains(err.Error(), "OpenTable") {
		t.Errorf("%v (%v)", err, interlock.Kind(err))
	}
	acquire(t, modes[1].mustOpen(t, dsn, nil), request("x"))
}

// TestAnotherNamespace, and another database, are other locks.
func TestAnotherNamespace(t *testing.T) {
	server := mariaDB(t)
	open(t, server.URL()).do(t, "create database other")
	for _, m := range modes {
		for _, d := range []driver.Fenced{
			m.mustOpen(t, server.URL(), nil),
			m.mustOpen(t, server.URL(), &mysql.Options{Namespace: "n2"}),
			m.mustOpen(t, strings.TrimSuffix(server.URL(), "test")+"other", nil),
		} {
			r := request("x")
			r.NoWait = true
			acquire(t, d, r)
		}
	}
}

// TestNoWordAfterAnAbandonedAcquire: the server grants it when nobody waits for
// the answer any more, and nobody receives its events.
func TestNoWordAfterAnAbandonedAcquire(t *testing.T) {
	t.Parallel()
	server := mariaDB(t)
	admin := open(t, server.URL())
	d := modes[0].mustOpen(t, server.URL(), &mysql.Options{TTL: 9 * time.Second}) // a statement may take 3 s
	before := request("x")
	acquire(t, d, before)
	release(t, d, before)
	unlock := lockHolders(t, admin)
	r := request("x")
	var over atomic.Bool
	told := make(chan string, 100)
	tell := func(what string) {
		if over.Load() {
			told <- what
		}
	}
	r.Events.Renewed = func(time.Duration, error) { tell("renewed") }
	r.Events.Lost = func(cause error) { tell("lost") }
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	acquired := testbed.Later(t, bound, func() error { _, err := d.Acquire(ctx, r); return err })
	testbed.Eventually(t, "the statement waits", bound, func() bool {
		return admin.text(t, "select count(*) from information_schema.processlist where state like 'Waiting for table%'") == "1"
	})
	cancel()
	if err := acquired(); interlock.Kind(err) != interlock.Uncertain {
		t.Fatalf("%v (%v)", err, interlock.Kind(err))
	}
	over.Store(true)
	unlock()
	user := func() string {
		return admin.text(t, "select coalesce(is_used_lock(?), 0)", mysql.LockName("test", "interlock", "x"))
	}
	testbed.Eventually(t, "it is granted", bound, func() bool { return user() != "0" })
	pinged := admin.status(t, "Com_select")
	testbed.Eventually(t, "the session is kept alive", bound, func() bool { return admin.status(t, "Com_select") > pinged+1 })
	admin.do(t, "kill "+user())
	release(t, d, r)
	if len(told) > 0 {
		t.Errorf("it received %q", <-told)
	}
}

// TestReadOnlyServerEndsTheSession: others take their locks on its successor.
func TestReadOnlyServerEndsTheSession(t *testing.T) {
	t.Parallel()
	server := mariaDB(t)
	admin := open(t, server.URL())
	d := modes[0].mustOpen(t, server.URL(), &mysql.Options{TTL: 3 * time.Second})
	r := request("x")
	lost := make(chan error, 10)
	r.Events.Lost = func(cause error) { lost <- cause }
	acquire(t, d, r)
	watching, unwatch := context.WithCancel(t.Context())
	watched := make(chan error, 1)
	go func() { watched <- d.(driver.Watcher).Watch(watching, "", func(string) {}) }() // it is never idle
	defer func() { unwatch(); <-watched }()
	admin.do(t, "set global read_only = 1")
	if err := testbed.Receive(t, lost, "the loss on a server that was made a replica"); !errors.Is(err, interlock.ErrSessionEnded) {
		t.Error(err)
	}
	admin.do(t, "set global read_only = 0")
	release(t, d, r)
}

// TestTokenThatIsNoneGivesTheLockBack: somebody has written nonsense.
func TestTokenThatIsNoneGivesTheLockBack(t *testing.T) {
	server := mariaDB(t)
	admin := open(t, server.URL())
	d := modes[0].mustOpen(t, server.URL(), nil)
	r := request("x")
	acquire(t, d, r)
	release(t, d, r)
	admin.do(t, "update interlock_holder set counter = 9000000000000000000")
	if g, err := d.Acquire(t.Context(), request("x")); err == nil {
		t.Errorf("granted with %v", g.Token)
	}
	if user := admin.text(t, "select coalesce(is_used_lock(?), 0)", mysql.LockName("test", "interlock", "x")); user != "0" {
		t.Errorf("connection %s has the lock", user)
	}
}

// TestForeignHolder: a session that took the lock by hand excludes us, is shown, and can be
// ended, on record.
func TestForeignHolder(t *testing.T) {
	server := mariaDB(t)
	d := modes[0].mustOpen(t, server.URL(), nil)
	admin := open(t, server.URL())
	by, err := admin.DB.Conn(t.Context())
	testbed.OK(t, err)
	defer by.Close()
	var got, id int64
	lock := mysql.LockName("test", "interlock", "x")
	if err := by.QueryRowContext(t.Context(), "select get_lock(?, 0), connection_id()", lock).Scan(&got, &id); err != nil || got != 1 {
		t.Fatal(got, err)
	}
	inspector, breaker := d.(driver.Inspector), d.(driver.Breaker)
	state, err := inspector.Lock(t.Context(), "x")
	if err != nil || state.Holder == nil || !state.Holder.Foreign || state.Holder.Owner != fmt.Sprint("connection ", id) {
		t.Fatalf("shown as %+v, %v", state.Holder, err)
	}
	b := driver.Break{Name: "y", Owner: state.Holder.Owner, Reason: "left behind", By: "an operator"}
	if _, ok, err := breaker.Break(t.Context(), b); ok || err != nil {
		t.Errorf("broken under another name: %v, %v", ok, err)
	}
	b.Name = "x"
	if record, ok, err := breaker.Break(t.Context(), b); !ok || err != nil || record.Break != b || record.Token != 0 {
		t.Errorf("%+v, %v, %v", record, ok, err)
	}
	if records, err := breaker.Breaks(t.Context(), "x", 10); err != nil || len(records) != 1 || records[0].Break != b {
		t.Errorf("recorded %+v, %v", records, err)
	}
	r := request("x")
	acquire(t, d, r)
	if state, err := inspector.Lock(t.Context(), "x"); err != nil || state.Holder == nil || state.Holder.Foreign {
		t.Errorf("our own: %+v, %v", state.Holder, err)
	}
	release(t, d, r)
	if state, err := inspector.Lock(t.Context(), "x"); err != nil || state.Holder != nil {
		t.Errorf("nobody: %+v, %v", state.Holder, err)
	}
}

// TestNamesAreThoseOfTheGuard: what its column refuses, the lock refuses.
func TestNamesAreThoseOfTheGuard(t *testing.T) {
	server := mariaDB(t)
	for _, m := range modes {
		d := m.mustOpen(t, server.URL(), nil)
		for _, name := range []string{"a\x00b", "\xff"} {
			_, err := d.Acquire(t.Context(), request(name))
			if !errors.Is(err, interlock.ErrName) || interlock.Kind(err) != interlock.Bug {
				t.Errorf("%s: %q: %v", m.name, name, err)
			}
		}
	}
}

// TestNobodyListens: a request that found no connection was not sent.
func TestNobodyListens(t *testing.T) {
	server := mariaDB(t)
	for _, m := range modes {
		proxy := testbed.NewProxy(t, server.Addr())
		d := m.mustOpen(t, behind(server, proxy), &mysql.Options{TTL: 3 * time.Second})
		proxy.Close()
		testbed.Eventually(t, m.name+": a refused connection is Retryable", bound, func() bool {
			r := request("n")
			r.NoWait = true
			_, err := d.Acquire(t.Context(), r)
			return interlock.Kind(err) == interlock.Retryable
		})
	}
}

// TestOpenOnASlowServer: opening is many statements, and may take longer than one of them.
func TestOpenOnASlowServer(t *testing.T) {
	t.Parallel()
	server := mariaDB(t)
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			proxy := testbed.NewProxy(t, server.Addr())
			proxy.Delay(75 * time.Millisecond) // each way; a statement may take a second
			d, err := m.open(t.Context(), t, behind(server, proxy), &mysql.Options{TTL: suiteTTL})
			testbed.OK(t, err)
			proxy.Heal()
			testbed.OK(t, d.Close(t.Context()))
		})
	}
}
