package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// holders is how many sessions hold the lock of name.
func holders(t testing.TB, o *pgxpool.Pool, key int64) int {
	t.Helper()
	return value[int](t, o, `select count(*) from pg_locks where locktype = 'advisory' and objsubid = 1 and granted
		and (classid::bigint << 32 | objid::bigint) = $1`, key)
}

// A half-open session, whose process is cut off or stopped, keeps its locks for
// the TTL and no longer: the server ends it by itself, and not before the holder
// has stopped believing.
func TestHalfOpenSessionIsBounded(t *testing.T) {
	t.Parallel()
	server := EmptyServer(t)
	o := operator(t, server.URL())
	proxy := testbed.NewProxy(t, server.Addr())
	d := openOn(t, proxy.Addr(), suiteTTL)
	g := hold(t, d, "x")
	proxy.Cut()
	began := time.Now()
	testbed.Eventually(t, "the server ends the session", suiteTTL+bound, func() bool { return holders(t, o, d.key("x")) == 0 })
	took := time.Since(began)
	t.Logf("a half-open session kept its lock for %v with a TTL of %v", took.Round(time.Millisecond), suiteTTL)
	if left := g.grant.Lease.Remaining(); left > 0 {
		t.Errorf("the holder believed in %v more when the server freed the lock", left)
	}
	if took > suiteTTL+2*time.Second {
		t.Errorf("it took %v, the TTL is %v", took, suiteTTL)
	}
}

// A holder whose session only the server saw end keeps its lock until its own
// deadline, unless it releases it; a session that opened meanwhile removes nothing.
func TestEndThatOnlyTheServerSees(t *testing.T) {
	t.Parallel()
	server := EmptyServer(t)
	proxy := testbed.NewProxy(t, server.Addr())
	d, other := openOn(t, proxy.Addr(), suiteTTL), openOn(t, server.Addr(), time.Minute)
	x, y := hold(t, d, "x"), hold(t, d, "y")
	proxy.Abandon()
	waiting := await(t, other, "x")
	fresh := openOn(t, server.Addr(), suiteTTL)
	if held := refuse(t, fresh, "x"); held.Owner != x.owner {
		t.Errorf("held by %q, want %q", held.Owner, x.owner)
	}
	state, err := fresh.Lock(t.Context(), "x")
	if err != nil || state.Holder == nil || state.Holder.Owner != x.owner || state.Holder.Expires <= 0 {
		t.Errorf("the holder that may believe in its lock is shown as %+v (%v)", state.Holder, err)
	}
	_, ok, err := fresh.Break(t.Context(), driver.Break{Name: "y", Owner: y.owner, Reason: "gone", By: "an operator"})
	if err != nil || !ok {
		t.Errorf("break: %v, %v", ok, err)
	}
	take(t, fresh, "y")
	next := testbed.Receive(t, waiting, "the next holder")
	if left := x.grant.Lease.Remaining(); left > 0 {
		t.Errorf("the next one was granted while the former believed in %v more", left)
	}
	if next.err != nil || next.grant.Token <= x.grant.Token {
		t.Errorf("token %v after %v (%v)", next.grant.Token, x.grant.Token, next.err)
	}
	give(t, other, "x", next.owner)
	give(t, fresh, "x", take(t, fresh, "x")) // the tries before have left no lock behind
}

// The end of a session by the server is reported to every holder at once, long before
// any deadline. What they release is free at once.
func TestEndOfTheSessionIsToldAtOnce(t *testing.T) {
	t.Parallel()
	server := EmptyServer(t)
	o := operator(t, server.URL())
	d, other := openOn(t, server.Addr(), 10*time.Minute), openOn(t, server.Addr(), time.Minute)
	var held []grantOf
	for i := range 20 {
		held = append(held, hold(t, d, fmt.Sprint("n/", i)))
	}
	exec(t, o, `select pg_terminate_backend($1::int)`, d.session.pid)
	for _, g := range held {
		if cause := testbed.Receive(t, g.lost, "word of the loss"); !errors.Is(cause, interlock.ErrSessionEnded) {
			t.Errorf("told %v", cause)
		}
		if g.grant.Lease.Remaining() > 0 {
			t.Error("a lease outlives its session")
		}
	}
	// A new session revives none of them.
	give(t, d, "n/0", take(t, d, "n/0"))
	for i, g := range held {
		if g.grant.Lease.Remaining() > 0 {
			t.Errorf("lease %d was revived", i)
		}
		give(t, d, fmt.Sprint("n/", i), g.owner)
	}
	give(t, other, "n/1", take(t, other, "n/1"))
}

