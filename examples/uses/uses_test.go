package uses

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql" // for sql.Open
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/elect"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/claim/semaphore"
	_ "github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/tcc"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// TestUsesRun runs each use on real databases, with locks in memory instead of Redis.
func TestUsesRun(t *testing.T) {
	pool, db := shop(t)
	var cancelled context.CancelFunc
	ctx, cancelled = context.WithTimeout(t.Context(), time.Minute)
	defer cancelled()
	redisURL, etcdURL = "memory://uses", "etcd://"+testbed.Etcd(t).Addr()
	did := application()
	locks, err := lock.Open(ctx, shopURL, nil)
	ok(t, err)
	defer locks.Close(t.Context())
	pg, err := postgres.OpenParticipant(ctx, pool, "uses", nil)
	ok(t, err)
	maria, err := mysql.OpenParticipant(ctx, db, "uses", nil)
	ok(t, err)
	defer maria.Close()
	for _, use := range []struct {
		name string
		run  func() error
		does string
	}{
		{"lock a thing", lockAThing, "work"},
		{"fenced write", func() error { return fencedWrite(locks, pool) }, "write"},
		{"outbox", func() error { return outboxAndRelay(pool, outbox.Message{ID: "1", Topic: "t", Payload: []byte("x")}) }, ""},
		{"idempotent handler", idempotentHandler, "listen"},
		{"inbox", func() error { return inboxConsumer("1", []byte("x")) }, "apply"},
		{"saga", sagaOfThreeSteps, ""},
		{"TCC", func() error { return tryConfirmCancel(pool) }, "try"},
		{"partitions", partitions, "work"},
		{"row lock", func() error { return rowLock(pool) }, "locked"},
		{"semaphore", semaphores, "export"},
		{"two-phase commit", func() error { return twoPhaseCommit(pg, maria) }, "credit"},
		{"elect", electALeader, "lead"},
	} {
		t.Run(use.name, func(t *testing.T) {
			clear(did)
			ok(t, use.run())
			if use.does != "" && !did[use.does] {
				t.Errorf("it has not done the work %q: %v", use.does, did)
			}
		})
	}
}

// shop creates the databases of the uses, with their tables.
func shop(t *testing.T) (*pgxpool.Pool, *sql.DB) {
	t.Helper()
	north, south := databases.Open(t, testbed.Postgres(t), databases.Pgx), databases.Open(t, testbed.MariaDB(t), databases.Maria)
	for _, side := range []*databases.DB{north, south} {
		side.Exec(t, `create table account (id int primary key, cents int not null)`)
		side.Exec(t, `insert into account values (42, 10), (43, 10)`)
	}
	shopURL = north.URL
	pool, err := pgxpool.New(t.Context(), north.URL)
	ok(t, err)
	t.Cleanup(pool.Close)
	db, err := sql.Open("mysql", south.URL)
	ok(t, err)
	t.Cleanup(func() { _ = db.Close() })
	ok(t, postgres.Create(t.Context(), pool, fence.Table{}, tcc.Table{}))
	north.Do(t, func(ctx context.Context, tx interlock.SQL) error { return tcc.Table{}.Set(ctx, tx, "room", 1) })
	return pool, db
}

// application records which work was done.
func application() map[string]bool {
	did := map[string]bool{}
	done := func(what string) error { did[what] = true; return nil }
	work = func(context.Context, interlock.Claim) error { return done("work") }
	write = func(context.Context, pgx.Tx) error { return done("write") }
	apply = func(context.Context, interlock.SQL) error { return done("apply") }
	lead = func(context.Context, *elect.Term) error { return done("lead") }
	export = func(context.Context, *semaphore.Permit) error { return done("export") }
	send = func(context.Context, outbox.Message) error { return nil }
	locked = func(context.Context, pgx.Tx, []int) error { return done("locked") }
	serve = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "done") })
	tenant = func(*http.Request) string { return "t" }
	listen = func(h http.Handler) error {
		for range 2 {
			r := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader("{}"))
			r.Header.Set("Idempotency-Key", "1")
			answer := httptest.NewRecorder()
			if h.ServeHTTP(answer, r); answer.Code != http.StatusOK || answer.Body.String() != "done" {
				return fmt.Errorf("it answered %d %s", answer.Code, answer.Body)
			}
		}
		return done("listen")
	}
	orders = func(handle func(id string) error) error {
		err := handle("order/42")
		for ; interlock.Kind(err) == interlock.Retryable && ctx.Err() == nil; err = handle("order/42") {
			time.Sleep(10 * time.Millisecond) // until this process owns its partition
		}
		return err
	}
	flight = seats(func() { did["try"] = true })
	debit = func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `update account set cents = cents - 1 where id = 42`)
		return err
	}
	credit = func(ctx context.Context, branch mysqlBranch) error {
		_, err := branch.ExecContext(ctx, `update account set cents = cents + 1 where id = 42`)
		return errors.Join(err, done("credit"))
	}
	return did
}

// seats is an airline that is never full.
type seats func()

func (s seats) Try(context.Context, string, time.Time) (string, error) { s(); return "12A", nil }
func (s seats) Confirm(context.Context, string, string) error          { return nil }
func (s seats) Cancel(context.Context, string, *string) error          { return nil }

var ok = testbed.OK

// goals are the maximum lines of a use.
var goals = map[string]int{"lock a thing": 6, "elect a leader": 8, "outbox in a transaction, with its relay": 8,
	"saga of three steps, with undo and runtime": 20, "TCC": 14, "two-phase commit": 14}

var made = regexp.MustCompile(`^\t(\w+(?:, \w+)*) :=`)

// count returns the lines of a use and the number of its variables, except for errors. A check
// of an error is part of its line.
func count(text string) (lines, objects int) {
	all := strings.Split(strings.Trim(text, "\n"), "\n")
	for i := 0; i < len(all); i++ {
		line := strings.TrimSpace(all[i])
		if m := made.FindStringSubmatch(all[i]); m != nil {
			for _, name := range strings.Split(m[1], ", ") {
				if name != "err" && name != "_" {
					objects++
				}
			}
		}
		if strings.HasPrefix(line, "if err") {
			i += 2
		}
		if line != "" && !strings.HasPrefix(line, "//") && line != "if err != nil {" {
			lines++
		}
	}
	return lines, objects
}

// TestUses checks the lines in docs/reference/uses.md, and that none exceeds its goal.
func TestUses(t *testing.T) {
	source, err := os.ReadFile("uses.go")
	ok(t, err)
	page, err := os.ReadFile("../../docs/reference/uses.md")
	ok(t, err)
	uses := regexp.MustCompile(`(?s)// use: ([^\n]+)\n(.*?)\n\t// end`).FindAllStringSubmatch(string(source), -1)
	if len(uses) != 12 {
		t.Errorf("%d uses", len(uses))
	}
	for _, u := range uses {
		lines, objects := count(u[2])
		if goal, ok := goals[u[1]]; ok && lines > goal {
			t.Errorf("%s: %d lines, the goal is %d", u[1], lines, goal)
		}
		if row := fmt.Sprintf("| %s | %d | %d |", u[1], lines, objects); !strings.Contains(string(page), row) {
			t.Errorf("docs/reference/uses.md has no %q", row)
		}
	}
}
