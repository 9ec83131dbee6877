package testbed

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Program is a program to run.
type Program struct {
	Path string
	Args []string
	// Env is appended to the test's environment.
	Env []string
	// Dir is the working directory; empty means that of the test.
	Dir string
}

// Process is a running program that we started. It leads its own process group. At the
// end of the test, it and its descendants are killed.
type Process struct {
	tb     testing.TB
	proc   *child
	dir    string // holds the standard error
	stdin  *os.File
	stdout *os.File
	lines  chan string
	unread chan struct{} // closed when lines are no longer read
	reader sync.WaitGroup
}

// Command starts path with args in the test's environment and directory.
func Command(tb testing.TB, path string, args ...string) *Process {
	tb.Helper()
	return Start(tb, Program{Path: path, Args: args})
}

// Start starts a program.
func Start(tb testing.TB, program Program) *Process {
	tb.Helper()
	dir, err := place(filepath.Base(program.Path))
	if err != nil {
		tb.Fatalf("start %s: %v", program.Path, err)
	}
	p := &Process{tb: tb, dir: dir, lines: make(chan string, 4096), unread: make(chan struct{})}
	if err := p.start(program); err != nil {
		os.RemoveAll(dir)
		tb.Fatalf("start %s: %v", program.Path, err)
	}
	tb.Cleanup(p.close)
	return p
}

func (p *Process) start(program Program) error {
	childIn, stdin, err := os.Pipe()
	if err != nil {
		return err
	}
	defer childIn.Close()
	stdout, childOut, err := os.Pipe()
	if err != nil {
		stdin.Close()
		return err
	}
	defer childOut.Close()
	childErr, err := os.Create(p.stderrFile())
	if err == nil {
		defer childErr.Close()
		cmd := exec.Command(program.Path, program.Args...)
		cmd.Dir, cmd.Env = program.Dir, append(os.Environ(), program.Env...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = childIn, childOut, childErr
		p.proc, err = spawn(cmd, p.dir, nil)
	}
	if err != nil {
		stdin.Close()
		stdout.Close()
		return err
	}
	p.stdin, p.stdout = stdin, stdout
	p.reader.Go(p.read)
	return nil
}

func (p *Process) read() {
	defer close(p.lines)
	defer p.stdout.Close()
	scanner := bufio.NewScanner(p.stdout)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		select {
		case p.lines <- scanner.Text():
		case <-p.unread:
			return
		}
	}
}

func (p *Process) stderrFile() string { return filepath.Join(p.dir, "stderr") }

// Stdout delivers the lines of the standard output and is closed at its end. A
// process that is far ahead of the reader blocks, as at any pipe.
func (p *Process) Stdout() <-chan string { return p.lines }

// Line returns the next line of the standard output. It ends the test if none arrives
// within bound.
func (p *Process) Line(bound time.Duration) string {
	p.tb.Helper()
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case line, ok := <-p.lines:
		if !ok {
			p.tb.Fatalf("%s: its output ended%s", p.name(), p.tail())
		}
		return line
	case <-timer.C:
		p.tb.Fatalf("%s: no line within %v%s", p.name(), bound, p.tail())
	}
	return ""
}

// Stderr returns what the process has written to its standard error so far.
func (p *Process) Stderr() string {
	text, _ := os.ReadFile(p.stderrFile())
	return string(text)
}

// Stdin returns the process's standard input, open until closed.
func (p *Process) Stdin() io.WriteCloser { return p.stdin }

// PID returns its process id, which is also that of its process group.
func (p *Process) PID() int { return p.proc.pid() }

// Signal sends a signal to the process alone. It is not an error if the process has
// ended.
func (p *Process) Signal(sig syscall.Signal) {
	p.tb.Helper()
	if err := p.proc.cmd.Process.Signal(sig); err != nil && !p.proc.ended() && err != os.ErrProcessDone {
		p.tb.Fatalf("%s: send %v: %v", p.name(), sig, err)
	}
}

// Pause stops the process alone, and returns when it has stopped.
func (p *Process) Pause() {
	p.tb.Helper()
	p.settle(syscall.SIGSTOP, stopped)
}

