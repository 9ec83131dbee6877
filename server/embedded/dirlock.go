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

// lockName is the file whose lock shows that a node runs on a data directory.
const lockName = "interlock.lock"

// Running is the process and the address of a node.
type Running struct {
	PID      int    `json:"pid"`
	Endpoint string `json:"endpoint"` // host:port; empty while it starts
}

// InUseError reports that another process runs on a data directory.
type InUseError struct {
	DataDir string
	Running Running // zero if it is not known yet, or another program runs etcd on it
}

// Error includes the process and the address, if known.
func (e *InUseError) Error() string {
	if e.Running.PID == 0 {
		return fmt.Sprintf("embedded: start etcd: another process starts or runs etcd on %s", e.DataDir)
	}
	return fmt.Sprintf("embedded: start etcd: process %d already runs on %s and listens on %s",
		e.Running.PID, e.DataDir, e.Running.Endpoint)
}

// dirLock is held by the process that runs a node on a directory. The kernel
// releases it when the process ends in any way.
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
	err = l.write(Running{})
	if data := openLocked(filepath.Join(dir, "member", "snap", "db")); data != nil { // etcd would wait for it
		_ = data.Close()
		err = &InUseError{DataDir: dir}
	}
	if err != nil {
		l.release()
		return nil, err
	}
	return l, nil
}

// lockFile tries for a tenth of a second, because [Find] holds the lock for a
// moment to check whether another process has it.
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

// write replaces the text of the file. Only the holder of the lock writes.
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

// release empties the file and does not remove it. Otherwise a second process
// could lock a new file while a third waits for the old one.
func (l *dirLock) release() {
	_ = l.file.Truncate(0) // only the lock of the file matters, and Close releases it
	_ = l.file.Close()
}

// Find returns the node that runs on dataDir. ok is false if there is none, or if it
// has not yet written its address.
func Find(dataDir string) (r Running, ok bool) {
	f := openLocked(filepath.Join(dataDir, lockName))
	if f == nil {
		return Running{}, false
	}
	defer f.Close()
	r = readRunning(f)
	return r, r.Endpoint != ""
}

// openLocked opens a file that another process has locked. It returns nil if none has.
func openLocked(path string) *os.File {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	if syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) == nil {
		_ = f.Close() // releases our lock
		return nil
	}
	return f
}

func readRunning(f *os.File) Running {
	var r Running
	text, err := io.ReadAll(io.NewSectionReader(f, 0, 4096))
	if err != nil || json.Unmarshal(text, &r) != nil {
		return Running{} // it is being written: as if not written yet
	}
	return r
}
