package cli_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/branchhttp"
)

// A signal during an export removes the part that was written, so that it can be repeated.
func TestAnInterruptedExportLeavesNoFile(t *testing.T) {
	t.Parallel()
	program(t)
	server, file := testbed.Etcd(t), filepath.Join(t.TempDir(), "journal.jsonl")
	server.Pause()
	p := testbed.Command(t, program(t), "saga", "export", "--to", file, "--timeout", "1m", "--backend", "etcd://"+server.Addr())
	testbed.Eventually(t, "the file exists", patience, func() bool { return exists(t, file) })
	end(t, p, syscall.SIGINT, 130)
	if exists(t, file) {
		t.Error("a part of the export is left")
	}
}

// A coordinator that is still connecting ends on a signal as a running one does.
func TestACoordinatorThatConnectsCanBeStopped(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	testbed.OK(t, err)
	defer silent.Close()
	p := testbed.Command(t, program(t), "coordinate", "--timeout", "1m", "--backend", "etcd://"+silent.Addr().String(), "--listen", "127.0.0.1:0")
	conn, err := silent.Accept()
	testbed.OK(t, err)
	defer conn.Close()
	end(t, p, syscall.SIGTERM, 0)
	if said := p.Stderr(); said != "" {
		t.Errorf("it said %q", said)
	}
}

// A coordinator whose journal is silent shuts down within its bounds, and at once after a second signal.
func TestASecondSignalEndsACoordinator(t *testing.T) {
	t.Parallel()
	program(t)
	server := testbed.Etcd(t)
	p, _ := coordinating(t, "etcd://"+server.Addr())
	server.Pause()
	testbed.Eventually(t, "it ends", patience, func() bool {
		p.Signal(syscall.SIGTERM) // one begins the shutdown, and one arrives during it
		select {
		case <-p.Done():
			return true
		default:
			return false
		}
	})
	state := p.Wait(patience)
	if status, _ := state.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGTERM {
		t.Errorf("it ended with %v: %s", state, p.Stderr())
	}
}

// A development server that restores its data ends on a signal: the log that it reads never ends.
func TestAServerThatRestoresCanBeStopped(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	member := filepath.Join(data, "member")
	testbed.OK(t, errors.Join(os.MkdirAll(filepath.Join(member, "wal"), 0o700),
		syscall.Mkfifo(filepath.Join(member, "wal", "0000000000000000-0000000000000000.wal"), 0o600)))
	p := testbed.Start(t, testbed.Program{Path: program(t), Args: []string{"dev", "--data-dir", data, "--listen", "127.0.0.1:0"}, Env: []string{"XDG_STATE_HOME=" + t.TempDir()}})
	testbed.Eventually(t, "it opens its data", patience, func() bool { return exists(t, filepath.Join(member, "snap", "db")) })
	end(t, p, syscall.SIGINT, 0)
}

// Nobody reads the standard error of a coordinator, and it is full: transactions go on.
func TestAFullStandardErrorDelaysNoTransaction(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	participant := httptest.NewServer(branchhttp.Handler(func(context.Context, []byte) ([]byte, error) {
		if calls.Add(1) < 3 {
			return nil, branch.Retry(errors.New("busy"))
		}
		return nil, nil
	}))
	defer participant.Close()
	defer http.DefaultClient.CloseIdleConnections()
	reader, writer, err := os.Pipe()
	testbed.OK(t, err)
	defer reader.Close()
	testbed.OK(t, writer.SetWriteDeadline(time.Now().Add(10*time.Millisecond)))
	_, _ = writer.Write(make([]byte, 1<<20)) // a part fills the pipe
	cmd := exec.CommandContext(t.Context(), program(t), "coordinate", "--verbose", "--backend", backends["etcd"](t), "--listen", "127.0.0.1:0", "--shards", "4")
	cmd.Stderr = writer
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	testbed.OK(t, errors.Join(err, cmd.Start(), writer.Close()))
	line, err := bufio.NewReader(out).ReadString('\n')
	testbed.OK(t, err)
	address, _, _ := strings.Cut(strings.TrimPrefix(line, "coordinating on "), ",")
	body := fmt.Sprintf(`{"type":"x","steps":[{"name":"a","do":%q,"pivot":true,"retry":{"first":"100ms"}}]}`, participant.URL)
	if _, state := post(t, address+"/v1/sagas/1?wait=20s", body); state != "SUCCEEDED" {
		t.Errorf("the saga is %s after %d calls", state, calls.Load())
	}
	testbed.OK(t, errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Wait()))
}

