package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/spf13/cobra"
)

// print writes data, as one JSON document or as text, to the standard output.
func (a *app) print(data any, text string) error {
	if a.output == "json" {
		line, err := json.Marshal(data)
		if err != nil {
			return fail(exitBug, "write JSON: %w", err)
		}
		text = string(line) + "\n"
	}
	if _, err := io.WriteString(a.out, text); err != nil {
		return fail(exitFailed, "write to the standard output: %w", err)
	}
	return nil
}

// table aligns rows; the first is the head.
func table(rows [][]string) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.TrimRight(strings.Join(row, "\t"), "\t"))
	}
	_ = w.Flush() // a strings.Builder takes everything
	return b.String()
}

// plain shows what others wrote into a backend without letting it move the
// cursor or start a line: as it is if it is printable, else quoted.
func plain(s string) string {
	for _, r := range s {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return strconv.QuoteToGraphic(s)
		}
	}
	return s
}

func noArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage("%s takes no arguments, but %q was given", c.CommandPath(), args[0])
	}
	return nil
}

// isGroup is for commands that do nothing themselves.
func isGroup(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage("there is no command %q; %s --help lists them all", args[0], c.CommandPath())
	}
	return nil
}

// oneArg wants exactly one argument, called what.
func oneArg(what string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usage("%s wants one %s, %d were given", c.CommandPath(), what, len(args))
		}
		return nil
	}
}

// first is the first error there is: one clear sentence, not a list.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
