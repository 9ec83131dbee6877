package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/server/internal/backend"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/httpapi"
)

// hostile is text that others may store in a backend, or make a user type. It has an escape
// sequence in two forms, a carriage return, a bell, a forged line, a reversal of direction, and
// invalid bytes.
const hostile = "x\x1b[31m\u009b2J\r\a\ninterlock: all is well\u202e\u2066\xff`'\"$(id)"

// unsafeIn returns an error if a text could mislead a user at a terminal.
func unsafeIn(s string) error {
	for _, r := range s {
		if isControl(r) {
			return fmt.Errorf("%q of %q", r, s)
		}
	}
	for l := range strings.Lines(s) {
		if strings.HasPrefix(l, "interlock: all is well") {
			return fmt.Errorf("a line of its own in %q", s)
		}
	}
	return nil
}

func TestErrorsOfSeveralLinesAreOneLine(t *testing.T) {
	for err, want := range map[error]text{
		errors.Join(errors.New("no majority"), errors.New("a: refused")):    "no majority; a: refused",
		errors.New("failed to connect to `b`:\n\tc: refused\n\td: refused"): "failed to connect to `b`: c: refused; d: refused",
	} {
		if got := line("%v", err); got != want {
			t.Errorf("printed is %s, want %s", got, want)
		}
	}
}

func TestTextsAreSafe(t *testing.T) {
	t.Parallel()
	err := errors.New(hostile)
	for name, text := range map[string]text{
		"line":   line("%s %v %v %-80s %q %[1]s\n", hostile, hostile, err, hostile, hostile),
		"nested": line("%s%v", line("a\n"), fail(1, "%w: %w", err, usage("%v", []string{hostile}))),
		"table":  table([][]string{{"NAME", hostile}, {hostile, hostile, "b\tc"}}),
		"fields": fields([2]string{"why", hostile}, [2]string{hostile, "x"}),
		"lines":  lines("a\nb\x1b[1m\n"),
	} {
		if err := unsafeIn(string(text)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := line("%s, %5d, %v, %q, %d\n", "as it is", 7, err == nil, "a", 1); got != "as it is,     7, false, \"a\", 1\n" {
		t.Errorf("%q", got)
	}
	if !errors.Is(fail(1, "%w", err), err) || codeOf(fmt.Errorf("x: %w", fail(75, "%w", err))) != 75 {
		t.Error("an escaped error is not the error any more")
	}
}

func TestCommandsAreQuoted(t *testing.T) {
	t.Parallel()
	for word, quoted := range map[string]string{
		"order/42": "order/42", "": "''", "a b": "'a b'", "it's": `'it'\''s'`, "`id`": "'`id`'", "a\nb'": `$'a\nb\''`,
	} {
		got := string(command(word))
		if got != quoted {
			t.Errorf("%q: %s, want %s", word, got, quoted)
		}
	}
	for _, word := range []string{hostile[:strings.IndexByte(hostile, 0xff)], "$(id)", "!", "~", "#", "\\", "'\x01'"} {
		out, err := exec.Command("bash", "-c", "printf %s "+string(command(word))).Output()
		if err != nil || string(out) != word {
			t.Errorf("bash reads %q as %q, %v", word, out, err)
		}
	}
}

// Text that is written in pieces of any size has no control characters.
func TestTheTerminalIsSafe(t *testing.T) {
	t.Parallel()
	for size := 1; size < len(hostile); size++ {
		var b strings.Builder
		w := &terminal{out: &b}
		for piece := range slices.Chunk([]byte("世界\U000e0001"+hostile), size) {
			if _, err := w.Write(piece); err != nil {
				t.Fatal(err)
			}
		}
		for _, r := range b.String() {
			if isControl(r) {
				t.Fatalf("pieces of %d: %q of %q", size, r, &b)
			}
		}
		if !strings.HasPrefix(b.String(), `世界\udb40\udc01x\u001b[31m\u009b2J\u000d`) {
			t.Fatalf("pieces of %d: %q", size, &b)
		}
	}
}

// Only text.go and output.go convert strings to texts, and write: a command cannot
// bypass them.
func TestNobodyElseMakesTexts(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") || file == "text.go" || file == "output.go" {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		testbed.OK(t, err)
		ast.Inspect(tree, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if f, ok := call.Fun.(*ast.Ident); ok && f.Name == "text" {
				t.Errorf("%s makes a text of a string: use line, table or fields", file)
			}
			for _, arg := range call.Args {
				if s, ok := arg.(*ast.SelectorExpr); ok && (s.Sel.Name == "out" || s.Sel.Name == "err") && isPrinting(call) {
					t.Errorf("%s writes to the terminal itself: use print or say", file)
				}
			}
			return true
		})
	}
}