// deaf starts a command whose output nobody reads, and returns its end.
func deaf(t *testing.T, state string, args ...string) (*os.Process, <-chan error) {
	t.Helper()
	reader, writer, err := os.Pipe()
	testbed.OK(t, errors.Join(err, reader.Close()))
	cmd := exec.CommandContext(t.Context(), program(t), args...)
	cmd.Stdout, cmd.Stderr = writer, writer
	cmd.Env = append(os.Environ(), "TMPDIR="+state, "XDG_STATE_HOME="+state)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	testbed.OK(t, errors.Join(cmd.Start(), writer.Close()))
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return cmd.Process, ended
}

// Servers run although nobody reads what they print.
func TestServersOutliveTheirReader(t *testing.T) {
	t.Parallel()
	state, address := t.TempDir(), nobodyAt(t)
	dev, devEnded := deaf(t, state, "dev", "--temp", "--listen", "127.0.0.1:0")
	testbed.Eventually(t, "dev serves", patience, func() bool { return exists(t, filepath.Join(state, "interlock", "dev-server.json")) })
	testbed.OK(t, dev.Signal(syscall.SIGTERM))
	if err := <-devEnded; err != nil || len(entriesOf(t, state)) != 1 { // without the data
		t.Errorf("dev: %v; %q are left", err, entriesOf(t, state))
	}
	coordinator, ended := deaf(t, state, "coordinate", "--backend", backends["etcd"](t), "--listen", address)
	for client := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}); ; time.Sleep(20 * time.Millisecond) {
		if len(ended) > 0 {
			t.Fatalf("coordinate: %v", <-ended)
		}
		if answer, err := client.Get("http://" + address + "/readyz"); err == nil {
			answer.Body.Close()
			break
		}
	}
	testbed.OK(t, coordinator.Signal(syscall.SIGTERM))
	if err := <-ended; err != nil {
		t.Errorf("coordinate: %v", err)
	}
}

// A wait for the lock includes the wait for a backend that does not answer.
func TestAWaitEndsAlsoIfTheBackendIsSilent(t *testing.T) {
	t.Parallel()
	for name, start := range servers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			program(t)
			server := start(t)
			server.Pause()
			begun := time.Now()
			p := testbed.Command(t, program(t), "lock", "job", "--wait", "1s", "--timeout", "2m", "--backend", name+"://"+server.Addr(), "--", "true")
			wantCode(t, p, 69)
			if took := time.Since(begun); took > time.Minute {
				t.Errorf("it took %v: %s", took, p.Stderr())
			}
			if said := p.Stderr(); !strings.Contains(said, "within 1s") && !strings.Contains(said, "cannot reach") {
				t.Errorf("it said %q", said)
			}
		})
	}
}

// A leader that receives TERM while its command is being stopped does not campaign again.
func TestATermWhileTheLeadershipIsLostIsObeyed(t *testing.T) {
	t.Parallel()
	program(t)
	server, j := testbed.Redis(t), newJournal(t)
	self, err := os.Executable()
	testbed.OK(t, err)
	leader := testbed.Start(t, testbed.Program{Path: program(t), Env: j.env(time.Minute, true), Args: []string{"elect", "job", "--backend", "redis://" + server.Addr(),
		"--ttl", "6s", "--grace", "2s", "--timeout", "1s", "--accept-weakness", "--on-lose", "wait", "--", self}})
	began(j)
	server.Kill()
	testbed.Eventually(t, "its command is stopped", patience, func() bool { return strings.Contains(leader.Stderr(), "being stopped") })
	end(t, leader, syscall.SIGTERM, 79)
}

// A wait goes on although nobody reads what it prints: it has a place in the queue.
func TestAWaitOutlivesItsReader(t *testing.T) {
	t.Parallel()
	url := backends["etcd"](t)
	holder := testbed.Command(t, program(t), "locks", "hold", "job", "--backend", url)
	holder.Line(patience)
	_, locked := deaf(t, t.TempDir(), "lock", "job", "--backend", url, "--", "true")
	_, elected := deaf(t, t.TempDir(), "elect", "job", "--backend", url, "--", "true")
	waitersOf(t, url, 2)
	for begun := time.Now(); time.Since(begun) < time.Second && len(locked)+len(elected) == 0; { // each prints a line after 0.5 s
		time.Sleep(10 * time.Millisecond)
	}
	testbed.OK(t, holder.Stdin().Close())
	for _, ended := range []<-chan error{locked, elected} {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