// A session that was given up may still be there for the server; the next one
// of the driver ends it and does not wait for its time to run out.
func TestNextSessionEndsTheFormer(t *testing.T) {
	t.Parallel()
	server := EmptyServer(t)
	o := operator(t, server.URL())
	first, second := testbed.NewProxy(t, server.Addr()), testbed.NewProxy(t, server.Addr())
	const ttl = 10 * time.Minute
	d := openOn(t, first.Addr(), ttl)
	g := hold(t, d, "x")
	first.Cut()
	d.dialer.config = configOf(t, urlAt(second.Addr()))
	d.mu.Lock()
	s := d.session
	d.mu.Unlock()
	s.pipe.end(errNoAnswer)
	testbed.Receive(t, g.lost, "word of the loss")
	if holders(t, o, d.key("x")) != 1 {
		t.Fatal("the server has noticed, and nothing is tested")
	}
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	testbed.OK(t, attempt(ctx, d, "x", driver.Request{}).err)
}

// A try that fails does not fail those that shared its statement, and leaves no lock: sessions keep
// locks over failed transactions.
func TestFailedTryFailsAlone(t *testing.T) {
	t.Parallel()
	server := EmptyServer(t)
	o := operator(t, server.URL())
	d := openOn(t, server.Addr(), time.Minute)
	for _, statement := range []string{
		`create function refuse() returns trigger language plpgsql as $$ begin
			if new.name like 'bad/%' then raise exception 'refused'; end if; return new; end $$`,
		`create trigger refuse before insert on interlock_holder for each row execute function refuse()`,
	} {
		exec(t, o, statement)
	}
	sent, goOn := d.sentCalls(), stall(t, o)
	answers := make(chan grantOf, 10)
	ask := func(name string) { go func() { answers <- attempt(t.Context(), d, name, driver.Request{}) }() }
	for i := range mostFlights {
		ask(fmt.Sprint("first/", i))
		testbed.Eventually(t, "the server is busy", bound, func() bool { return d.sentCalls() > sent+int64(i) })
	}
	names := map[string]int{"good/1": 1, "bad/1": 0, "good/2": 1, "bad/2": 0, "good/3": 1}
	for name := range names {
		ask(name)
	}
	testbed.Eventually(t, "the others wait", bound, func() bool { return d.queued() == len(names) })
	for i := range mostFlights {
		names[fmt.Sprint("first/", i)] = 1
	}
	goOn()
	granted := map[string]bool{}
	for range names {
		if g := testbed.Receive(t, answers, "an answer"); g.err == nil {
			granted[g.owner] = true
		} else if interlock.Kind(g.err) != interlock.Definite {
			t.Errorf("%v (%v)", g.err, interlock.Kind(g.err))
		}
	}
	if want := mostFlights + 3; len(granted) != want {
		t.Errorf("%d have a lock, want %d", len(granted), want)
	}
	for name, want := range names {
		testbed.Eventually(t, fmt.Sprintf("%s is held %d times", name, want), bound, func() bool { return holders(t, o, d.key(name)) == want })
		for owner := range granted {
			if want == 1 {
				give(t, d, name, owner) // one of them has it
			}
		}
		if n := holders(t, o, d.key(name)); n != 0 {
			t.Errorf("%s is held by %d after its release", name, n)
		}
	}
}

// A lock without its row, which an operator has deleted, is given up all the same.
func TestReleaseWithoutARow(t *testing.T) {
	t.Parallel()
	server := EmptyServer(t)
	o := operator(t, server.URL())
	d := openOn(t, server.Addr(), suiteTTL)
	owner := take(t, d, "x")
	exec(t, o, `delete from interlock_holder`)
	give(t, d, "x", owner)
	if n := holders(t, o, d.key("x")); n != 0 {
		t.Errorf("%d hold it", n)
	}
}

