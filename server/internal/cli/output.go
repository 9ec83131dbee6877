package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
)

// print writes data, as one JSON document or as text, to the standard output.
func (a *app) print(data any, t text) error {
	if a.output == "json" {
		return a.printJSON(data)
	}
	return a.write(t)
}

// printJSON writes one line of JSON to the standard output.
func (a *app) printJSON(data any) error {
	document, err := json.Marshal(data)
	if err != nil {
		return fail(exitBug, "write JSON: %w", err)
	}
	return a.write(text(document) + "\n")
}

func (a *app) write(t text) error {
	if _, err := io.WriteString(a.out, string(t)); err != nil {
		return fail(exitFailed, "write to the standard output: %w", err)
	}
	return nil
}

// exactOutput returns the standard output for bytes that a program reads; on a terminal they are escaped.
func (a *app) exactOutput() io.Writer {
	t, ok := a.out.(*terminal)
	if !ok {
		return a.out
	}
	if f, ok := t.out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return t
	}
	return t.out
}

// serving is the JSON form of a server's address and data directory.
type serving struct {
	Endpoint string `json:"endpoint"`
	Data     string `json:"data"`
}

// serves prints that a server is ready. The server runs even if that fails.
func (a *app) serves(s serving, t text) { _ = a.print(s, t) }

// say writes a line to the standard error. A failure to write is ignored.
func (a *app) say(format string, args ...any) { a.ask("interlock: "+format+"\n", args...) }

// sayingTo returns a copy whose messages go to another writer.
func (a *app) sayingTo(w io.Writer) *app {
	b := *a
	b.err = w
	return &b
}

// A messageQueue prints messages in its own goroutine: a terminal whose output is stopped, or a full
// pipe, delays no service that reports something. Beyond mostMessages it drops them.
type messageQueue struct {
	messages  chan []byte
	end, done chan struct{}
}

// mostMessages is how many messages wait until they are printed, and messagePatience how long close
// waits for them.
const (
	mostMessages    = 1000
	messagePatience = time.Second
)

func newMessageQueue(out io.Writer) *messageQueue {
	q := &messageQueue{messages: make(chan []byte, mostMessages), end: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(q.done)
		for {
			select {
			case m := <-q.messages:
				_, _ = out.Write(m)
				continue
			default:
			}
			select {
			case m := <-q.messages:
				_, _ = out.Write(m)
			case <-q.end:
				return
			}
		}
	}()
	return q
}

// Write implements [io.Writer]. It does not block.
func (q *messageQueue) Write(message []byte) (int, error) {
	select {
	case q.messages <- bytes.Clone(message):
	default:
	}
	return len(message), nil
}

// close prints the messages that wait. What blocks for too long ends with the process.
func (q *messageQueue) close() {
	close(q.end)
	select {
	case <-q.done:
	case <-time.After(messagePatience):
	}
}

// sayError reports the error of a command, as one line in JSON.
func (a *app) sayError(err error, asJSON bool) {
	if !asJSON {
		a.say("%v", err)
		return
	}
	document, _ := json.Marshal(struct { // never fails
		Error string `json:"error"`
		Code  int    `json:"exit_code"`
	}{err.Error(), codeOf(err)})
	_, _ = a.err.Write(append(document, '\n'))
}

// wantsJSON reports whether an unparsable command line requests JSON.
func wantsJSON(args []string) bool {
	for i, arg := range args {
		switch {
		case arg == "--":
			return false
		case arg == "-ojson", arg == "-o=json", arg == "--output=json",
			(arg == "-o" || arg == "--output") && i+1 < len(args) && args[i+1] == "json":
			return true
		}
	}
	return false
}

// printRows prints rows, the first of which is the head. Without others it prints none to the
// standard error; in JSON the list is empty.
func (a *app) printRows(data any, rows [][]string, none string) error {
	if len(rows) == 1 && a.output != "json" {
		a.say("%s", none)
		return nil
	}
	return a.print(data, table(rows))
}

// hintAtMore reports that a list of n rows may go on, after a row if it has such a flag.
func (a *app) hintAtMore(n, limit int, after string) {
	var next text
	if after != "" {
		next = line(", or %s for the next", command("--after", after))
	}
	if n == limit {
		a.say("there may be more than these %d: --limit%s", n, next)
	}
}

// ask writes a question without a line end.
func (a *app) ask(format string, args ...any) {
	_, _ = io.WriteString(a.err, string(line(format, args...)))
}

// terminal filters everything that is printed: it escapes control characters, and those that
// change the direction of writing, from any source. The escapes are those of JSON. Several
// goroutines may write.
type terminal struct {
	mu   sync.Mutex
	out  io.Writer
	rest []byte // the start of a character
}

// Write implements [io.Writer].
func (t *terminal) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rest = append(t.rest, p...)
	n := len(t.rest)
	for back := 1; back < utf8.UTFMax && back <= n; back++ {
		if tail := t.rest[n-back:]; utf8.RuneStart(tail[0]) {
			if !utf8.FullRune(tail) {
				n -= back
			}
			break
		}
	}
	safe := escapeControls(string(t.rest[:n]))
	t.rest = append(t.rest[:0], t.rest[n:]...)
	if _, err := io.WriteString(t.out, safe); err != nil {
		return 0, err
	}
	return len(p), nil
}

func escapeControls(s string) string {
	if !strings.ContainsFunc(s, isControl) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch high, low := utf16.EncodeRune(r); {
		case !isControl(r):
			b.WriteRune(r)
		case high == utf8.RuneError:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		}
	}
	return b.String()
}

func isControl(r rune) bool { return r != '\n' && r != '\t' && unprintable(r) }

func noArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage("%s takes no arguments, but %q was given", c.CommandPath(), args[0])
	}
	return nil
}

// isGroup rejects arguments of commands that only have subcommands.
func isGroup(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage("there is no command %q%s; %s --help lists them all", args[0], suggestion(c, args[0]), c.CommandPath())
	}
	return nil
}

// wrongValue replaces an error of a flag's value that has words of Go.
func wrongValue(err error) error {
	var wrong *pflag.InvalidValueError
	if !errors.As(err, &wrong) {
		return err
	}
	wanted := map[string]string{
		"duration": "a duration, such as 10s or 1h30m", "bool": "true or false", "int": "a whole number", "int64": "a whole number",
	}[wrong.GetFlag().Value.Type()]
	if wanted == "" {
		return err
	}
	return fmt.Errorf("--%s %s is not %s", wrong.GetFlag().Name, wrong.GetValue(), wanted)
}

// suggestion returns the commands with a similar spelling.
func suggestion(c *cobra.Command, typed string) text {
	c.SuggestionsMinimumDistance = 2
	if near := c.SuggestionsFor(typed); len(near) > 0 {
		return line(", did you mean %s?", strings.Join(near, " or "))
	}
	return ""
}

// flagSuggestion returns the flags with a similar spelling, by [suggestion] among commands with
// the names of the flags. Go programs accept -name for --name.
func flagSuggestion(c *cobra.Command, err error) text {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return ""
	}
	typed, _, _ := strings.Cut(cmp.Or(unknown.GetSpecifiedShortnames(), unknown.GetSpecifiedName()), "=")
	if len(typed) < 3 {
		return "" // too short: it is similar to anything
	}
	flags := &cobra.Command{}
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			flags.AddCommand(&cobra.Command{Use: "--" + f.Name, Run: func(*cobra.Command, []string) {}})
		}
	})
	return suggestion(flags, "--"+typed)
}
