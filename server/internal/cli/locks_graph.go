package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/claim/deadlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/server/internal/backend"
)

// waiterView is the JSON form of a waiter; see docs/reference/cli.md.
type waiterView struct {
	Task   string    `json:"task"`
	Awaits string    `json:"awaits"`
	Holds  []string  `json:"holds"`
	Since  time.Time `json:"since"`
}

func (a *app) graphCommand() *cobra.Command {
	format := "text"
	c := &cobra.Command{
		Use: "graph", Short: "Show who waits for what while holding something",
		Example: `  interlock locks graph
  interlock locks graph --format mermaid
  interlock locks graph -o json`,
		Long: `Tasks that claim/deadlock watches publish their long waits beside what they await. This
shows those of one backend. A cycle of them is found, and ended, by the tasks.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			draw := map[string]func([]waiterView) text{"text": nil, "dot": dotOf, "mermaid": mermaidOf}
			if _, ok := draw[format]; !ok {
				return usage("--format is text, dot or mermaid, not %q", format)
			}
			views, err := a.waiters(c.Context())
			switch {
			case err != nil:
				return err
			case draw[format] != nil:
				return a.print(views, draw[format](views))
			}
			rows := [][]string{{"TASK", "AWAITS", "HOLDS", "TASK BEGAN"}}
			for _, v := range views {
				rows = append(rows, []string{v.Task, v.Awaits, strings.Join(v.Holds, ", "), localTime(v.Since)})
			}
			return a.printRows(views, rows, "no task has published that it waits; only tasks that claim/deadlock watches do")
		},
	}
	c.Flags().StringVar(&format, "format", format, "text, dot or mermaid")
	completes(c, "format", "text", "dot", "mermaid")
	return c
}

// waiters reads the backend's board, within --timeout.
func (a *app) waiters(ctx context.Context) ([]waiterView, error) {
	views := []waiterView{}
	err := connect(ctx, a, func(ctx context.Context, t backend.Target) (driver.KeyValues, func(), error) {
		return t.KeyValues(ctx, a.prefix)
	}, func(ctx context.Context, board driver.KeyValues) error {
		all, err := deadlock.Waiters(ctx, board)
		if err != nil && all == nil {
			return err
		}
		if err != nil {
			a.say("warning: some notes cannot be read: %v", err)
		}
		for _, w := range all {
			views = append(views, waiterView{w.Task, w.Awaits, w.Holds, w.Since})
		}
		return nil
	})
	return views, err
}

// dotOf returns a Graphviz graph: tasks, and what they hold and await.
func dotOf(views []waiterView) (t text) {
	t = "digraph waits {\n"
	for _, v := range views {
		t += line("  %q [shape=box];\n  %q -> %q [label=awaits];\n", v.Task, v.Task, v.Awaits)
		for _, held := range v.Holds {
			t += line("  %q -> %q [label=\"held by\"];\n", held, v.Task)
		}
	}
	return t + "}\n"
}

// spaced replaces an unprintable character by a space.
func spaced(r rune) rune {
	if unprintable(r) {
		return ' '
	}
	return r
}

// mermaidOf returns a Mermaid graph. Its ids are numbers, because names may contain anything.
func mermaidOf(views []waiterView) (t text) {
	t = "graph LR\n"
	var names []string
	id := func(name string, open, end string) string {
		i := slices.Index(names, name)
		if i < 0 {
			i, names = len(names), append(names, name)
			t += line("  n%d%s\"%s\"%s\n", i, open, strings.ReplaceAll(strings.Map(spaced, name), `"`, "#quot;"), end)
		}
		return fmt.Sprint("n", i)
	}
	for _, v := range views {
		task, awaited := id("task "+v.Task, "[", "]"), id(v.Awaits, "(", ")")
		t += line("  %s -- awaits --> %s\n", task, awaited)
		for _, held := range v.Holds {
			resource := id(held, "(", ")")
			t += line("  %s -- held by --> %s\n", resource, task)
		}
	}
	return t
}