// A release by another process, in the name of the holder, does not remove the record of a
// lock that stays with the holder's session.
func TestReleaseByAnotherProcessOfTheSameOwner(t *testing.T) {
	t.Parallel()
	server := EmptyServer(t)
	x, y := openOn(t, server.Addr(), time.Minute), openOn(t, server.Addr(), time.Minute)
	owner := take(t, x, "shared owner")
	give(t, y, "shared owner", owner)
	state, err := y.Lock(t.Context(), "shared owner")
	if err != nil || state.Holder == nil || state.Holder.Owner != owner || state.Holder.Foreign {
		t.Errorf("holder %+v, %v; want %s", state.Holder, err, owner)
	}
	give(t, x, "shared owner", owner)
	give(t, y, "shared owner", take(t, y, "shared owner"))
}

// A lock that could not be given up does not stay with the session.
func TestFailedReleaseLeavesNoLock(t *testing.T) {
	t.Parallel()
	server := EmptyServer(t)
	o := operator(t, server.URL())
	d := openOn(t, server.Addr(), time.Minute)
	g, other := hold(t, d, "x"), hold(t, d, "other")
	exec(t, o, `create function refuse() returns trigger language plpgsql as $$ begin raise exception 'refused'; end $$`)
	exec(t, o, `create trigger refuse before delete on interlock_holder for each row execute function refuse()`)
	if err := d.Release(t.Context(), "x", g.owner); err == nil {
		t.Fatal("its row was deleted")
	}
	testbed.Receive(t, other.lost, "word of the session's end")
	testbed.Eventually(t, "nobody holds it", bound, func() bool { return holders(t, o, d.key("x")) == 0 })
	exec(t, o, `drop trigger refuse on interlock_holder`)
	give(t, d, "x", g.owner)
	give(t, d, "x", take(t, d, "x"))
}

// Two names with one key exclude each other, between processes and in one, and
// neither takes the other's hold for its own.
func TestNamesWithOneKey(t *testing.T) {
	t.Parallel()
	server := EmptyServer(t)
	a, b := openOn(t, server.Addr(), suiteTTL), openOn(t, server.Addr(), suiteTTL)
	for _, d := range []*Driver{a, b} {
		d.key = func(string) int64 { return 42 }
	}
	for _, other := range []*Driver{a, b} {
		owner := take(t, a, "one")
		if held := refuse(t, other, "two"); held.Owner != owner || held.Name != "two" {
			t.Errorf("the error says that %q is held by %q, want %q", held.Name, held.Owner, owner)
		}
		state, err := other.Lock(t.Context(), "two")
		if err != nil || state.Holder != nil {
			t.Errorf("the holder of another name is shown: %+v, %v", state.Holder, err)
		}
		waiting := await(t, other, "two")
		give(t, other, "two", owner) // it is not the owner of two
		refuse(t, b, "one")
		give(t, a, "one", owner)
		g := testbed.Receive(t, waiting, "the other name")
		testbed.OK(t, g.err)
		give(t, other, "two", g.owner)
	}
}

// A foreigner who takes the key by hand excludes us.
func TestForeignHolder(t *testing.T) {
	t.Parallel()
	server := EmptyServer(t)
	o := operator(t, server.URL())
	d := openOn(t, server.Addr(), suiteTTL)
	tx, err := o.Begin(t.Context())
	testbed.OK(t, err)
	defer tx.Rollback(context.Background())
	_, err = tx.Exec(t.Context(), `select pg_advisory_xact_lock($1)`, Key(DefaultNamespace, "x"))
	testbed.OK(t, err)
	if held := refuse(t, d, "x"); held.Owner != "" {
		t.Errorf("held by %q", held.Owner)
	}
	state, err := d.Lock(t.Context(), "x")
	if err != nil || state.Holder == nil || !state.Holder.Foreign || !strings.HasPrefix(state.Holder.Owner, "process ") {
		t.Fatalf("a foreign holder is shown as %+v (%v)", state.Holder, err)
	}
	by := driver.Break{Name: "y", Owner: state.Holder.Owner, Reason: "left behind", By: "an operator"}
	if _, ok, err := d.Break(t.Context(), by); ok || err != nil {
		t.Errorf("broken under another name: %v, %v", ok, err)
	}
	waiting := await(t, d, "x")
	by.Name = "x"
	if record, ok, err := d.Break(t.Context(), by); !ok || err != nil || record.Reason != by.Reason {
		t.Errorf("break of a foreign holder: %+v, %v, %v", record, ok, err)
	}
	if records, err := d.Breaks(t.Context(), "x", 10); err != nil || len(records) != 1 || records[0].Owner != by.Owner {
		t.Errorf("the record is %+v, %v", records, err)
	}
	testbed.OK(t, testbed.Receive(t, waiting, "the lock that a foreigner gave up").err)
}

