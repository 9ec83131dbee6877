package testbed

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
)

// template is an archive of the data directory of a new database. To create one costs more
// than a second of processor time. So it is stored in the user's cache directory, for all test
// processes of this machine, and unpacked, which costs half as much as a copy of its many files.
type template struct {
	once    sync.Once
	archive string
	err     error
}

// copyTo copies the template to data. command creates a template; program is the server
// that will run on it.
func (t *template) copyTo(data, program string, cred *syscall.Credential, command func(data, scratch string) *exec.Cmd) error {
	t.once.Do(func() { t.archive, t.err = keptTemplate(program, cred, command) })
	if t.err != nil {
		return t.err
	}
	return tar("-xpf", t.archive, "-C", data)
}

func tar(args ...string) error {
	output, err := exec.Command("tar", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("tar %q: %w: %s", args, err, output)
	}
	return nil
}

// keptTemplate returns the cached template and creates it if there is none. Its name
// depends on the server, the command and the user. It appears atomically; one that
// another process stored meanwhile is equivalent.
func keptTemplate(program string, cred *syscall.Credential, command func(data, scratch string) *exec.Cmd) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return newTemplate(program, cred, command)
	}
	info, err := os.Stat(program)
	if err != nil {
		return "", err
	}
	hash := sha256.Sum256(fmt.Append(nil, program, info.Size(), info.ModTime().UnixNano(), os.Geteuid(), command("", "").Args))
	kept := filepath.Join(cache, "interlock", fmt.Sprintf("template-%s-%x.tar", filepath.Base(program), hash[:8]))
	if _, err := os.Stat(kept); err == nil {
		return kept, nil
	}
	made, err := newTemplate(program, cred, command)
	if err != nil {
		return "", err
	}
	if err := keep(made, kept); err != nil {
		return made, nil // an unwritable cache only costs time
	}
	return kept, nil
}

// keep copies a template into the cache.
func keep(made, kept string) error {
	text, err := os.ReadFile(made)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(kept), 0o755)
	}
	if err != nil {
		return err
	}
	part, err := os.CreateTemp(filepath.Dir(kept), ".template-")
	if err != nil {
		return err
	}
	defer os.Remove(part.Name())
	_, err = part.Write(text)
	if err := errors.Join(err, part.Close()); err != nil {
		return err
	}
	return os.Rename(part.Name(), kept)
}

// newTemplate creates a template in a directory of this test process.
func newTemplate(program string, cred *syscall.Credential, command func(data, scratch string) *exec.Cmd) (string, error) {
	dir, err := place("template-" + filepath.Base(program))
	if err != nil {
		return "", err
	}
	data, archive := filepath.Join(dir, "data"), filepath.Join(dir, "data.tar")
	if err := os.Mkdir(data, 0o700); err != nil {
		return "", err
	}
	if cred != nil {
		for _, d := range []string{dir, data} {
			if err := os.Chown(d, int(cred.Uid), int(cred.Gid)); err != nil {
				return "", err
			}
		}
	}
	cmd := command(data, dir)
	cmd.Dir = dir
	if err := run(cmd, dir, cred); err != nil {
		return "", err
	}
	if err := tar("-cSf", archive, "-C", data, "."); err != nil {
		return "", err
	}
	return archive, os.RemoveAll(data)
}
