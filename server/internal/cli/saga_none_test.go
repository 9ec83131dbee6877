package cli_test

import (
	"database/sql"
	"net/url"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// Reading a journal that does not exist is an error and creates nothing; reading one that
// exists needs no right but to read it.
func TestLookingMakesNoJournal(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) (database, of string, client string, reader []string){
		"postgres": func(t *testing.T) (string, string, string, []string) {
			s := testbed.Postgres(t)
			return s.URL(), "pgx", s.URL(), []string{`create role reader login`, `grant select on all tables in schema public to reader`}
		},
		"mariadb": func(t *testing.T) (string, string, string, []string) {
			s := testbed.MariaDB(t)
			return mariadbURL(s), "mysql", s.URL(), []string{`create user reader@'%'`, `grant select on test.* to reader@'%'`}
		},
	} {
		t.Run(name, func(t *testing.T) {
			database, of, dsn, allow := start(t)
			db, err := sql.Open(of, dsn)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			tables := func() (n int) {
				t.Helper()
				if err := db.QueryRow(`select count(*) from information_schema.tables where table_name like 'typo%' or table_name like 'interlock%'`).Scan(&n); err != nil {
					t.Fatal(err)
				}
				return n
			}
			for _, command := range []string{"saga ls", "saga ls --journal typo", "saga show 1", "saga watch 1", "saga export", "saga retry 1 --reason x",
				"dlq sagas", "tcc ls", "tcc show 1", "tcc retry 1 --reason x", "xa ls", "xa show 1", "xa resolve 1 --reason x"} {
				_, said := run(t, 78, append(strings.Fields(command), "--backend", database)...)
				wanted := "no journal interlock_journal on "
				if strings.HasSuffix(command, "typo") {
					wanted = "no journal typo on "
				}
				if !strings.Contains(said, wanted) || !strings.Contains(said, "--journal") {
					t.Errorf("%s: %s", command, said)
				}
			}
			if n := tables(); n != 0 {
				t.Errorf("looking has made %d tables", n)
			}
			run(t, 64, "saga", "ls", "--journal", "a.b.c", "--backend", database)

			run(t, 0, "saga", "start", "order/1", "order", "--backend", database)
			for _, query := range allow {
				if _, err := db.Exec(query); err != nil {
					t.Fatal(err)
				}
			}
			u, err := url.Parse(database)
			if err != nil {
				t.Fatal(err)
			}
			u.User = url.User("reader")
			for _, command := range []string{"saga ls", "saga show order/1", "saga export", "tcc ls", "xa ls"} {
				out, _ := run(t, 0, append(strings.Fields(command), "--backend", u.String())...)
				if strings.HasPrefix(command, "saga") && !strings.Contains(out, "order/1") {
					t.Errorf("%s: %s", command, out)
				}
			}
			run(t, 77, "saga", "start", "order/2", "order", "--backend", u.String())
		})
	}
}
