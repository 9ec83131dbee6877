package cli_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// A second signal skips the clean stop of etcd, not the clean-up. That stop takes
// some milliseconds, so the second signal comes after one, two…
func TestATemporaryServerCleansUpHoweverOftenItIsTold(t *testing.T) {
	t.Parallel()
	path := program(t)
	for pause := range 10 {
		stopTwice(t, path, time.Duration(pause)*time.Millisecond)
	}
}

func stopTwice(t *testing.T, path string, pause time.Duration) {
	temp, state := t.TempDir(), t.TempDir()
	p := testbed.Start(t, testbed.Program{Path: path, Args: []string{"dev", "--temp", "--listen", "127.0.0.1:0"},
		Env: []string{"TMPDIR=" + temp, "XDG_STATE_HOME=" + state}})
	for p.Line(patience) != "Ctrl-C stops it." { // the last line of its start
	}
	record := filepath.Join(state, "interlock", "dev-server.json")
	if !exists(t, record) || len(entriesOf(t, temp)) != 1 {
		t.Fatalf("it has made %q, and left word: %v", entriesOf(t, temp), exists(t, record))
	}
	p.Signal(syscall.SIGTERM)
	time.Sleep(pause)
	told := time.Now()
	p.Signal(syscall.SIGINT)
	code := p.Wait(patience).ExitCode()
	if code != 0 && code != 130 && code != 143 { // 143: it received the second signal first
		t.Errorf("%v between the signals: exit code %d; it said:\n%s", pause, code, p.Stderr())
	}
	if took := time.Since(told); took > patience/2 {
		t.Errorf("%v between the signals: it took %v to end", pause, took)
	}
	if left := entriesOf(t, temp); len(left) != 0 || exists(t, record) {
		t.Errorf("%v between the signals: %q is left, and the word: %v", pause, left, exists(t, record))
	}
}

// TestDevUnderNohup: a signal that is ignored when the server starts stays ignored.
func TestDevUnderNohup(t *testing.T) {
	t.Parallel()
	p := testbed.Start(t, testbed.Program{Path: "bash", Args: []string{"-c", `trap "" HUP; exec "$0" dev --temp --listen 127.0.0.1:0`, program(t)},
		Env: []string{"XDG_STATE_HOME=" + t.TempDir()}})
	for p.Line(patience) != "Ctrl-C stops it." {
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		t.Skip("this system does not show which signals a process ignores")
	}
	_, mask, _ := strings.Cut(string(status), "SigIgn:")
	ignored, err := strconv.ParseUint(strings.Fields(mask)[0], 16, 64)
	if err != nil || ignored&(1<<(syscall.SIGHUP-1)) == 0 {
		t.Errorf("it ignores %x, %v", ignored, err)
	}
	end(t, p, syscall.SIGTERM, 0)
}

func entriesOf(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	testbed.OK(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func exists(t *testing.T, file string) bool {
	t.Helper()
	_, err := os.Stat(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return err == nil
}

// A full disk is reported as such, on one line.
func TestDevOnAFullDisk(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	p := testbed.Command(t, "bash", "-c", `ulimit -f 1000; exec "$0" dev --temp --listen 127.0.0.1:0`, program(t))
	wantCode(t, p, 1)
	if said := p.Stderr(); strings.Contains(said, "goroutine") || strings.Contains(said, "a bug") || strings.Count(said, "\n") != 1 || !strings.Contains(said, "file too large") {
		t.Errorf("it said %q", said)
	}
}
