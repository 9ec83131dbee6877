package cli_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/server/internal/backend"
	"github.com/interlock-dev/interlock/txn/coordinator"
	txnjournal "github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/twopc"
)

// mute is a journal that does not answer appends.
type mute struct{ driver.Journal }

func (mute) Append(_ context.Context, appends []driver.Append) []error {
	errs := make([]error, len(appends))
	for i := range errs {
		errs[i] = &interlock.Error{Op: "append", Kind: interlock.Uncertain, Err: errors.New("no answer")}
	}
	return errs
}

// doubtful runs a transfer over PostgreSQL and MariaDB without a recorded decision:
// both branches are in doubt.
func doubtful(t *testing.T, journalURL string, pool *pgxpool.Pool, db *sql.DB) {
	t.Helper()
	ok := func(err error) {
		t.Helper()
		testbed.OK(t, err)
	}
	target, err := backend.Parse(journalURL)
	ok(err)
	store, disconnect, err := target.Journal(t.Context(), "")
	ok(err)
	defer disconnect()
	j, err := txnjournal.New(mute{store}, &txnjournal.Options{Patience: 200 * time.Millisecond})
	ok(err)
	defer j.Close()
	c, err := coordinator.New(j, nil)
	ok(err)
	pg, err := postgres.OpenParticipant(t.Context(), pool, "interlock", nil)
	ok(err)
	maria, err := mysql.OpenParticipant(t.Context(), db, "interlock", nil)
	ok(err)
	defer maria.Close() // the session of the branch in doubt
	north, south := twopc.Define("north", pg), twopc.Define("south", maria)
	m, err := twopc.New(c, &twopc.Options{Timeout: time.Second}, north, south)
	ok(err)
	err = m.Run(t.Context(), "transfer/42", func(ctx context.Context, tx *twopc.T) error {
		a, err := north.Join(ctx, tx)
		if err != nil {
			return err
		}
		if _, err := a.Exec(ctx, `update account set balance = balance - 10`); err != nil {
			return err
		}
		b, err := south.Join(ctx, tx)
		if err != nil {
			return err
		}
		_, err = b.ExecContext(ctx, `update account set balance = balance + 10`)
		return err
	})
	if interlock.Kind(err) != interlock.Uncertain {
		t.Fatal(err)
	}
}

