package mysql_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	client "github.com/go-sql-driver/mysql"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/internal/prepared/preparedtest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

// insert is a statement that every branch may run.
const insert = `insert into account values (uuid(), 1)`

var branches = preparedtest.Database[*sql.Conn]{Start: mariaDB, Insert: insert, Schema: "test", Quote: "`", Missing: "42S02",
	Open: func(ctx context.Context, t testing.TB, dsn, namespace, marks string) (preparedtest.Preparer[*sql.Conn], *sql.DB, error) {
		var db *sql.DB
		if dsn != "" {
			db = open(t, dsn).DB
		}
		p, err := mysql.OpenParticipant(ctx, db, namespace, &mysql.ParticipantOptions{Marks: marks})
		if err != nil {
			return nil, nil, err
		}
		t.Cleanup(p.Close)
		return p, db, nil
	},
	Exec: func(ctx context.Context, conn *sql.Conn, query string) error {
		_, err := conn.ExecContext(ctx, query)
		return err
	},
	ByHand: func(verb, transaction string) string { return `xa ` + verb + ` ` + literal("shop", transaction) },
}

type bank struct{ preparedtest.Bank[*sql.Conn] }

func openBank(t testing.TB, dsn, namespace string) bank {
	t.Helper()
	return bank{branches.OpenBank(t, dsn, namespace)}
}

// keeping opens a bank whose participant keeps sessions for keep.
func keeping(t testing.TB, dsn string, keep time.Duration) (bank, *mysql.Participant) {
	t.Helper()
	db := open(t, dsn).DB
	p, err := mysql.OpenParticipant(t.Context(), db, "shop", &mysql.ParticipantOptions{Keep: keep})
	testbed.OK(t, err)
	t.Cleanup(p.Close)
	return bank{branches.BankOf(t, p, db)}, p
}

