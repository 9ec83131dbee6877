package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// together is the number of commands that start at once.
const together = 16

// Commands that start together on one server all get their locks, whether the server is given
// or found. A paused server is not reported as missing.
func TestCommandsThatStartTogether(t *testing.T) {
	t.Parallel()
	path, state := program(t), t.TempDir()
	env := []string{"TMPDIR=" + t.TempDir(), "XDG_STATE_HOME=" + state, "INTERLOCK_BACKEND="}
	dev := testbed.Start(t, testbed.Program{Path: path, Args: []string{"dev", "--temp", "--listen", "127.0.0.1:0"}, Env: env})
	for dev.Line(patience) != "Ctrl-C stops it." { // the last line of its start
	}
	text, err := os.ReadFile(filepath.Join(state, "interlock", "dev-server.json"))
	testbed.OK(t, err)
	var record struct{ Endpoint string }
	testbed.OK(t, json.Unmarshal(text, &record))
	lock := func(name string, flags ...string) *testbed.Process {
		args := append([]string{"lock", name, "--timeout", "1m"}, flags...)
		return testbed.Start(t, testbed.Program{Path: path, Args: append(args, "--", "true"), Env: env})
	}
	var all []*testbed.Process
	for i := range together {
		named := []string{"--backend", "etcd://" + record.Endpoint}
		all = append(all, lock("job-"+itoa(i), named[:i%2*2]...))
	}
	for _, p := range all {
		if state := p.Wait(3 * patience); state.ExitCode() != 0 {
			t.Errorf("exit code %d; it said %q", state.ExitCode(), p.Stderr())
		}
	}
	dev.Pause()
	impatient := lock("job", "--timeout", "200ms")
	wantCode(t, impatient, 69)
	if said := impatient.Stderr(); strings.Contains(said, "start one") || !strings.Contains(said, "does not answer") {
		t.Errorf("a paused server is reported as %q", said)
	}
	late := lock("job")
	dev.Resume()
	wantCode(t, late, 0)
}
