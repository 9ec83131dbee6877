package supervise

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/testbed"
)

const patience = time.Minute

// lease is a claim that is never renewed.
type lease struct {
	ctx context.Context
	end time.Duration
}

func (l lease) Remaining() time.Duration { return max(0, l.end-now()) }

func (l lease) Context() context.Context { return l.ctx }

func shell(text string) Command {
	return Command{Path: "/bin/sh", Args: []string{"sh", "-c", text}, Env: os.Environ(), NoStdin: true}
}

// TestATerminalThatAcceptsNothingDelaysNoKill prints to a terminal whose output is stopped, or to a
// pipe that is full.
func TestATerminalThatAcceptsNothingDelaysNoKill(t *testing.T) {
	unblock := make(chan struct{})
	ended := make(chan Result, 1)
	go func() {
		r, err := Run(lease{t.Context(), now() + sec}, shell(`trap "" TERM; while :; do sleep 0.01; done`),
			Options{Limits: Limits{TTL: sec}, Say: func(string) { <-unblock }})
		if err != nil {
			t.Error(err)
		}
		ended <- r
	}()
	select {
	case r := <-ended:
		if r.Outcome != Lost || r.Status.Signal != syscall.SIGKILL {
			t.Errorf("it ended with %+v", r)
		}
		close(unblock)
	case <-time.After(patience / 4):
		t.Error("the command runs after the end of its claim")
		close(unblock)
		<-ended
	}
}

// TestTwoInterruptsEndDescendants checks a descendant that has left the process group.
func TestTwoInterruptsEndDescendants(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	signals := make(chan os.Signal, 2)
	ended := make(chan Result, 1)
	go func() {
		r, err := Run(lease{t.Context(), now() + time.Hour}, shell(`trap "" INT; setsid sh -c 'echo $$ >`+file+`; exec sleep 600' & wait`),
			Options{Limits: Limits{TTL: time.Hour}, Signals: signals})
		if err != nil {
			t.Error(err)
		}
		ended <- r
	}()
	pid := 0
	testbed.Eventually(t, "the descendant runs", patience, func() bool {
		text, _ := os.ReadFile(file)
		pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		return pid > 0
	})
	signals <- syscall.SIGINT
	signals <- syscall.SIGINT
	if r := <-ended; r.Outcome != Completed || r.Status.Signal != syscall.SIGKILL {
		t.Errorf("it ended with %+v", r)
	}
	if syscall.Kill(pid, syscall.SIGKILL) == nil {
		t.Error("the descendant still runs")
		_, _ = syscall.Wait4(pid, nil, 0, nil)
	}
}

// TestOtherChildren checks that a child of our own, such as a credential plugin of a client, keeps its status, and
// that an orphan of the command is reaped.
func TestOtherChildren(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	signals := make(chan os.Signal, 2)
	ended := testbed.Later(t, patience, func() error {
		_, err := Run(lease{t.Context(), now() + time.Hour}, shell(`sh -c 'sleep 0 & echo $! >`+file+`'; exec sleep 600`),
			Options{Limits: Limits{TTL: time.Hour}, Signals: signals})
		return err
	})
	testbed.Eventually(t, "the orphan is gone", patience, func() bool {
		text, _ := os.ReadFile(file)
		pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		return pid > 0 && syscall.Kill(pid, 0) == syscall.ESRCH
	})
	for range 100 {
		if err := exec.Command("true").Run(); err != nil {
			t.Errorf("a child of our own: %v", err)
			break
		}
	}
	signals <- syscall.SIGINT
	signals <- syscall.SIGINT
	testbed.OK(t, ended())
}
