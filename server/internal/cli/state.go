package cli

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"github.com/interlock-dev/interlock/server/embedded"
)

// defaultListen is where a development server listens, and where one is looked
// for when none has left word.
const defaultListen = "127.0.0.1:7460"

// stateDir is where the user's programs keep what they want to find again:
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

// devRecord leaves word for other commands which data directory the first of
// the running development servers is on. Whether it still is, the directory's
// lock says.
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
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return writeAtomically(file, append(text, '\n'))
}

// remove takes the word back, unless a later server has left its own.
func (r devRecord) remove() {
	if now, ok := readRecord(); ok && now == r {
		file, _ := recordFile()
		_ = os.Remove(file) // a record that stays is found to be stale
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

// findDev is the development server that commands without a backend use: the
// one that left word, else the one on the usual data, if it runs.
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

// devEndpoint is the address of the running development server, or the one it
// would have.
func devEndpoint() string {
	if r, ok := findDev(); ok {
		return r.Endpoint
	}
	return defaultListen
}

// writeAtomically replaces a file, so that a reader sees the old text or the
// new.
func writeAtomically(file string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the first error says more
	}
	return err
}
