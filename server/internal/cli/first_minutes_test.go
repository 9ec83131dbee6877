package cli_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// A server without the database that was named can be reached: it is the name that
// is wrong.
func TestAMissingDatabaseIsSaid(t *testing.T) {
	t.Parallel()
	program(t)
	for _, url := range []string{
		"postgres://postgres@" + testbed.Postgres(t).Addr() + "/no_such_bank?sslmode=disable",
		"mysql://root@" + testbed.MariaDB(t).Addr() + "/no_such_bank",
	} {
		for _, command := range []string{"locks ls", "guard show x", "saga ls", "outbox status", "lock x --wait 1m -- true", "doctor"} {
			code := 78
			if command == "doctor" {
				code = 3
			}
			_, said := run(t, code, append([]string{"--backend", url}, strings.Fields(command)...)...)
			if strings.Contains(said, "cannot reach") || !strings.Contains(said, "no_such_bank") {
				t.Errorf("%s: %s", command, said)
			}
		}
	}
}

// With -o json a failure is a document, too, whatever has failed.
func TestFailuresInJSON(t *testing.T) {
	t.Parallel()
	program(t)
	url := backends["etcd"](t)
	holding(t, url, "taken")
	for command, code := range map[string]int{"lokcs": 64, "locks show": 64, "locks ls --no-such-flag": 64, "lock taken --no-wait -- true": 75, "saga show x": 1} {
		_, said := run(t, code, append([]string{"-o", "json", "--backend", url}, strings.Fields(command)...)...)
		var failure struct {
			Error string
			Code  int `json:"exit_code"`
		}
		if err := json.Unmarshal([]byte(said), &failure); err != nil || failure.Code != code || failure.Error == "" {
			t.Errorf("%s: %q, %v", command, said, err)
		}
	}
	list, said := run(t, 0, "-o", "json", "--backend", url, "saga", "ls")
	if list != `{"transactions":[]}`+"\n" || said != "" {
		t.Errorf("%q, %q", list, said)
	}
}

// The locks that coordinators hold for themselves are shown when they are asked for.
func TestInternalLocksAreHidden(t *testing.T) {
	t.Parallel()
	program(t)
	url := backends["etcd"](t)
	holding(t, url, "{interlock.coordinators}/0")
	holding(t, url, "mine")
	list, _ := run(t, 0, "locks", "ls", "--backend", url)
	wantLines(t, list, "mine .*")
	list, said := run(t, 0, "locks", "ls", "--backend", url, "--limit", "1")
	if wantLines(t, list, "mine .*"); strings.Contains(said, "more") {
		t.Errorf("it said %q", said)
	}
	list, _ = run(t, 0, "locks", "ls", "--all", "--backend", url)
	wantLines(t, list, "mine .*", `\{interlock.coordinators\}/0 .*`)
}

// Ids complete: of transactions, dead letters, and what a guard may guard.
func TestIDsComplete(t *testing.T) {
	t.Parallel()
	program(t)
	url := "etcd://" + testbed.Etcd(t).Addr()
	s := serveOrders(t, url)
	s.run(t, "order/1", "bad")
	s.book(t, "trip/1")
	holding(t, url, "account/42")
	for words, want := range map[string]string{"saga show ord": "order/1", "saga skip o": "order/1", "tcc retry ": "trip/1", "guard show acc": "account/42"} {
		typed := strings.Split(words, " ")
		testbed.Eventually(t, words+" completes", patience, func() bool { // a busy machine may have no names in time
			out, _ := run(t, 0, append([]string{"__completeNoDesc", "--backend", url}, typed...)...)
			return strings.HasPrefix(out, want+"\n:")
		})
	}
}
