package cli

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"github.com/interlock-dev/interlock/server/embedded"
)

// defaultListen is the default address of a development server, and of commands
// that find no record of one. Tests change it.
var defaultListen = "127.0.0.1:7460"

// stateDir returns the directory for the state of the user's programs:
// $XDG_STATE_HOME, or ~/.local/state.
func stateDir() (string, error) {
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "interlock"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", errors.New("neither XDG_STATE_HOME nor HOME is set; use --data-dir or --temp")
	}
	return filepath.Join(home, ".local", "state", "interlock"), nil
}

// devRecord records the data directory of the first running development server, for
// other commands. The directory's lock shows whether it still runs.
type devRecord struct {
	PID      int    `json:"pid"`
	Endpoint string `json:"endpoint"`
	DataDir  string `json:"data_dir"`
}

func recordFile() (string, error) {
	dir, err := stateDir()
	return filepath.Join(dir, "dev-server.json"), err
}

func (r devRecord) write() error {
	file, err := recordFile()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	return writeAtomically(file, r)
}

// remove removes the record, unless a later server has replaced it.
func (r devRecord) remove() {
	if now, ok := readRecord(); ok && now == r {
		file, _ := recordFile()
		_ = os.Remove(file) // a remaining record is detected as stale
	}
}

func readRecord() (r devRecord, ok bool) {
	file, err := recordFile()
	if err != nil {
		return r, false
	}
	text, err := os.ReadFile(file)
	return r, err == nil && json.Unmarshal(text, &r) == nil
}

// findDev returns the development server for commands without a backend: the
// recorded one, else the one on the default data, if it runs.
func findDev() (r embedded.Running, ok bool) {
	dirs := make([]string, 0, 2)
	if r, ok := readRecord(); ok {
		dirs = append(dirs, r.DataDir)
	}
	if dir, err := stateDir(); err == nil {
		dirs = append(dirs, filepath.Join(dir, "dev"))
	}
	for _, dir := range dirs {
		if r, ok := embedded.Find(dir); ok {
			return r, true
		}
	}
	return embedded.Running{}, false
}

// devEndpoint returns the address of the running development server, or the
// default.
func devEndpoint() string {
	if r, ok := findDev(); ok {
		return r.Endpoint
	}
	return defaultListen
}

// writeAtomically replaces a file by a line of JSON, so that a reader sees the old text or the new
// one. The file keeps its permissions; a new one has those of the user's umask.
func writeAtomically(file string, content any) error {
	f, err := os.OpenFile(filepath.Join(filepath.Dir(file), "."+filepath.Base(file)+"."+rand.Text()), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	if info, old := os.Stat(file); old == nil {
		err = f.Chmod(info.Mode().Perm())
	}
	err = errors.Join(err, json.NewEncoder(f).Encode(content), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the first error matters
	}
	return err
}
