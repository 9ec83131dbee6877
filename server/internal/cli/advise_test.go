package cli_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/server/internal/advise"
)

func TestAdvise(t *testing.T) {
	t.Parallel()
	scripts(t, "advise", nil)
}

// TestAdviseAsks: on a terminal advise asks, explains, goes back, and prints the
// flags that avoid the questions.
func TestAdviseAsks(t *testing.T) {
	t.Parallel()
	c := open(t, program(t), "advise", "nodes")
	c.sees("What must never happen?")
	c.types("why\r")
	c.sees("Everything else follows from this")
	c.types("1\r")
	c.sees("What may happen while the lock service is down")
	c.types("back\r")
	c.sees("What must never happen?")
	c.types("2\r")
	c.sees("What may happen while the lock service is down")
	c.types("go-on\r")
	c.sees("advise nodes --answer invariant=overwrite --answer down=go-on")
	c.sees("agree by consensus")
	c.ends(0)
}

// TestAdvisedSQL executes the SQL of each row. A statement changes one row, and none if its condition
// is no longer true.
func TestAdvisedSQL(t *testing.T) {
	t.Parallel()
	guides, err := advise.Load()
	testbed.OK(t, err)
	comment, written := regexp.MustCompile(`--.*`), regexp.MustCompile(`^update (\w+)`)
	args := map[string][]any{"stock": {"lamp", 2}, "seat": {"12A", "ann"}, "account": {"ann", 60}}
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		conn, err := pgx.Connect(t.Context(), open(t).URL)
		testbed.OK(t, err)
		defer conn.Close(t.Context())
		_, err = conn.Exec(t.Context(), `create table stock (product text primary key, available int); insert into stock values ('lamp', 3);
			create table seat (id text primary key, holder text, until timestamptz); insert into seat values ('12A');
			create table account (id text primary key, balance int); insert into account values ('ann', 100), ('ben', 0)`)
		testbed.OK(t, err)
		n := 0
		for _, guide := range guides.Guides {
			for _, row := range guide.Rows {
				if row.Lang != "sql" {
					continue
				}
				for round := range 2 {
					for statement := range strings.SplitSeq(comment.ReplaceAllString(row.Code, ""), ";") {
						if statement = strings.TrimSpace(statement); statement == "" {
							continue
						}
						var with []any
						conditional := strings.Contains(statement, " and ")
						if m := written.FindStringSubmatch(statement); m != nil {
							with, n = args[m[1]], n+1
						}
						if with != nil && !conditional { // the payee
							with = []any{"ben", 60}
						}
						done, err := conn.Exec(t.Context(), statement, with...)
						if want := conditional && round > 0; err != nil || with != nil && done.RowsAffected() == 0 != want {
							t.Errorf("%s, round %d: %s: %v, %v", row.Choose, round+1, statement, done, err)
						}
					}
				}
			}
		}
		if n < 8 {
			t.Errorf("%d statements", n)
		}
	}, databases.Pgx)
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	program(t)
	limited := testbed.Redis(t, strings.Fields("--appendonly yes --appendfsync always --user app on >pw ~* &* +@all -subscribe")...)
	scripts(t, "doctor", map[string]string{
		"INTERLOCK_BACKEND": backends["redis"](t),
		"DURABLE":           "redis://" + testbed.Redis(t, "--appendonly", "yes", "--appendfsync", "always").Addr(),
		"EVICTING": "redis://" + testbed.Redis(t, "--appendonly", "yes", "--appendfsync", "always",
			"--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru").Addr(),
		"NOSUBSCRIBE": "redis://app:pw@" + limited.Addr(),
		"WRONG":       "redis://app:wrong@" + limited.Addr(),
	})
}