func isPrinting(call *ast.CallExpr) bool {
	f, ok := call.Fun.(*ast.SelectorExpr)
	return ok && (strings.HasPrefix(f.Sel.Name, "Fprint") || f.Sel.Name == "WriteString")
}

// No command, present or future, prints typed text raw.
func TestCommandsSayNothingRaw(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	t.Setenv("INTERLOCK_BACKEND", "")
	for _, format := range []string{"text", "json"} {
		for _, words := range everyCommand(newApp("interlock", nil, nil).root(), nil) {
			for _, args := range [][]string{{hostile}, {hostile, hostile}, {"--" + hostile}, {"--reason", hostile, hostile}} {
				for _, url := range []string{"etcd://127.0.0.1:1", hostile, "postgres://127.0.0.1:1/" + hostile} {
					typed := slices.Concat(words, []string{"--backend", url, "--timeout", "1ms", "-o", format}, args)
					said := typeLine(typed)
					if err := unsafeIn(said); err != nil {
						t.Errorf("%q: %v", typed, err)
					}
				}
			}
		}
	}
}

// everyCommand returns the words of all commands with an action.
func everyCommand(c *cobra.Command, words []string) (list [][]string) {
	for _, sub := range c.Commands() {
		list = append(list, everyCommand(sub, append(slices.Clone(words), sub.Name()))...)
	}
	if len(words) > 0 && words[0] != "dev" && words[0] != "coordinate" && words[0] != "lab" { // they run for long
		list = append(list, words)
	}
	return list
}

// typeLine runs a command line in this process and returns its output.
func typeLine(args []string) string {
	var b strings.Builder
	newApp("interlock", &b, &b).run(args)
	return b.String()
}

func FuzzText(f *testing.F) {
	f.Add(hostile)
	f.Add("as it is")
	f.Fuzz(func(t *testing.T, s string) {
		for _, made := range []text{line("%s %v %-9s\n", s, s, s), table([][]string{{s, s}}), fields([2]string{s, s}), command(s)} {
			for _, r := range string(made) {
				if isControl(r) {
					t.Fatalf("%q of %q", r, made)
				}
			}
			if strings.Count(string(made), "\n") > 1 {
				t.Fatalf("%q makes lines of its own", made)
			}
		}
		if plain(plain(s)) != plain(s) {
			t.Fatalf("%q is escaped twice", s)
		}
	})
}

func FuzzOffers(f *testing.F) {
	f.Add("name\tabout `id`\n")
	f.Add("`id`\n:4\n")
	f.Fuzz(func(t *testing.T, s string) {
		var b strings.Builder
		if _, err := (&completionWriter{to: &b}).Write([]byte(s)); err != nil {
			t.Fatal(err)
		}
		if strings.ContainsAny(b.String(), "`$\\\"';&|<>") {
			t.Fatalf("%q offers %q", s, b.String())
		}
	})
}

// Lines that several goroutines print at once stay whole: hooks of a coordinator and of renewals do.
func TestLinesStayWhole(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	a := newApp("interlock", io.Discard, &b)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				a.say("saga %s waits", "世界")
			}
		})
	}
	all.Wait()
	if want := strings.Repeat("interlock: saga 世界 waits\n", 1600); b.String() != want {
		t.Errorf("%d bytes, want %d", b.Len(), len(want))
	}
}