// Resume continues a paused process.
func (p *Process) Resume() {
	p.tb.Helper()
	p.settle(syscall.SIGCONT, running)
}

func (p *Process) settle(sig syscall.Signal, settled func(pid int) bool) {
	p.tb.Helper()
	p.Signal(sig)
	for range looks(bound) {
		if settled(p.PID()) {
			return
		}
		if p.proc.ended() {
			break
		}
	}
	p.tb.Fatalf("%s: no effect of %v%s", p.name(), sig, p.tail())
}

// Kill ends the process alone with SIGKILL and returns when it has been reaped. Its
// children continue until the end of the test.
func (p *Process) Kill() {
	p.tb.Helper()
	p.Signal(syscall.SIGKILL)
	p.Wait(bound)
}

// Done returns a channel that is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.proc.done }

// Wait waits for the end of the process and returns its state. It ends the test if
// that takes longer than bound.
func (p *Process) Wait(bound time.Duration) *os.ProcessState {
	p.tb.Helper()
	if !p.proc.wait(bound) {
		p.tb.Fatalf("%s: still running after %v%s", p.name(), bound, p.tail())
	}
	return p.proc.cmd.ProcessState
}

func (p *Process) close() {
	if p.tb.Failed() {
		p.tb.Logf("%s%s", p.name(), p.tail())
	}
	if err := p.proc.killAll(); err != nil {
		p.tb.Errorf("%s: end: %v", p.name(), err)
	}
	p.stdin.Close()
	close(p.unread)
	p.stdout.Close() // another process may hold the other end open
	p.reader.Wait()
	if err := os.RemoveAll(p.dir); err != nil {
		p.tb.Errorf("%s: clean up: %v", p.name(), err)
	}
}

func (p *Process) name() string { return filepath.Base(p.proc.cmd.Path) }

func (p *Process) tail() string { return tailOf(p.stderrFile()) }

// child is one process that was started and will be reaped.
type child struct {
	cmd   *exec.Cmd
	dir   string        // the value of its mark
	forks int           // the machine's count before it was started
	done  chan struct{} // closed when it has been reaped
}

// spawn starts cmd as the leader of a process group, with the mark of dir; cred may be
// nil. The kernel kills it when this process dies.
func spawn(cmd *exec.Cmd, dir string, cred *syscall.Credential) (*child, error) {
	cmd.Env = append(environmentFrom(cmd.Env), mark+"="+dir)
	cmd.SysProcAttr = attributes(cred)
	c := &child{cmd: cmd, dir: dir, forks: forks(), done: make(chan struct{})}
	started := make(chan error)
	go c.run(started)
	return c, <-started
}

// run keeps its thread while the process lives. The kernel sends the parent-death signal when the
// thread that forked ends, and Go ends idle threads at any time.
func (c *child) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := c.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	c.cmd.Wait() // the result is in cmd.ProcessState
	close(c.done)
}

func (c *child) pid() int { return c.cmd.Process.Pid }

func (c *child) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// wait blocks until the process has been reaped, at most for bound.
func (c *child) wait(bound time.Duration) bool {
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case <-c.done:
		return true
	case <-timer.C:
		return false
	}
}

// killAll ends the process and its descendants.
func (c *child) killAll() error {
	if !c.ended() {
		syscall.Kill(-c.pid(), syscall.SIGKILL)
	}
	<-c.done
	return signalFrom(c.dir, c.lowestID(), syscall.SIGKILL, func(int) bool { return false })
}

// environment returns our environment, marked with value if that is not empty.
func environment(value string) []string {
	env := environmentFrom(nil)
	if value != "" {
		env = append(env, mark+"="+value)
	}
	return env
}

// environmentFrom returns env, or our own if env is nil, without a mark.
func environmentFrom(env []string) []string {
	if env == nil {
		env = os.Environ()
	}
	kept := make([]string, 0, len(env)+1)
	for _, e := range env {
		if !strings.HasPrefix(e, mark+"=") {
			kept = append(kept, e)
		}
	}
	return kept
}
