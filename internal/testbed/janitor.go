package testbed

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
)

// mark is the environment variable that identifies our processes and their
// descendants. Its value is the directory that they belong to.
const mark = "INTERLOCK_TESTBED"

// watch runs until its standard input ends, which happens when the test process
// ends in any way. Then it kills the remaining processes, frees the shared memory
// of a PostgreSQL that could not do so, and removes the directory $1. It stops
// when it finds nothing twice in a row, because it can miss a process during a
// fork or an exec.
const watch = `
trap '' HUP INT QUIT TERM
while read -r _; do :; done
root=$1
marked() {
	grep -lsz "^INTERLOCK_TESTBED=$root\(/\|$\)" /proc/[0-9]*/environ
	find /proc/[0-9]*/cwd -prune -lname "$root/*" 2>/dev/null
}
quiet=0 looks=0
while [ $quiet -lt 2 ] && [ $looks -lt 100 ]; do
	quiet=$((quiet + 1)) looks=$((looks + 1))
	for file in $(marked); do
		pid=${file#/proc/}
		kill -KILL "${pid%%/*}" 2>/dev/null && quiet=0
	done
	sleep 0.02
done
for file in "$root"/*/data/postmaster.pid; do
	[ -f "$file" ] && ipcrm -m "$(sed -n '7s/.* //p' "$file")" 2>/dev/null
done
rm -rf "$root"
`

// home is the directory of this test process, watched from its creation. Test
// processes that a testbed starts have theirs inside it.
var home = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp(os.Getenv(mark), "interlock-test-")
	if err != nil {
		return "", fmt.Errorf("make a directory for servers: %w", err)
	}
	// PostgreSQL runs as another user and must reach its own directory.
	if err := os.Chmod(dir, 0o711); err != nil {
		return "", fmt.Errorf("open up the directory for servers: %w", err)
	}
	return dir, startJanitor(dir)
})

// lifeline is the writing end of the janitor's standard input. Nothing is
// written; the kernel closes it when this process ends. It is a variable so that
// it is not collected, and closed, earlier.
//
//lint:ignore U1000 it is only kept open
var lifeline *os.File

func startJanitor(dir string) error {
	input, output, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("watch over %s: %w", dir, err)
	}
	defer input.Close()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("watch over %s: %w", dir, err)
	}
	defer null.Close()
	lifeline = output
	janitor, err := os.StartProcess("/bin/sh", []string{"sh", "-c", watch, "interlock-janitor", dir}, &os.ProcAttr{
		Dir:   "/",
		Env:   environment(""),
		Files: []*os.File{input, null, null},
		// A separate session: a signal to the test's process group or from its
		// terminal must not reach the janitor.
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return fmt.Errorf("watch over %s: %w", dir, err)
	}
	return janitor.Release()
}

var (
	places sync.Mutex
	placed int
)

// place creates a directory for one server or process.
func place(name string) (string, error) {
	root, err := home()
	if err != nil {
		return "", err
	}
	places.Lock()
	placed++
	dir := filepath.Join(root, name+"-"+strconv.Itoa(placed))
	places.Unlock()
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o755) // independent of the umask
}