// Every token is at most what is reserved, also after a crash, and no token comes twice. Those
// that are below do not wait for the disk.
func TestTokensOverACrash(t *testing.T) {
	t.Parallel()
	server := testbed.Postgres(t, "-c", "fsync=on", "-c", "wal_writer_delay=10s")
	d := openOn(t, server.Addr(), time.Minute)
	o := operator(t, server.URL())
	read := func(query string) int64 { return value[int64](t, o, query) }
	const reserved, flushed = `select counter from interlock_reserved`, `select (pg_current_wal_flush_lsn() - '0/0')::bigint`
	spared := false
	for range 4 { // the server may flush by itself, but not each time
		give(t, d, "x", take(t, d, "x"))
		before := read(flushed)
		g := hold(t, d, "x")
		spared = spared || read(flushed) == before
		if most := read(reserved); g.grant.Token.Counter() > most {
			t.Errorf("the counter %d was granted, and %d is reserved", g.grant.Token.Counter(), most)
		}
		give(t, d, "x", g.owner)
	}
	if !spared {
		t.Error("each grant waits for the disk")
	}
	g := hold(t, d, "x")
	for range 5 {
		give(t, d, "x", g.owner)
		server.Kill()
		server.Restart()
		var next grantOf
		testbed.Eventually(t, "a grant after the crash", bound, func() bool {
			next = attempt(t.Context(), d, "x", driver.Request{})
			return next.err == nil
		})
		if next.grant.Token <= g.grant.Token {
			t.Fatalf("token %d after a crash, before it was %d", next.grant.Token, g.grant.Token)
		}
		g = next
	}
}

// The clock is not what makes tokens rise over a crash: without it they go on above what was
// reserved.
func TestSequenceOverACrash(t *testing.T) {
	t.Parallel()
	server := testbed.Postgres(t, "-c", "fsync=on", "-c", "wal_writer_delay=10s")
	o := operator(t, server.URL())
	d := openOn(t, server.Addr(), time.Minute)
	exec(t, o, `select setval('interlock_token', $1)`, interlock.CounterAt(time.Now().Add(time.Hour)))
	before := hold(t, d, "y").grant.Token
	openOn(t, server.Addr(), time.Minute) // while a session lives, nothing is left out, if the clock is behind
	if next := hold(t, d, "z").grant.Token; next.Counter() != before.Counter()+1 {
		t.Errorf("token %d after %d", next, before)
	}
	ahead := interlock.CounterAt(time.Now().Add(24 * time.Hour))
	exec(t, o, `select setval('interlock_token', $1)`, ahead)
	for _, grants := range []int{1, 41} { // the first one reserves
		var g grantOf
		for range grants {
			g = hold(t, d, "x")
			give(t, d, "x", g.owner)
		}
		server.Kill()
		server.Restart()
		last := g.grant.Token
		testbed.Eventually(t, "a grant after the crash", bound, func() bool {
			g = attempt(t.Context(), d, "x", driver.Request{})
			return g.err == nil
		})
		if g.grant.Token <= last {
			t.Fatalf("token %d after a crash, before it was %d", g.grant.Token, last)
		}
		give(t, d, "x", g.owner)
	}
}

