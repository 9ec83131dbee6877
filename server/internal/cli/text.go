package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
)

// A text is safe to print: what others wrote into a backend, and what was typed,
// cannot move the cursor, start a line, or reverse what follows. Only [line],
// [table], [fields] and constants make one; a test keeps it so.
type text string

// line formats a text. Arguments are escaped as [plain] does it, except other
// texts.
func line(format string, args ...any) text {
	if false {
		_ = fmt.Sprintf(format, args...) // so that vet checks the arguments
	}
	return text(fmt.Sprintf(format, escaped(args)...))
}

// lines is a text of several lines that we have written ourselves.
func lines(s string) (t text) {
	for l := range strings.Lines(s) {
		t += line("%s\n", strings.ReplaceAll(strings.TrimSuffix(l, "\n"), "\t", "    "))
	}
	return t
}

// trimmed is a text without the spaces at its end.
func trimmed(t text) text { return text(strings.TrimRight(string(t), " ")) }

// table aligns rows; the first is the head.
func table(rows [][]string) text {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = plain(cell)
		}
		fmt.Fprintln(w, strings.TrimRight(strings.Join(cells, "\t"), "\t"))
	}
	_ = w.Flush() // a strings.Builder takes everything
	return text(b.String())
}

// fields are names and values, one a line; empty values are left out.
func fields(pairs ...[2]string) (t text) {
	width := 0
	for _, p := range pairs {
		if p[1] != "" {
			width = max(width, len(plain(p[0])))
		}
	}
	for _, p := range pairs {
		if p[1] != "" {
			t += line("%-*s %s\n", width, plain(p[0]), p[1])
		}
	}
	return t
}

// command is a command to type next, quoted for a shell.
func command(words ...string) text {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = shellQuote(w)
	}
	return text(strings.Join(quoted, " "))
}

// shellQuote leaves words alone that no shell expands. What cannot be printed
// is escaped as bash and zsh read it.
func shellQuote(word string) string {
	switch {
	case word != "" && safeWord(word):
		return word
	case plain(word) == word:
		return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	body := strings.TrimSuffix(strings.TrimPrefix(strconv.Quote(word), `"`), `"`)
	return "$'" + strings.NewReplacer(`\"`, `"`, "'", `\'`).Replace(body) + "'"
}

// safeWord reports whether a word means the same quoted and unquoted in every
// shell, at every place of a command.
func safeWord(word string) bool {
	return !strings.ContainsFunc(word, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._/:@=+-", r))
	})
}

// plain is s as it is if it is printable, else quoted.
func plain(s string) string {
	if strings.ContainsFunc(s, unprintable) {
		return strconv.Quote(s)
	}
	return s
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }

// escaped wraps what is not a text, so that it is escaped when it is formatted.
func escaped(args []any) []any {
	safe := make([]any, len(args))
	for i, arg := range args {
		switch arg := arg.(type) {
		case text, *exitError, int, nil:
			safe[i] = arg
		case error:
			safe[i] = escapedError{arg}
		default:
			safe[i] = escapedValue{arg}
		}
	}
	return safe
}

type escapedValue struct{ value any }

// Format is [fmt.Formatter]'s. What %q and the like print is escaped already.
func (e escapedValue) Format(f fmt.State, verb rune) {
	out := fmt.Sprintf(fmt.FormatString(f, verb), e.value)
	if verb == 's' || verb == 'v' {
		out = plain(out)
	}
	_, _ = io.WriteString(f, out) // a fmt.State takes everything
}

type escapedError struct{ error }

func (e escapedError) Error() string { return plain(e.error.Error()) }
func (e escapedError) Unwrap() error { return e.error }
