package cli

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
)

// The names of what a command finds in its environment.
const (
	envLock    = "INTERLOCK_LOCK"
	envToken   = "INTERLOCK_TOKEN"
	envOwner   = "INTERLOCK_OWNER"
	envBackend = "INTERLOCK_BACKEND"
	envPrefix  = "INTERLOCK_PREFIX"
	envTTL     = "INTERLOCK_TTL_MS"
	envHeld    = "INTERLOCK_HELD"
)

// held describes, to a command, the lock that it runs under.
type held struct {
	name, owner, backend, prefix string
	token                        interlock.Token
	ttl                          time.Duration
	outer                        string // INTERLOCK_HELD as we got it
}

// environ is the environment for a command: ours without the variables of an outer lock and the
// backend's password, and then those of this lock. They are last because the last of two equal
// names counts.
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

// heldEscape keeps a colon in a name apart from the colons between names.
var heldEscape = strings.NewReplacer("%", "%25", ":", "%3A")

func addHeld(list, name string) string {
	if list == "" {
		return heldEscape.Replace(name)
	}
	return list + ":" + heldEscape.Replace(name)
}

// checkHeld refuses to wait for a lock that an interlock lock around us holds.
func checkHeld(name string) error {
	for entry := range strings.SplitSeq(os.Getenv(envHeld), ":") {
		if entry == heldEscape.Replace(name) {
			return usage("%q is already held by an interlock lock around this one, which cannot end before we do: "+
				"waiting would never end", name)
		}
	}
	return nil
}

// shell runs what --shell is given.
const shell = "/bin/sh"

// lookUp finds a command as a shell would, before any lock is taken for it.
func lookUp(name string) (path string, err error) {
	path, err = exec.LookPath(name)
	switch {
	case err == nil || errors.Is(err, exec.ErrDot): // a PATH with "." in it means it
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

// onPath finds a file that has the name but may not be executed.
func onPath(name string) string {
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && !info.IsDir() {
			return path
		}
	}
	return ""
}