// Branches in doubt are listed with their age, and decided by hand; both then end
// that way. A decision cannot be changed, and an unknown transaction is an error.
func TestXAByHand(t *testing.T) {
	t.Parallel()
	url := backends["etcd"](t)
	pgURL := testbed.Postgres(t, "-c", "max_prepared_transactions=10").URL()
	server := testbed.MariaDB(t)
	pool, err := pgxpool.New(t.Context(), pgURL)
	testbed.OK(t, err)
	defer pool.Close()
	db, err := sql.Open("mysql", server.URL())
	testbed.OK(t, err)
	defer db.Close()
	for _, query := range []string{`create table account (balance bigint)`, `insert into account values (100)`} {
		_, first := pool.Exec(t.Context(), query)
		_, second := db.ExecContext(t.Context(), query)
		testbed.OK(t, errors.Join(first, second))
	}
	doubtful(t, url, pool, db)
	participants := []string{"--backend", url, "--participant", "north=" + pgURL, "--participant", "south=" + mariadbURL(server)}
	interlock := func(code int, args ...string) (out, said string) {
		t.Helper()
		return run(t, code, append(append([]string{"xa"}, args...), participants...)...)
	}

	out, _ := interlock(0, "ls", "-o", "json")
	var v struct {
		InDoubt []struct {
			Participant, Transaction, Verdict string
			Age                               float64 `json:"age_seconds"`
		} `json:"in_doubt"`
	}
	if err := json.Unmarshal([]byte(out), &v); err != nil || len(v.InDoubt) != 2 || v.InDoubt[0].Participant != "north" || v.InDoubt[0].Verdict == "" {
		t.Fatal(out, err)
	}
	name := v.InDoubt[0].Transaction
	if out, _ := interlock(0, "ls"); !strings.Contains(out, name) || !strings.Contains(out, "south") {
		t.Error(out)
	}
	if _, said := interlock(1, "show", "transfer/42"); !strings.Contains(said, "no such transaction") || !strings.Contains(said, "xa ls") {
		t.Error(said)
	}
	interlock(64, "resolve", name, "--decide", "abort")
	interlock(64, "resolve", name, "--decide", "maybe", "--reason", "x")
	interlock(0, "resolve", name, "--decide", "commit", "--reason", "its coordinator is gone", "--by", "ann")
	out, _ = interlock(0, "show", "transfer/42")
	if known, _ := interlock(0, "show", name); known != out {
		t.Errorf("%s is shown as\n%s\nnot\n%s", name, known, out)
	}
	for _, want := range []string{"commit", "ann", "its coordinator is gone", "north"} {
		if !strings.Contains(out, want) {
			t.Errorf("%s\nhas no %q", out, want)
		}
	}
	interlock(1, "resolve", name, "--decide", "abort", "--reason", "no, rather not")
	interlock(1, "resolve", "transfer/42", "--reason", "all is well")
	run(t, 64, "xa", "ls", "--backend", url, "--participant", "north")
	run(t, 64, "xa", "ls", "--backend", url, "--participant", "north=redis://127.0.0.1:1")
	_, said := run(t, 69, "xa", "ls", "--backend", url, "--participant", "north=postgres://127.0.0.1:1/x")
	if strings.Count(said, "cannot reach") != 1 || strings.Contains(said, "interlock dev") {
		t.Error(said)
	}
	out, said = run(t, 69, "xa", "ls", "--backend", url, "--participant", "north=http://127.0.0.1:1/", "-o", "json")
	if !strings.Contains(out, `"in_doubt":[]`) || !strings.Contains(out, `"error":"`) || !strings.Contains(said, "some participants could not be reached") {
		t.Errorf("a participant that cannot be reached passes for one without branches in doubt: %s%s", out, said)
	}
	if out, _ := run(t, 69, "xa", "ls", "--backend", url, "--participant", "north=http://127.0.0.1:1/"); strings.Contains(out, "no branch") || !strings.Contains(out, "transfer/42") {
		t.Error(out)
	}
	run(t, 64, "xa", "resolve", "transfer/42", "--decide", "commit", "--reason", "x", "--backend", url)
	partly := []string{"--backend", url, "--participant", "north=" + pgURL, "--participant", "south=mysql://root@127.0.0.1:1/x"}
	if out, said := run(t, 69, append([]string{"xa", "ls"}, partly...)...); !strings.Contains(out, "north") || !strings.Contains(said, "participant south: cannot reach mysql://127.0.0.1:1/x") {
		t.Errorf("branches of a reachable participant are missing: %s%s", out, said)
	}
	run(t, 69, append([]string{"xa", "resolve", name, "--decide", "commit", "--reason", "x"}, partly...)...)
	if out, _ := run(t, 0, "xa", "ls", "--backend", url, "--participant", "north="+pgURL, "--namespace", "other"); !strings.HasPrefix(out, "no participant lists a branch in doubt in namespace other\n") {
		t.Error(out)
	}
	keepsNoList := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(keepsNoList.Close)
	for _, participants := range [][]string{nil, {"--participant", "north=" + keepsNoList.URL}} {
		out, _ := run(t, 0, append([]string{"xa", "ls", "--backend", url}, participants...)...)
		if strings.Contains(out, "no branch is in doubt") || !strings.Contains(out, "transfer/42") {
			t.Errorf("%q: no participant was asked for branches in doubt, and it said %s", participants, out)
		}
	}
}

// A participant that does not answer uses up the time of no other one, and not that of the journal.
func TestXAListsWithoutSilentParticipants(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	testbed.OK(t, err)
	defer silent.Close()
	well := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `[{"transaction":"transfer/7.100000000000","branch":"west"}]`)
	}))
	defer well.Close()
	out, said := run(t, 69, "xa", "ls", "-o", "json", "--timeout", "5s", "--backend", backends["etcd"](t),
		"--participant", "north=postgres://"+silent.Addr().String()+"/bank", "--participant", "south=http://"+silent.Addr().String(), "--participant", "west="+well.URL)
	if !strings.Contains(out, `"transaction":"transfer/7.100000000000"`) || !strings.Contains(out, `"transactions":[]`) {
		t.Errorf("it printed %s", out)
	}
	if !strings.Contains(said, "participant north: cannot reach postgres://") || !strings.Contains(said, "the call took longer than 5s") {
		t.Errorf("it said %s", said)
	}
}

// Participants are connected to at the same time: silent ones take one --timeout, not one each.
func TestXAAsksParticipantsTogether(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testbed.OK(t, err)
	both := make(chan struct{})
	var server sync.WaitGroup
	server.Go(func() {
		var kept []net.Conn
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			kept = append(kept, c)
			if len(kept) < 2 {
				continue
			}
			if len(kept) == 2 {
				close(both)
			}
			for _, c := range kept {
				_ = c.Close()
			}
		}
	})
	defer func() { _ = l.Close(); server.Wait() }()
	_, said := run(t, 69, "xa", "ls", "--timeout", "20s", "--backend", backends["etcd"](t),
		"--participant", "north=mysql://root@"+l.Addr().String()+"/bank", "--participant", "south=mysql://root@"+l.Addr().String()+"/bank")
	select {
	case <-both:
	default:
		t.Error("one participant was asked after the other")
	}
	if strings.Contains(said, "deadline exceeded") || !strings.Contains(said, "participant north: cannot reach mysql://") || !strings.Contains(said, "participant south: cannot reach mysql://") {
		t.Errorf("it said %s", said)
	}
}
