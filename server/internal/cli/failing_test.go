package cli_test

import (
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/server/embedded"
	"github.com/interlock-dev/interlock/server/internal/backend"
	txnjournal "github.com/interlock-dev/interlock/txn/journal"
)

// TestShowSaysWhatFails: tcc show and xa show print failing calls, their number and
// error from the journal, and xa retry resumes halted transactions.
func TestShowSaysWhatFails(t *testing.T) {
	t.Parallel()
	url := backends["etcd"](t)
	target, err := backend.Parse(url)
	testbed.OK(t, err)
	store, disconnect, err := target.Journal(t.Context(), "")
	testbed.OK(t, err)
	defer disconnect()
	j, err := txnjournal.New(store, nil)
	testbed.OK(t, err)
	defer j.Close()
	begin := func(id, kind string, entries ...txnjournal.Entry) {
		t.Helper()
		if _, err := j.Begin(t.Context(), id, kind, time.Now().Add(time.Hour), entries...); err != nil {
			t.Fatal(err)
		}
	}
	entry := func(kind, step, data string) txnjournal.Entry {
		return txnjournal.Entry{Kind: kind, Step: step, Data: []byte(data)}
	}
	begin("trip/1", "tcc:trip", entry("tried", "flight", `{"resource":"http","request":{},"hold":{}}`), entry("decide", "confirm", `{}`),
		entry("failing", "flight", `{"error":"the airline is down","attempts":8}`))
	decided := entry("decide", "commit", `{"id":"transfer/1","run":"100000000000","branches":["north"]}`)
	failing := entry("failing", "north", `{"text":"the disk is full","attempts":16}`)
	begin("transfer/1", "2pc:transaction", decided, failing)
	decided.Data = []byte(strings.Replace(string(decided.Data), "transfer/1", "transfer/2", 1))
	begin("transfer/2", "2pc:transaction", decided, failing, entry("halted", "", `{"text":"taken over 10 times"}`))

	shows := func(command string, want ...string) {
		t.Helper()
		out, _ := run(t, 0, append(strings.Fields(command), "--backend", url)...)
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("%s has no %q:\n%s", command, w, out)
			}
		}
	}
	shows("tcc show trip/1", "CONFIRMING", "flight", "failing", "8", "the airline is down")
	shows("tcc show trip/1 -o json", `"failing":[{"step":"flight","error":"the airline is down","attempts":8}]`)
	shows("tcc ls -o json", `"attempts":8`)
	shows("xa show transfer/1", "not committed after 16 attempts: the disk is full")
	shows("xa show transfer/1 -o json", `{"participant":"north","done":false,"error":"the disk is full","attempts":16}`)
	shows("xa ls", "north: the disk is full", "taken over 10 times")
	shows("xa show transfer/2", "halted", "taken over 10 times")
	if _, said := run(t, 64, "xa", "ls", "--participant", "n=http://u:secret@127.0.0.1:1/", "--backend", url); strings.Contains(said, "secret") {
		t.Error(said)
	}
	run(t, 64, "xa", "retry", "transfer/2", "--backend", url)
	run(t, 1, "xa", "retry", "transfer/1", "--reason", "it is not halted", "--backend", url)
	if out, _ := run(t, 0, "xa", "retry", "transfer/2", "--reason", "it has a fix", "--by", "ann", "--backend", url); !strings.Contains(out, "retried: transfer/2") {
		t.Error(out)
	}
	if out, _ := run(t, 0, "xa", "show", "transfer/2", "--backend", url); strings.Contains(out, "\nhalted ") { // the field, not the record
		t.Error(out)
	}
}

// nobodyAt returns a free address for a later server.
func nobodyAt(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testbed.OK(t, err)
	defer l.Close()
	return l.Addr().String()
}

// An unreachable backend is retried as long as the lock is awaited.
func TestLockWaitsForABackendThatIsAway(t *testing.T) {
	t.Parallel()
	path, addr := program(t), nobodyAt(t)
	waiting := testbed.Command(t, path, "lock", "job", "--wait", "1m", "--backend", "etcd://"+addr, "--timeout", "2s", "--", "true")
	testbed.Eventually(t, "it reports a retry", patience, func() bool { return strings.Contains(waiting.Stderr(), "; trying again") })
	s, err := embedded.Start(t.Context(), embedded.Options{DataDir: t.TempDir(), Listen: addr})
	testbed.OK(t, err)
	t.Cleanup(s.Close)
	wantCode(t, waiting, 0)
}

func TestLockTriesABackendAsLongAsAsked(t *testing.T) {
	path, addr := program(t), nobodyAt(t)
	for scheme, flags := range map[string]string{"etcd": "--wait 1s", "redis": "--wait 1s", "postgres": "--wait 1s", "mysql": "--timeout 1s", "zookeeper": "--wait 1s"} {
		begun := time.Now()
		args := append(strings.Fields("lock job "+flags), "--backend", scheme+"://"+addr+"/x", "--", "true")
		if scheme == "etcd" || scheme == "redis" {
			args[len(args)-3] = scheme + "://" + addr
		}
		wantCode(t, testbed.Command(t, path, args...), 69)
		if took := time.Since(begun); took < 700*time.Millisecond {
			t.Errorf("%s: %s: it ended after %v", scheme, flags, took)
		}
	}
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	testbed.OK(t, os.Unsetenv("INTERLOCK_BACKEND"))
	for _, flags := range []string{"--no-wait --backend redis://" + addr, "--wait 0 --backend redis://" + addr} {
		_, said := run(t, 69, append(strings.Fields("lock job "+flags), "--", "true")...)
		if strings.Contains(said, "again") {
			t.Errorf("%s: it said %q", flags, said)
		}
	}
}