// A holder whose process does not answer is broken by the end of its session;
// one that does loses this lock alone, which the suite has.
func TestBreakOfAHungHolder(t *testing.T) {
	t.Parallel()
	server := EmptyServer(t)
	proxy := testbed.NewProxy(t, server.Addr())
	hung, d := openOn(t, proxy.Addr(), 10*time.Minute), openOn(t, server.Addr(), time.Minute)
	g, other := hold(t, hung, "x"), hold(t, hung, "other")
	proxy.Cut()
	_, ok, err := d.Break(t.Context(), driver.Break{Name: "x", Owner: g.owner, Reason: "hung", By: "an operator"})
	if err != nil || !ok {
		t.Fatalf("%v, %v", ok, err)
	}
	give(t, d, "x", take(t, d, "x"))
	refuse(t, d, "other") // its process may believe in it
	proxy.Heal()
	testbed.Receive(t, other.lost, "word of the other loss")
}

// Servers that cannot keep locks are refused with the reason.
func TestRefusedServers(t *testing.T) {
	t.Parallel()
	server := EmptyServer(t)
	o := operator(t, server.URL())
	exec(t, o, `create database latin encoding 'LATIN1' template template0`)
	config := configOf(t, server.URL())
	config.Database = "latin"
	_, err := Open(t.Context(), config, nil)
	var refused *refusal
	if !errors.As(err, &refused) || interlock.Kind(err) != interlock.Definite {
		t.Errorf("a database in LATIN1: %v (%v)", err, interlock.Kind(err))
	}
	for _, bad := range []*Options{{TTL: time.Millisecond}, {TTL: 100 * time.Hour}, {Namespace: "a; drop table"}, {Namespace: "UP"}} {
		if _, err := Open(t.Context(), configOf(t, server.URL()), bad); interlock.Kind(err) != interlock.Bug || err == nil {
			t.Errorf("%+v: %v", *bad, err)
		}
	}
	if _, err := Open(t.Context(), nil, nil); err == nil || interlock.Kind(err) != interlock.Bug {
		t.Errorf("no configuration: %v", err)
	}
}

// What a dead session left is removed by the next one, and shown by nobody.
func TestDeadSessionsAreSwept(t *testing.T) {
	t.Parallel()
	server := EmptyServer(t)
	o := operator(t, server.URL())
	d := openOn(t, server.Addr(), suiteTTL)
	for _, insert := range []string{
		`insert into interlock_waiter (key, owner, name, session) values ($1, 'dead', 'x', 7)`,
		`insert into interlock_holder (key, owner, name, session, counter, ttl_ms, since) values ($1, 'deader', 'x', 7, 9, 1000, now() - interval '1 hour')`,
		`insert into interlock_session (session, seen, ttl_ms) select 7, now() - interval '1 hour', 1000 where $1::bigint <> 0`,
	} {
		exec(t, o, insert, d.key("x"))
	}
	state, err := d.Lock(t.Context(), "x")
	if err != nil || state.Holder != nil || len(state.Waiters) > 0 {
		t.Errorf("the dead are shown: %+v, %v", state, err)
	}
	owner := take(t, d, "x")
	began := time.Now()
	waiting := await(t, openOn(t, server.Addr(), suiteTTL), "x") // its session sweeps
	give(t, d, "x", owner)
	testbed.Receive(t, waiting, "the one behind the dead")
	t.Logf("handed over after %v", time.Since(began).Round(time.Millisecond))
	if left := value[int](t, o, `select (select count(*) from interlock_waiter where session = 7)
		+ (select count(*) from interlock_holder where session = 7)
		+ (select count(*) from interlock_session where session = 7)`); left != 0 {
		t.Errorf("%d rows are left", left)
	}
}

// A hand-over skips waiters whose session is dead, without their heartbeats.
func TestDeadWaiterIsSkippedAtOnce(t *testing.T) {
	t.Parallel()
	server := EmptyServer(t)
	o := operator(t, server.URL())
	a, b := openOn(t, server.Addr(), suiteTTL), openOn(t, server.Addr(), suiteTTL)
	for i := range 10 {
		owner := take(t, a, "x")
		exec(t, o, `insert into interlock_waiter (key, owner, name, session) values ($1, 'dead' || $2::int, 'x', 7)`, a.key("x"), i)
		b.mu.Lock()
		b.table.heartbeat = func() time.Duration { return time.Hour }
		b.mu.Unlock()
		waiting := await(t, b, "x")
		give(t, a, "x", owner)
		give(t, b, "x", testbed.Receive(t, waiting, "the one behind the dead").owner)
	}
}

