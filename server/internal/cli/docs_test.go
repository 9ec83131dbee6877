package cli_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/flow/limit"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// example is one command of docs/reference/cli.md with its expected output.
type example struct {
	command string
	prints  []string
}

// examples returns the console blocks of a page.
func examples(t *testing.T, page string) (list []example) {
	t.Helper()
	text, err := os.ReadFile(page)
	testbed.OK(t, err)
	for _, block := range regexp.MustCompile("(?ms)^```console\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		for line := range strings.Lines(block[1]) {
			line = strings.TrimRight(line, "\n")
			if command, ok := strings.CutPrefix(line, "$ "); ok {
				list = append(list, example{command: command})
			} else {
				last := &list[len(list)-1]
				last.prints = append(last.prints, line)
			}
		}
	}
	return list
}

// printed reports whether lines match: … matches any text, and any space any other.
func printed(lines, promised []string) bool {
	return slices.EqualFunc(lines, promised, func(line, promise string) bool {
		pattern := regexp.QuoteMeta(strings.Join(strings.Fields(promise), " "))
		pattern = strings.ReplaceAll(pattern, "…", ".+")
		return regexp.MustCompile("^" + pattern + "$").MatchString(strings.Join(strings.Fields(line), " "))
	})
}

// TestTheExamplesOfTheDocs requires an example of every command in docs/reference/cli.md, and that every
// example there, in the tutorials and in stuck-locks.md prints the page's output.
func TestTheExamplesOfTheDocs(t *testing.T) {
	t.Parallel()
	path := filepath.Dir(program(t)) + string(os.PathListSeparator) + os.Getenv("PATH")
	url := backends["etcd"](t)
	db := databases.Open(t, testbed.Shared(t, testbed.Postgres), databases.Pgx)
	shop(t, db)
	orderedStream(t, db)
	unhappyQueue(t, db)
	db.Do(t, limit.Table{}.Create)
	env := []string{"PATH=" + path, "XDG_STATE_HOME=" + t.TempDir(), "INTERLOCK_BACKEND=" + url, "SHOP=" + shopURL(db),
		"PARTICIPANT=" + participant(t), "PREPARED=" + shopURL(db)}
	deadOrders(t, url)
	const listen = "127.0.0.1:7461" // in the page; here it may be in use
	coordinator := ""
	list := examples(t, "../../../docs/reference/cli.md")
	for _, e := range slices.Concat(list, examples(t, "../../../docs/tutorials/cron.md"), examples(t, "../../../docs/tutorials/participant.md"),
		examples(t, "../../../docs/how-to/stuck-locks.md")) {
		if command, ok := strings.CutSuffix(e.command, " &"); ok {
			p := testbed.Start(t, testbed.Program{Path: "sh", Args: []string{"-c", "exec " + strings.Replace(command, listen, "127.0.0.1:0", 1)}, Env: env})
			for _, promise := range e.prints {
				line := p.Line(patience)
				if _, on, ok := strings.Cut(line, "coordinating on http://"); ok {
					coordinator, _, _ = strings.Cut(on, ",")
				}
				if !printed([]string{line}, []string{strings.Replace(promise, listen, "…", 1)}) {
					t.Errorf("%s\nprints\n%s\nnot\n%s", e.command, line, promise)
				}
			}
			continue
		}
		e.command = strings.Replace(e.command, listen, coordinator, 1)
		lines := play(e.command, env)
		for end := time.Now().Add(patience); looks(e.command) && !printed(lines, e.prints) && time.Now().Before(end); {
			time.Sleep(200 * time.Millisecond) // a coordinator may still be working
			lines = play(e.command, env)
		}
		if !printed(lines, e.prints) {
			t.Errorf("%s\nprints\n%s\nnot\n%s", e.command, strings.Join(lines, "\n"), strings.Join(e.prints, "\n"))
		}
	}
	for _, command := range commands(t) {
		if !slices.ContainsFunc(list, func(e example) bool { return strings.Contains(e.command, command) }) {
			t.Errorf("docs/reference/cli.md has no example of %s", command)
		}
	}
}

// deadOrders creates a saga that succeeds and three that cannot be undone before it returns.
func deadOrders(t *testing.T, url string) {
	s := serveOrders(t, url)
	s.run(t, "order/1", "book")
	for _, id := range []string{"order/2", "order/3", "order/4"} {
		s.run(t, id, "bad")
	}
	s.well.Store(true)
	s.book(t, "trip/1")
	s.book(t, "trip/2")
}

// participant starts the Python participant, and returns its address.
func participant(t *testing.T) string {
	python := testbed.Binary(t, "python3")
	script := "../../../examples/participant/participant.py"
	return testbed.Command(t, python, "-I", script, filepath.Join(t.TempDir(), "seats.db")).Line(patience)
}

// looks reports whether a command only reads, so that it can be repeated.
func looks(command string) bool {
	return strings.Contains(command, " ls") || strings.Contains(command, " show ")
}

// play runs a command to its end, with variables besides ours. It shows the standard error only of a failed
// one, as in the page.
func play(command string, env []string) []string {
	cmd := exec.Command("sh", "-c", command)
	cmd.Env = append(os.Environ(), env...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	text := ""
	if err := cmd.Run(); err != nil {
		text = said.String() + fmt.Sprintf("[exit code %d]", cmd.ProcessState.ExitCode())
	}
	return strings.Split(strings.TrimRight(out.String()+text, "\n"), "\n")
}

// commands returns all commands that completion offers.
func commands(t *testing.T) (list []string) {
	t.Helper()
	offered := func(words ...string) (names []string) {
		text, _ := run(t, 0, append(append([]string{"__completeNoDesc"}, words...), "")...)
		for name := range strings.Lines(text) {
			if name = strings.TrimSpace(name); name != "" && name[0] != ':' && name[0] != '-' {
				names = append(names, name)
			}
		}
		return names
	}
	groups := []string{"locks", "guard", "outbox", "dlq", "queue", "limits", "sequence", "tokens", "saga", "tcc", "xa", "lab"}
	for _, name := range offered() {
		if !slices.Contains(groups, name) {
			list = append(list, "interlock "+name)
		}
	}
	for _, group := range groups {
		for _, name := range offered(group) {
			list = append(list, "interlock "+group+" "+name)
		}
	}
	if len(list) < 15 {
		t.Errorf("only these commands are offered: %v", list)
	}
	return list
}
