package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
)

// A text is safe to print: data from a backend and typed text cannot move the
// cursor, start a line, or reverse later text. Only [line], [table], [fields] and
// constants create one; a test enforces that.
type text string

// line formats a text. It escapes arguments like [plain], except other texts.
func line(format string, args ...any) text {
	if false {
		_ = fmt.Sprintf(format, args...) // so that vet checks the arguments
	}
	return text(fmt.Sprintf(format, escaped(args)...))
}

// lines returns a text of several lines that are our own.
func lines(s string) (t text) {
	for l := range strings.Lines(s) {
		t += line("%s\n", strings.ReplaceAll(strings.TrimSuffix(l, "\n"), "\t", "    "))
	}
	return t
}

// trimmed returns a text without trailing spaces.
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
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	_ = w.Flush() // a strings.Builder never fails
	var t text
	for l := range strings.Lines(b.String()) {
		t += trimmed(text(strings.TrimSuffix(l, "\n"))) + "\n"
	}
	return t
}

// fields returns names and values, one a line, without empty values.
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

// command returns a command to type next, quoted for a shell.
func command(words ...string) text {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = shellQuote(w)
	}
	return text(strings.Join(quoted, " "))
}

// shellQuote quotes words that a shell could expand. It escapes unprintable
// characters for bash and zsh.
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

// plain returns s if it is printable, else s quoted.
func plain(s string) string {
	if strings.ContainsFunc(s, unprintable) {
		return strconv.Quote(s)
	}
	return s
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }

// oneLine joins the lines of an error, such as those of errors.Join.
func oneLine(s string) string {
	all := strings.Split(s, "\n")
	for i, l := range all {
		all[i] = strings.Trim(l, " \t")
	}
	return strings.ReplaceAll(strings.Join(all, "; "), ":; ", ": ")
}

// escaped wraps all arguments but texts, so that they are escaped when formatted.
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

// Format implements [fmt.Formatter]. Output such as %q's is already escaped.
func (e escapedValue) Format(f fmt.State, verb rune) {
	out := fmt.Sprintf(fmt.FormatString(f, verb), e.value)
	if verb == 's' || verb == 'v' {
		out = plain(out)
	}
	_, _ = io.WriteString(f, out) // a fmt.State never fails
}

type escapedError struct{ error }

func (e escapedError) Error() string { return plain(oneLine(e.error.Error())) }
func (e escapedError) Unwrap() error { return e.error }
