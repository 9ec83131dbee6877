package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// Pages calls write with the name and the Markdown text of a page for each command, for the
// documentation's site.
func Pages(write func(name, text string) error) error {
	a := newApp("interlock", io.Discard, io.Discard)
	var walk func(c *cobra.Command) error
	walk = func(c *cobra.Command) error {
		if c.Hidden || c.Name() == "help" || c.Name() == "completion" {
			return nil
		}
		if err := write(strings.ReplaceAll(c.CommandPath(), " ", "-"), page(c)); err != nil {
			return err
		}
		for _, sub := range c.Commands() {
			if err := walk(sub); err != nil {
				return err
			}
		}
		return nil
	}
	return walk(a.root())
}

// page is what a command's help says.
func page(c *cobra.Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s.\n\n```\n%s\n```\n", c.CommandPath(), strings.TrimSuffix(c.Short, "."), c.UseLine())
	section := func(title, text string) {
		if text = strings.Trim(text, "\n"); text != "" {
			fmt.Fprintf(&b, "\n## %s\n\n```\n%s\n```\n", title, text)
		}
	}
	if c.Long != "" {
		fmt.Fprintf(&b, "\n```\n%s\n```\n", strings.TrimSpace(c.Long))
	}
	section("Examples", c.Example)
	section("Flags", c.LocalFlags().FlagUsages())
	section("Flags of every command", c.InheritedFlags().FlagUsages())
	if c.HasAvailableSubCommands() {
		b.WriteString("\n## Commands\n\n")
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() {
				fmt.Fprintf(&b, "- [%s](%s.md): %s\n", sub.CommandPath(), strings.ReplaceAll(sub.CommandPath(), " ", "-"), sub.Short)
			}
		}
	}
	return b.String()
}
