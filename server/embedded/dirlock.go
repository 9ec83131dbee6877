package embedded

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// lockName is the file whose lock says that a node runs on a data directory.
const lockName = "interlock.lock"

// Running tells where a node is.
type Running struct {
	PID      int    `json:"pid"`
	Endpoint string `json:"endpoint"` // host:port; empty while it starts
}

// An InUseError says that another process runs on a data directory.
type InUseError struct {
	DataDir string
	Running Running // zero if it has not said yet
}

// Error tells where the other one is, as far as it has said.
func (e *InUseError) Error() string {
	if e.Running.PID == 0 {
		return fmt.Sprintf("embedded: start etcd: another process is starting on %s", e.DataDir)
	}
	return fmt.Sprintf("embedded: start etcd: process %d already runs on %s and listens on %s",
		e.Running.PID, e.DataDir, e.Running.Endpoint)
}

// dirLock is held by the process that runs a node on a directory. The kernel
// gives it up when the process ends, however that happens.
type dirLock struct{ file *os.File }

func lockDir(dir string) (*dirLock, error) {
	f, err := openPrivate(filepath.Join(dir, lockName), os.O_RDWR)
	if err != nil {
		return nil, fmt.Errorf("embedded: lock the data directory: %w", err)
	}
	if err := lockFile(f); err != nil {
		defer f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, &InUseError{DataDir: dir, Running: readRunning(f)}
		}
		return nil, fmt.Errorf("embedded: lock %s: %w", f.Name(), err)
	}
	l := &dirLock{file: f}
	return l, l.write(Running{})
}

// lockFile tries for a tenth of a second, because [Find] holds the lock for an
// instant when it asks whether anybody does.
func lockFile(f *os.File) error {
	var err error
	for range 5 {
		if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); !errors.Is(err, syscall.EWOULDBLOCK) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
	return err
}

// write replaces what the file says. Nobody writes but the one who holds it.
func (l *dirLock) write(r Running) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := l.file.Truncate(0); err != nil {
		return fmt.Errorf("embedded: write %s: %w", l.file.Name(), err)
	}
	if _, err := l.file.WriteAt(append(text, '\n'), 0); err != nil {
		return fmt.Errorf("embedded: write %s: %w", l.file.Name(), err)
	}
	return nil
}

// release empties the file but leaves it: removing it would let a second
// process lock a new file while a third still waits on the old one.
func (l *dirLock) release() {
	_ = l.file.Truncate(0) // the file's lock is what counts, and Close gives it up
	_ = l.file.Close()
}

// Find tells which node runs on dataDir. ok is false if none does, or if it has
// not yet said where it is.
func Find(dataDir string) (r Running, ok bool) {
	f, err := os.OpenFile(filepath.Join(dataDir, lockName), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return Running{}, false
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); err == nil {
		return Running{}, false // nobody holds it; closing gives our lock up
	}
	r = readRunning(f)
	return r, r.Endpoint != ""
}

func readRunning(f *os.File) Running {
	var r Running
	text, err := io.ReadAll(io.NewSectionReader(f, 0, 4096))
	if err != nil || json.Unmarshal(text, &r) != nil {
		return Running{} // it is being written: the same as not said yet
	}
	return r
}
