package cli_test

import (
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/server/embedded"
)

// nobodyAt is an address at which a server may be started later.
func nobodyAt(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// A backend that restarts, or fails over, is waited for as long as the lock is.
func TestLockWaitsForABackendThatIsAway(t *testing.T) {
	t.Parallel()
	path, addr := program(t), nobodyAt(t)
	waiting := testbed.Command(t, path, "lock", "job", "--wait", "1m", "--backend", "etcd://"+addr, "--timeout", "300ms", "--", "true")
	testbed.Eventually(t, "it says that it tries again", patience, func() bool { return strings.Contains(waiting.Stderr(), "; trying again") })
	s, err := embedded.Start(t.Context(), embedded.Options{DataDir: t.TempDir(), Listen: addr})
	if err != nil {
		t.Fatal(err)
	}
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
			t.Errorf("%s: %s: it gave up after %v", scheme, flags, took)
		}
	}
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	if err := os.Unsetenv("INTERLOCK_BACKEND"); err != nil {
		t.Fatal(err)
	}
	for _, flags := range []string{"--no-wait --backend redis://" + addr, "--wait 0 --backend redis://" + addr} {
		_, said := run(t, 69, append(strings.Fields("lock job "+flags), "--", "true")...)
		if strings.Contains(said, "again") {
			t.Errorf("%s: it said %q", flags, said)
		}
	}
}
