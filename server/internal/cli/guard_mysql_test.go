package cli_test

import (
	"database/sql"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// The guard table of a MariaDB, made by a program, is entered, shown and corrected
// as that of a Postgres; a stale token is refused.
func TestGuardOnMariaDB(t *testing.T) {
	t.Parallel()
	program(t)
	server := testbed.MariaDB(t)
	db, err := sql.Open("mysql", server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	url := mariadbURL(server)
	run(t, 78, "guard", "show", "account/42", "--backend", url) // there is no table yet
	tx, err := db.BeginTx(t.Context(), nil)
	if err == nil {
		err = fence.Table{}.Create(t.Context(), mysql.Tx(tx))
	}
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		t.Fatal(err)
	}
	run(t, 0, "lock", "job", "--backend", url, "--", "sh", "-c",
		`"$0" guard enter account/42 --backend "$1"`, plainProgram(t), url)
	shown, _ := run(t, 0, "guard", "show", "account/42", "--backend", url)
	if !strings.HasPrefix(shown, "account/42: token ") {
		t.Errorf("it is shown as %s", shown)
	}
	_, said := run(t, 80, "guard", "enter", "account/42", "--token", "890214828572692480", "--backend", url)
	if !strings.Contains(said, "stale token") {
		t.Errorf("it said %q", said)
	}
	run(t, 0, "guard", "rebase", "account/42", "--to", "0", "--reason", "restored", "--by", "alice", "--backend", url)
	if shown, _ = run(t, 0, "guard", "show", "account/42", "--backend", url); !strings.Contains(shown, "no token has entered since the rebase by alice") {
		t.Errorf("it is shown as %s", shown)
	}
}