// preparedByHand prepares a branch in which statements ran, without the participant.
func (b bank) preparedByHand(t testing.TB, xid string, queries ...string) *sql.Conn {
	t.Helper()
	conn, err := b.DB.Conn(t.Context())
	testbed.OK(t, err)
	t.Cleanup(func() { conn.Close() })
	for _, q := range slices.Concat([]string{`xa start ` + xid}, queries, []string{`xa end ` + xid, `xa prepare ` + xid}) {
		if _, err := conn.ExecContext(t.Context(), q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
	return conn
}

// recovered returns the server's list of prepared branches.
func (b bank) recovered(t testing.TB) (all []string) {
	t.Helper()
	rows, err := b.DB.QueryContext(t.Context(), `xa recover`)
	testbed.OK(t, err)
	defer rows.Close()
	for rows.Next() {
		var format, gtrid, bqual int
		var data string
		testbed.OK(t, rows.Scan(&format, &gtrid, &bqual, &data))
		all = append(all, data)
	}
	testbed.OK(t, rows.Err())
	return all
}

var branchOf = preparedtest.One

func TestBranches(t *testing.T) { t.Parallel(); preparedtest.Run(t, branches) }

// roles are the roles of processes that crash.
var roles = map[string]crash.Role{"branch": preparedtest.Drive(branches, func(ctx context.Context, dsn string, wire *crash.Wire) (driver.Preparer[*sql.Conn], error) {
	config, err := client.ParseDSN(dsn)
	if err != nil {
		return nil, err
	}
	config.DialFunc = wire.Dial
	connector, err := client.NewConnector(config)
	if err != nil {
		return nil, err
	}
	return mysql.OpenParticipant(ctx, sql.OpenDB(connector), "crash", nil)
})}

func TestKilledAtEveryRequest(t *testing.T) { preparedtest.Crashes(t, branches, "branch") }

// TestParticipant keeps sessions for a short time, for which others wait.
func TestParticipant(t *testing.T) { t.Parallel(); runParticipant(t, 200*time.Millisecond, "") }

// TestParticipantLogged: with a binary log, which takes part in every commit like an engine, the
// client's other options, and sessions that are not kept.
func TestParticipantLogged(t *testing.T) {
	t.Parallel()
	runParticipant(t, -1, "?interpolateParams=true&clientFoundRows=true", "--log-bin=log", "--binlog-format=row", "--server-id=1")
}

// TestWaitingBranches: a prepared branch is finished although others wait for its rows.
func TestWaitingBranches(t *testing.T) {
	t.Parallel()
	url := mariaDB(t).URL()
	db := open(t, url).DB
	db.SetMaxOpenConns(4)
	p, err := mysql.OpenParticipant(t.Context(), db, "shop", &mysql.ParticipantOptions{Keep: -1})
	testbed.OK(t, err)
	t.Cleanup(p.Close)
	preparedtest.Waiting(t, branches.BankOf(t, p, open(t, url).DB))
}

var participants atomic.Int64

func runParticipant(t *testing.T, keep time.Duration, options string, settings ...string) {
	shared := mariaDB(t, settings...)
	drivertest.RunParticipant(t, drivertest.ParticipantHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.ParticipantBackend {
			server := shared
			if exclusive {
				server = mariaDB(t, settings...)
			}
			n := participants.Add(1)
			table := fmt.Sprint("kept_", n)
			open(t, server.URL()).do(t, `create table `+table+` (k varchar(20) primary key, v int)`)
			return paths.At(server, func(t *testing.T, addr string) (drivertest.Branches, error) {
				db := open(t, dsnAt(server, addr)+options)
				p, err := mysql.OpenParticipant(t.Context(), db.DB, fmt.Sprint("n-", n), &mysql.ParticipantOptions{Keep: keep})
				if err != nil {
					return nil, err
				}
				t.Cleanup(p.Close)
				return drivertest.PreparerOf(p, func(ctx context.Context, conn *sql.Conn, key string, value int) error {
					_, err := mysql.Session(conn).Exec(ctx, `insert into `+table+` values (?, ?) on duplicate key update v = values(v)`, key, value)
					return err
				}, func(ctx context.Context, key string) (value int, err error) {
					err = db.QueryRowContext(ctx, `select coalesce((select v from `+table+` where k = ?), 0)`, key).Scan(&value)
					return value, err
				}), nil
			})
		},
	})
}

// errGone makes database/sql close a connection.
var errGone = sqldriver.ErrBadConn

// TestUnsafeServers: no participant opens on a server that can lose prepared branches, or replicate
// parts of them.
func TestUnsafeServers(t *testing.T) {
	for _, option := range []string{"--replicate-do-db=shop", "--replicate-wild-ignore-table=shop.%", "--read-only=1", "--log-bin=log --binlog-ignore-db=shop"} {
		server := testbed.MariaDB(t, strings.Fields(option)...)
		_, err := mysql.OpenParticipant(t.Context(), open(t, server.URL()).DB, "shop", nil)
		wantKind(t, err, interlock.Definite, 0)
		if err != nil && !strings.Contains(err.Error(), "filter") && !strings.Contains(err.Error(), "read-only") {
			t.Errorf("%s: %v does not say so", option, err)
		}
	}
}

// TestParticipantNeedsAutocommit: the mark of a Rollback in a session that does not commit by itself would
// end with the session, and a late Prepare would succeed.
func TestParticipantNeedsAutocommit(t *testing.T) {
	server := mariaDB(t)
	pool := open(t, server.URL()+"?autocommit=0")
	p, err := mysql.OpenParticipant(t.Context(), pool.DB, "shop", nil)
	if err != nil {
		wantKind(t, err, interlock.Definite, 0)
		return
	}
	t.Cleanup(p.Close)
	testbed.OK(t, p.Rollback(t.Context(), branchOf("t")))
	testbed.OK(t, pool.Close())
	t.Errorf("a branch is rolled back, with %s marks", open(t, server.URL()).text(t, "select count(*) from interlock_committed"))
}

// TestBranchCannotBeLeft: statements that would end the branch, or commit, are refused, and the
// branch continues.
func TestBranchCannotBeLeft(t *testing.T) {
	b := openBank(t, mariaDB(t).URL(), "shop")
	conn, p := b.Branch(t, branchOf("t"), insert)
	for _, q := range []string{`commit`, `rollback`, `begin`, `create table x (i int)`, `truncate account`, `xa start 'other'`} {
		if _, err := conn.ExecContext(t.Context(), q); err == nil {
			t.Errorf("%s is done inside of a branch", q)
		}
	}
	preparedtest.WantVote(t, p, driver.VoteYes)
	if _, err := conn.ExecContext(t.Context(), insert); err == nil {
		t.Error("something is done after the end")
	}
	if err := b.Commit(t.Context(), branchOf("t")); err != nil || b.Text(t, `select count(*) from account`) != "1" {
		t.Errorf("%v, %s rows", err, b.Text(t, `select count(*) from account`))
	}
	if _, err := conn.ExecContext(t.Context(), insert); !errors.Is(err, sql.ErrConnDone) {
		t.Errorf("in a session of another user: %v", err)
	}
}

// TestEndedBehindOurBack: after an XA END by the user every call has its answer, and the session does
// not return to the pool with a branch.
func TestEndedBehindOurBack(t *testing.T) {
	b := openBank(t, mariaDB(t).URL(), "shop")
	b.DB.SetMaxOpenConns(1)
	for i, end := range []func(driver.Preparing) error{
		func(p driver.Preparing) error { _, err := p.Prepare(t.Context()); return err },
		func(p driver.Preparing) error { return p.CommitOne(t.Context()) },
		func(p driver.Preparing) error { return errors.Join(p.Abandon(t.Context()), errors.New("as it should")) },
	} {
		x := branchOf(fmt.Sprint("t", i))
		_, p := b.Branch(t, x, insert, fmt.Sprintf(`xa end X'%x',X'%x',%d`, x.Transaction, "shop/b", 0x494c4f4b))
		if err := end(p); err == nil {
			t.Errorf("%d: no error", i)
		}
		b.Do(t, `begin`, `commit`) // refused within a branch
	}
	if left := b.Text(t, `select count(*) from account`); left != "0" || len(b.recovered(t)) != 0 {
		t.Errorf("%s rows and %v are left", left, b.recovered(t))
	}
}

// TestDeadlockVotesNo: a branch that the server has undone is not prepared, although its user
// ignored the error, and its session can be used again.
func TestDeadlockVotesNo(t *testing.T) {
	b := openBank(t, mariaDB(t).URL(), "shop")
	b.Do(t, `insert into account values ('a', 1), ('b', 1)`)
	const update = `update account set balance = balance + 1 where id = `
	x, px := b.Branch(t, branchOf("x"), update+`'a'`)
	y, py := b.Branch(t, branchOf("y"), update+`'b'`)
	errs := make(chan error, 1)
	go func() { _, err := x.ExecContext(t.Context(), update+`'b'`); errs <- err }()
	_, err := y.ExecContext(t.Context(), update+`'a'`)
	if (<-errs == nil) == (err == nil) {
		t.Fatal("there was no deadlock")
	}
	victim, other := px, py
	if err != nil {
		victim, other = py, px
	}
	vote, err := victim.Prepare(t.Context())
	if vote != driver.VoteNo || interlock.Kind(err) != interlock.Retryable {
		t.Errorf("the victim votes %v, %v (%v)", vote, err, interlock.Kind(err))
	}
	testbed.OK(t, other.CommitOne(t.Context()))
	if sum := b.Text(t, `select sum(balance) from account`); sum != "4" || len(b.Doubts(t)) != 0 {
		t.Errorf("the sum is %s, in doubt are %v", sum, b.Doubts(t))
	}
}

// TestEveryChangeIsOne: a branch that changed anything never counts as read-only, and needs a
// decision.
func TestEveryChangeIsOne(t *testing.T) {
	b := openBank(t, mariaDB(t).URL(), "shop")
	b.Do(t, `insert into account values ('a', 1), ('b', 1), ('c', 1)`)
	for i, query := range []string{`update account set balance = 2 where id = 'a'`, `delete from account where id = 'b'`,
		`replace into account values ('c', 2)`, `insert into account values ('c', 3) on duplicate key update balance = 3`, insert} {
		x := branchOf(fmt.Sprint("t", i))
		b.Prepared(t, x, query)
		testbed.OK(t, b.Rollback(t.Context(), x))
	}
	if sum := b.Text(t, `select concat(count(*), ' ', sum(balance)) from account`); sum != "3 3" {
		t.Errorf("%s after all was rolled back", sum)
	}
}

func literal(namespace, transaction string) string {
	return fmt.Sprintf(`X'%x',X'%x',%d`, transaction, namespace+"/b", 0x494c4f4b)
}

// TestOtherNamespaces: branches of other namespaces or programs are neither listed nor finished.
func TestOtherNamespaces(t *testing.T) {
	t.Parallel()
	server := mariaDB(t)
	b, other := openBank(t, server.URL(), "shop"), openBank(t, server.URL(), "shop-2")
	x := branchOf("t")
	other.Prepared(t, x, insert)
	for _, xid := range []string{`'t','shop/b',1`, `'t7','shop/b',7`, `'t'`, `'t','shop',` + fmt.Sprint(0x494c4f4b), `'it''s, you',X'00ff',1`} {
		b.preparedByHand(t, xid, insert)
	}
	if all := b.Doubts(t); len(all) != 0 {
		t.Errorf("listed: %v", all)
	}
	preparedtest.WantHeuristic(t, b.Commit(t.Context(), x))
	testbed.OK(t, b.Rollback(t.Context(), x))
	if all := other.Doubts(t); len(all) != 1 || all[0] != x {
		t.Errorf("in doubt are %v", all)
	}
	other.Decide(t, true, x)
	if left := b.recovered(t); len(left) != 5 {
		t.Errorf("of the others there are %q", left)
	}
}

// TestHeldBySession: NOTA does not prove that there is no branch, while a session has it.
func TestHeldBySession(t *testing.T) {
	t.Parallel()
	b := openBank(t, mariaDB(t).URL(), "shop")
	conn := b.preparedByHand(t, literal("shop", "t"), insert,
		`insert into interlock_committed (branch, outcome, marked, session) values ('shop/b/t', 'committed', utc_timestamp(6), connection_id())`)
	for _, err := range []error{b.Commit(t.Context(), branchOf("t")), b.Rollback(t.Context(), branchOf("t"))} {
		wantKind(t, err, interlock.Retryable, 0)
	}
	if all := b.Doubts(t); len(all) != 1 {
		t.Errorf("in doubt are %v", all)
	}
	_, _, err := b.Begin(t.Context(), branchOf("t"))
	wantKind(t, err, interlock.Retryable, 1440)
	if err := conn.Raw(func(any) error { return errGone }); err == nil {
		t.Fatal("it is not closed")
	}
	b.Decide(t, true, branchOf("t"))
	b.WantRows(t, "1")
}

// TestCostOfABranch counts the requests in addition to those of the user.
func TestCostOfABranch(t *testing.T) {
	t.Parallel()
	b := openBank(t, mariaDB(t).URL()+"?interpolateParams=true", "shop")
	b.DB.SetMaxIdleConns(5)
	b.Do(t, `do 1`)
	asked := int64(0) // its own questions
	questions := func() (n int64) {
		t.Helper()
		if _, err := fmt.Sscan(b.Text(t, `select variable_value from information_schema.global_status where variable_name = 'QUESTIONS'`), &n); err != nil {
			t.Fatal(err)
		}
		asked++
		return n - asked
	}
	preparedtest.Costs(t, b.Bank, questions, 0)
	if n := b.DB.Stats().InUse; n != 0 {
		t.Errorf("%d connections are not given back", n)
	}
}

// TestSuccessIsNotBelieved: a server's answer that a branch has ended counts only if the branch's
// mark confirms it. Here another transaction has locked the mark.
func TestSuccessIsNotBelieved(t *testing.T) {
	t.Parallel()
	for _, finish := range []func(bank) error{
		func(b bank) error { return b.Commit(t.Context(), branchOf("t")) },
		func(b bank) error { return b.Rollback(t.Context(), branchOf("t")) },
	} {
		b := openBank(t, mariaDB(t).URL(), "shop")
		holder, err := b.DB.BeginTx(t.Context(), nil)
		testbed.OK(t, err)
		defer holder.Rollback()
		if _, err := holder.Exec(`insert into interlock_committed (branch, outcome, marked, session)
			values ('shop/b/t', 'committed', utc_timestamp(6), 0)`); err != nil {
			t.Fatal(err)
		}
		conn := b.preparedByHand(t, literal("shop", "t"), insert)
		_ = conn.Raw(func(any) error { return errGone })
		testbed.Eventually(t, "the server ends the session", bound, func() bool {
			if err := finish(b); interlock.Kind(err) != interlock.Retryable {
				t.Fatalf("reported as done: %v", err)
			}
			return len(b.recovered(t)) == 0
		})
	}
}

// TestKeptNoLonger: a session is kept for Keep, and then closed, so that others can finish its
// branch; Close closes it at once.
func TestKeptNoLonger(t *testing.T) {
	t.Parallel()
	server := mariaDB(t)
	other, _ := keeping(t, server.URL(), time.Hour) // ends no session
	const keep = 300 * time.Millisecond
	b, p := keeping(t, server.URL(), keep)
	begun := time.Now()
	b.Prepared(t, branchOf("1"), insert)
	if err := other.Commit(t.Context(), branchOf("1")); err != nil || time.Since(begun) < keep {
		wantKind(t, err, interlock.Retryable, 0)
	}
	other.Decide(t, true, branchOf("1"))
	b.Prepared(t, branchOf("2"), insert)
	p.Close()
	b.Prepared(t, branchOf("3"), insert) // is not kept any more
	if n := b.DB.Stats().InUse; n != 0 {
		t.Errorf("%d connections are kept after Close", n)
	}
	for _, transaction := range []string{"2", "3"} {
		other.Decide(t, true, branchOf(transaction))
	}
	b.WantRows(t, "3")
}

// TestStoppedProcess: others finish a branch also if the process that prepared it is stopped, or its
// host has failed, so that its session does not end.
func TestStoppedProcess(t *testing.T) {
	t.Parallel()
	server := mariaDB(t)
	b, _ := keeping(t, server.URL(), time.Hour)
	other, _ := keeping(t, server.URL(), -1)
	var sessions []any
	for _, transaction := range []string{"committed", "rolled-back"} {
		conn, p := b.Branch(t, branchOf(transaction), insert)
		var session int64
		testbed.OK(t, conn.QueryRowContext(t.Context(), `select connection_id()`).Scan(&session))
		sessions = append(sessions, session)
		preparedtest.WantVote(t, p, driver.VoteYes)
	}
	patient, _ := keeping(t, server.URL(), math.MaxInt64)
	for _, p := range []bank{other, patient} { // it may be running
		wantKind(t, p.Commit(t.Context(), branchOf("committed")), interlock.Retryable, 0)
	}
	if n := other.Text(t, `select count(*) from information_schema.processlist where id in (?, ?) and command <> 'Killed'`, sessions...); n != "2" {
		t.Errorf("%s of 2 sessions are left to a process that may be at work", n)
	}
	other.Decide(t, true, branchOf("committed"))
	other.Decide(t, false, branchOf("rolled-back"))
	// It wakes up, and detects that.
	b.Decide(t, true, branchOf("committed"))
	b.Decide(t, false, branchOf("rolled-back"))
	if n := b.Text(t, `select count(*) from account`); n != "1" || len(b.recovered(t)) != 0 {
		t.Errorf("%s rows, %v in doubt", n, b.recovered(t))
	}
}

// TestSessionIsClosedByItsUser: a session that was returned to the pool with a branch does not stay
// there: statements of others in it would never be committed.
func TestSessionIsClosedByItsUser(t *testing.T) {
	b := openBank(t, mariaDB(t).URL(), "shop")
	b.DB.SetMaxOpenConns(1)
	for i, end := range []func(driver.Preparing) error{
		func(p driver.Preparing) error { _, err := p.Prepare(t.Context()); return err },
		func(p driver.Preparing) error { return p.CommitOne(t.Context()) },
		func(p driver.Preparing) error { return p.Abandon(t.Context()) },
	} {
		conn, p := b.Branch(t, branchOf(string(rune('a'+i))), insert)
		testbed.OK(t, conn.Close())
		err := end(p)
		if abandoned := i == 2; !abandoned {
			wantKind(t, err, interlock.Bug, 0)
		}
		testbed.Eventually(t, "the session is ended", bound, func() bool {
			_, err := b.DB.ExecContext(t.Context(), `insert ignore into account values (`+string(rune('1'+i))+`, 1)`)
			return err == nil
		})
		b.DB.SetMaxIdleConns(0) // on a connection without an older snapshot
		if n, want := b.Text(t, `select count(*) from account`), string(rune('1'+i)); n != want {
			t.Errorf("%d: %s rows, want %s", i, n, want)
		}
		b.DB.SetMaxIdleConns(1)
	}
}

// TestNotDetached: a branch is not finished while the storage engine has it attached to a
// session that is no longer in the list. The server would answer with success and do nothing.
// Here the number of such a session is in the text of another one's statement, which the
// engine's status shows.
func TestNotDetached(t *testing.T) {
	t.Parallel()
	b := openBank(t, mariaDB(t).URL(), "shop")
	const gone = 4_000_000_000
	conn := b.preparedByHand(t, literal("shop", "t"), insert, fmt.Sprintf(`insert into interlock_committed (branch, outcome, marked, session)
		values ('shop/b/t', 'committed', utc_timestamp(6), %d)`, gone))
	_ = conn.Raw(func(any) error { return errGone })

	shown, end := context.WithCancel(t.Context())
	defer end()
	tx := database{b.DB}.mustBegin(t)
	mustExec(t, tx, insert)
	done := testbed.Later(t, bound, func() error {
		_, err := tx.Exec(shown, fmt.Sprintf(`do sleep(600) /* MariaDB thread id %d, */`, gone))
		return err
	})
	testbed.Eventually(t, "the engine shows the number", bound, func() bool {
		var engine, name, status string
		testbed.OK(t, b.DB.QueryRowContext(t.Context(), `show engine innodb status`).Scan(&engine, &name, &status))
		return strings.Contains(status, fmt.Sprint("thread id ", gone, ","))
	})
	for _, err := range []error{b.Commit(t.Context(), branchOf("t")), b.Rollback(t.Context(), branchOf("t"))} {
		wantKind(t, err, interlock.Retryable, 0)
	}
	if n := len(b.recovered(t)); n != 1 {
		t.Errorf("%d branches are prepared: XA COMMIT was sent while a session had it", n)
	}
	end()
	if err := done(); err == nil {
		t.Error("the statement has ended by itself")
	}
	b.Decide(t, true, branchOf("t"))
	b.WantRows(t, "1")
}

// TestDetached: a user with the privilege sees whether a branch is detached; others wait for a
// bounded time.
func TestDetached(t *testing.T) {
	t.Parallel()
	server := mariaDB(t)
	b, p := keeping(t, server.URL(), time.Hour)
	b.Prepared(t, branchOf("t"), insert)
	b.Do(t, `create user stranger identified by 'x'`, `grant all on test.* to stranger`)
	far := config(t, server.URL())
	far.User, far.Passwd = "stranger", "x"
	stranger, err := mysql.OpenParticipant(t.Context(), open(t, far.FormatDSN()).DB, "shop", nil)
	testbed.OK(t, err)
	look := func(p *mysql.Participant) (got [2]bool) {
		got[0], got[1] = p.Detached(t.Context(), branchOf("t"))
		return got
	}
	if got := look(p); got != [2]bool{false, true} {
		t.Errorf("with a session: detached, known: %v", got)
	}
	if got := look(stranger); got[1] {
		t.Errorf("without the privilege: detached, known: %v", got)
	}
	p.Close()
	testbed.Eventually(t, "it is detached", bound, func() bool { return look(p) == [2]bool{true, true} })
	pauses := 0
	stranger.InPauses(func() { pauses++ })
	if err := stranger.Commit(t.Context(), branchOf("t")); err != nil || pauses != 1 {
		t.Errorf("%v, after %d pauses", err, pauses)
	}
}