// A store that is down makes no flood: of the lines of one hook a coordinator prints 20 in a second, and of
// each hook some.
func TestACoordinatorDoesNotFlood(t *testing.T) {
	var b bytes.Buffer
	a := newApp("interlock", io.Discard, &b)
	var o httpapi.Options
	a.tell(&o, false)
	for range 1000 {
		o.Sagas.Hooks.Dead(observe.SagaDead{Saga: "dead", Steps: []string{"a"}})
		o.Sagas.Hooks.Stuck(observe.SagaStuck{Saga: "stuck", Step: "a", Err: io.EOF})
		o.TCC.Hooks.Dead(observe.TCCDead{Transaction: "refused"})
		o.TwoPC.Hooks.Halted(observe.TwoPCHalted{Transaction: "halted", Participants: []string{"it's"}})
		o.TwoPC.Hooks.Heuristic(observe.TwoPCHeuristic{Transaction: "heuristic", Err: io.EOF})
		o.TwoPC.Hooks.Orphan(observe.TwoPCOrphan{Transaction: "orphan"})
	}
	if n := strings.Count(b.String(), "\n"); n > 6*100 {
		t.Errorf("%d lines", n)
	}
	for _, want := range []string{"interlock: saga dead waits for an operator: the undo of a failed for good; see interlock saga show dead\n",
		"interlock: saga stuck is past its pivot, and step a has failed 0 times: EOF\n", "transaction refused waits", "halted, not committed by it's: ",
		"interlock xa retry halted\n", "transaction heuristic waits", "transaction orphan has been in doubt"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in %.1000s", want, &b)
		}
	}
}

// The labels of a Mermaid graph have no quotes of their own, whatever the names are.
func TestMermaidLabels(t *testing.T) {
	t.Parallel()
	node := regexp.MustCompile(`^  n\d+[\[(]"[^"]*"[\])]$`)
	for l := range strings.Lines(string(mermaidOf([]waiterView{{Task: hostile, Awaits: `a"b`, Holds: []string{"c\x1b", "d\ne"}}}))) {
		if l = strings.TrimSuffix(l, "\n"); strings.Contains(l, `"`) && !node.MatchString(l) {
			t.Errorf("%s", l)
		}
	}
}

// Branches are shown in one order: those given up first.
func TestBranchesAreInOrder(t *testing.T) {
	t.Parallel()
	v := transactionView{Summary: coordinator.Summary{Dead: []coordinator.StepError{{Step: "first"}}, Failing: []coordinator.StepError{{Step: "second"}}}}
	for range 50 {
		if text := string(v.shown()); strings.Index(text, "first") > strings.Index(text, "second") {
			t.Fatal(text)
		}
	}
}

// A standard input that cannot be read is no fault of the backend.
func TestInputThatCannotBeRead(t *testing.T) {
	t.Parallel()
	directory, err := os.Open(t.TempDir())
	testbed.OK(t, err)
	defer directory.Close()
	for _, args := range []string{"queue edit orders 1 --payload - --reason x", "saga start order/42 order --input -"} {
		var said bytes.Buffer
		a := newApp("interlock", io.Discard, &said)
		a.in = directory
		if code := a.run(strings.Fields(args + " --backend postgres://127.0.0.1:1/shop")); code != exitFailed || !strings.Contains(said.String(), "standard input") {
			t.Errorf("%s: exit code %d, %s", args, code, &said)
		}
	}
}

// A change whose confirmation did not come may be done, and the error says so.
func TestUnconfirmedChanges(t *testing.T) {
	target, err := backend.Parse("postgres://127.0.0.1/shop")
	testbed.OK(t, err)
	for kind, want := range map[interlock.ErrorKind]bool{interlock.Uncertain: true, interlock.Definite: false} {
		for changes := range map[bool]bool{true: true, false: true} {
			a := &app{changes: changes, backend: "postgres://127.0.0.1/shop", timeout: time.Second}
			err := a.backendError(target, &interlock.Error{Op: "commit", Kind: kind, Err: context.DeadlineExceeded})
			if got := strings.Contains(err.Error(), "may be done"); codeOf(err) != exitUnreachable || got != (want && changes) {
				t.Errorf("%v, of a change %v: %v", kind, changes, err)
			}
		}
	}
}