// Two schemas have two sequences, whose tokens do not compare, and one key.
func TestSessionsOfOneNamespaceUseOneSchema(t *testing.T) {
	t.Parallel()
	server := EmptyServer(t)
	o := operator(t, server.URL())
	exec(t, o, `create schema a; create schema b`)
	in := func(schema string) (*Driver, error) {
		return Open(t.Context(), configOf(t, server.URL()+"&search_path="+schema), &Options{TTL: suiteTTL})
	}
	first, err := in("a")
	testbed.OK(t, err)
	second, err := in("a")
	testbed.OK(t, err)
	testbed.CloseAfter(t, second)
	if _, err := in("b"); err == nil || interlock.Kind(err) != interlock.Definite {
		t.Fatalf("opened in another schema: %v", err)
	}
	for _, d := range []*Driver{first, second} {
		testbed.OK(t, d.Close(t.Context()))
	}
	testbed.Eventually(t, "a driver of another schema opens when the others are gone", bound, func() bool {
		d, err := in("b")
		if err == nil {
			testbed.CloseAfter(t, d)
		}
		return err == nil
	})
}

// A session whose tables or statements are gone ends: the next one creates them
// again. Statements are gone where another server process answers.
func TestSessionWithoutTablesOrStatementsEnds(t *testing.T) {
	t.Parallel()
	server := EmptyServer(t)
	o := operator(t, server.URL())
	d := openOn(t, server.Addr(), time.Minute)
	for what, spoil := range map[string]func(*session){
		"the tables are gone": func(*session) {
			exec(t, o, `drop table interlock_holder; drop sequence interlock_token`)
			if g := attempt(t.Context(), d, "other", driver.Request{}); interlock.Kind(g.err) != interlock.Retryable {
				t.Errorf("without tables: %v (%v)", g.err, interlock.Kind(g.err))
			}
		},
		"another process answers a ping": func(s *session) { d.run(s, step{"interlock_unheard_of", nil}) },
	} {
		g := hold(t, d, what)
		d.mu.Lock()
		s := d.session
		d.mu.Unlock()
		spoil(s)
		if err := testbed.Receive(t, g.lost, what); !errors.Is(err, interlock.ErrSessionEnded) {
			t.Errorf("%s: %v", what, err)
		}
		if again := hold(t, d, what+" again"); again.grant.Token <= g.grant.Token {
			t.Errorf("%s: token %v after %v", what, again.grant.Token, g.grant.Token)
		}
	}
}

// TestLastWords: what a server or a pooler says as it gives up tells nothing of the
// COMMIT, unless it can only have come before. transaction_timeout, which PostgreSQL has
// from version 17 on, is one of those that may come after.
func TestLastWords(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		severity, state string
		want            interlock.ErrorKind
	}{
		{"FATAL", "25P03", interlock.Retryable},
		{"FATAL", "25P04", interlock.Uncertain},
		{"FATAL", "57P01", interlock.Uncertain},
		{"FATAL", "42501", interlock.Uncertain},
		{"PANIC", "22012", interlock.Uncertain},
		{"ERROR", "42501", interlock.Definite},
		{"", "42501", interlock.Definite},
	} {
		err := &pgconn.PgError{Severity: "in the server's language", SeverityUnlocalized: tt.severity, Code: tt.state}
		for _, at := range []stage{inCommit, inRollback} {
			if got := kindOf(at, err, false); got != tt.want {
				t.Errorf("%s %s at %v: %v, want %v", tt.severity, tt.state, at, got, tt.want)
			}
		}
		if got := kindOf(inAbandoned, err, false); got == interlock.Uncertain {
			t.Errorf("%s %s where COMMIT will not be sent: %v", tt.severity, tt.state, got)
		}
	}
}
