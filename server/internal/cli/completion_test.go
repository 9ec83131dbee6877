package cli_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// The script and the start command of each shell.
var completing = map[string]struct{ script, start string }{
	"bash": {"complete.bash", "bash --norc --noprofile -i"},
	"zsh":  {"_interlock", "zsh -f -i"},
	"fish": {"interlock.fish", "fish --no-config -i"},
}

// Any client may use any lock name. If two names begin with the same command, bash
// inserts the command, unquoted, and runs it at the next Tab.
func TestCompletionRunsNothing(t *testing.T) {
	t.Parallel()
	url := backends["etcd"](t)
	made := filepath.Join(t.TempDir(), "made")
	commands := []string{"`touch " + made + "`", "$(touch " + made + ")"}
	for i, name := range commands {
		holding(t, url, name+"a", "--prefix", itoa(i)+"/")
		holding(t, url, name+"b", "--prefix", itoa(i)+"/")
	}
	holding(t, url, "honest/name-1")
	for shell, how := range completing {
		t.Run(shell, func(t *testing.T) {
			testbed.Binary(t, shell)
			_ = os.Remove(made) // of another shell
			c := completingShell(t, url, shell, how.script, how.start)
			c.completionWriter("interlock locks show ", "honest/name-1")
			c.completionWriter("interlock --ba", "--backend")
			for i := range commands {
				c.types(clearLine + setPrefix(shell, itoa(i)+"/"))
				c.types("interlock locks show \t\t\t" + clearLine)
				c.types("expr " + itoa(i) + " + 100 | sed s/^/tried\\ /\r")
				c.sees("tried " + itoa(i+100))
				if _, err := os.Stat(made); err == nil {
					t.Fatalf("the name of a lock was run; the screen shows\n%s", c.screen())
				}
			}
		})
	}
}

const clearLine = "\x15"

func setPrefix(shell, prefix string) string {
	if shell == "fish" {
		return "set -x INTERLOCK_PREFIX " + prefix + "\r"
	}
	return "export INTERLOCK_PREFIX=" + prefix + "\r"
}

// completingShell returns a shell on a terminal that completes interlock.
func completingShell(t *testing.T, url, shell, script, start string) *console {
	t.Helper()
	path := program(t)
	file := filepath.Join(t.TempDir(), script)
	text, _ := run(t, 0, "completion", shell)
	testbed.OK(t, os.WriteFile(file, []byte(text), 0o600))
	words := strings.Fields(start)
	c := openWith(t, []string{"INTERLOCK_BACKEND=" + url, "TERM=dumb", "HOME=" + t.TempDir(),
		"PATH=" + filepath.Dir(path) + string(os.PathListSeparator) + os.Getenv("PATH")}, words[0], words[1:]...)
	if shell == "zsh" {
		c.types("autoload -Uz compinit; compinit -u -D\r")
	}
	c.types("source " + file + "; " + completesFirst(shell) + "\r")
	return c
}

// completesFirst configures a shell to show everything at the first Tab.
func completesFirst(shell string) string {
	switch shell {
	case "bash":
		return `bind "set show-all-if-ambiguous on"; bind "set page-completions off"; bind "set completion-query-items 0"; _get_comp_words_by_ref() { cur=${COMP_WORDS[COMP_CWORD]}; prev=${COMP_WORDS[COMP_CWORD-1]}; words=("${COMP_WORDS[@]}"); cword=$COMP_CWORD; }`
	case "zsh":
		return "compdef _interlock interlock"
	}
	return "true"
}

// completionWriter types a word and Tab until a completion is shown: on a busy machine
// names may come too late.
func (c *console) completionWriter(typed, completion string) {
	c.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		shown := len(c.screen())
		c.types(clearLine + typed + "\t")
		for again := time.Now().Add(time.Second); time.Now().Before(again); time.Sleep(10 * time.Millisecond) {
			if after := c.screen()[shown:]; strings.Contains(after, completion) {
				return
			}
		}
	}
	c.t.Fatalf("not offered within %v: %q after %q; the screen shows\n%s", patience, completion, typed, c.screen())
}

// Completions and their descriptions contain only safe characters, from any source.
func TestCompletionOffersSafeWords(t *testing.T) {
	t.Parallel()
	url := backends["etcd"](t)
	holding(t, url, "`x`")
	holding(t, url, "x\x1b[31m")
	holding(t, url, "xyz")
	for _, words := range [][]string{{"locks", "show", ""}, {"lock", ""}, {"elect", "observe", ""}, {"--"}, {""}, {"locks", "ls", "--"}} {
		cmd := exec.Command(program(t), append([]string{"__complete"}, words...)...)
		cmd.Env = append(os.Environ(), "INTERLOCK_BACKEND="+url)
		out, err := cmd.Output()
		testbed.OK(t, err)
		if strings.ContainsAny(string(out), "`$\\\"'\x1b") {
			t.Errorf("after %q: %q", words, out)
		}
	}
}
