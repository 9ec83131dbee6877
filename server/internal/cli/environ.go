package cli

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/server/internal/backend"
)

// The environment variables of a command.
const (
	envLock    = "INTERLOCK_LOCK"
	envToken   = "INTERLOCK_TOKEN"
	envOwner   = "INTERLOCK_OWNER"
	envBackend = "INTERLOCK_BACKEND"
	envPrefix  = "INTERLOCK_PREFIX"
	envTTL     = "INTERLOCK_TTL_MS"
	envHeld    = "INTERLOCK_HELD"
)

// held describes a lock to the command that runs under it.
type held struct {
	name, owner, backend, prefix string
	token                        interlock.Token
	ttl                          time.Duration
	outer                        string // our own INTERLOCK_HELD
}

// environ returns the environment for a command: ours without the variables of an outer lock
// and the backend's password, then those of this lock. They come last, because the last of
// equal names counts.
func (h held) environ(ours []string) []string {
	env := make([]string, 0, len(ours)+7)
	for _, pair := range ours {
		name, _, _ := strings.Cut(pair, "=")
		switch name {
		case envLock, envToken, envOwner, envBackend, envPrefix, envTTL, envHeld:
		default:
			env = append(env, pair)
		}
	}
	if h.prefix != "" {
		env = append(env, envPrefix+"="+h.prefix)
	}
	return append(env,
		envLock+"="+h.name,
		envToken+"="+h.token.String(),
		envOwner+"="+h.owner,
		envBackend+"="+h.backend,
		envTTL+"="+strconv.FormatInt(h.ttl.Milliseconds(), 10),
		envHeld+"="+addHeld(h.outer, h.name))
}

// publicEnviron returns our environment without the backend's password.
func publicEnviron() []string {
	env := slices.DeleteFunc(os.Environ(), func(pair string) bool { return strings.HasPrefix(pair, envBackend+"=") })
	if t, err := backend.Parse(os.Getenv(envBackend)); err == nil {
		env = append(env, envBackend+"="+t.Public())
	}
	return env
}

// heldEscape escapes colons in names, because colons separate names.
var heldEscape = strings.NewReplacer("%", "%25", ":", "%3A")

func addHeld(list, name string) string {
	if list == "" {
		return heldEscape.Replace(name)
	}
	return list + ":" + heldEscape.Replace(name)
}

// checkHeld rejects a wait for a lock that an outer interlock lock holds.
func checkHeld(name string) error {
	for entry := range strings.SplitSeq(os.Getenv(envHeld), ":") {
		if entry == heldEscape.Replace(name) {
			return usage("%q is already held by an interlock lock around this one, which cannot end before we do: "+
				"waiting would never end", name)
		}
	}
	return nil
}

// shell runs the text of --shell.
const shell = "/bin/sh"

// lookUp finds a command as a shell does, before the lock is acquired.
func lookUp(name string) (path string, err error) {
	path, err = exec.LookPath(name)
	switch {
	case err == nil || errors.Is(err, exec.ErrDot): // "." in PATH is intended
		return path, nil
	case strings.ContainsRune(name, filepath.Separator) && errors.Is(err, fs.ErrNotExist):
		return "", fail(exitNotFound, "command not found: %s", name)
	case strings.ContainsRune(name, filepath.Separator):
		return "", notExecutable(name)
	}
	if found := onPath(name); found != "" {
		return "", notExecutable(found)
	}
	return "", fail(exitNotFound, "command not found: %s", name)
}

func notExecutable(path string) error {
	return fail(exitNotRunnable, "command not executable: %s", path)
}

// onPath finds a file of that name, although it is not executable.
func onPath(name string) string {
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && !info.IsDir() {
			return path
		}
	}
	return ""
}
