package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// helpTemplate shows examples before explanations.
const helpTemplate = `{{.Short}}.

{{with .Example}}Examples:
{{.}}

{{end}}{{with .Long}}{{.}}

{{end}}{{if .Runnable}}Usage:
  {{.UseLine}}

{{end}}{{if .HasAvailableSubCommands}}Commands:{{range .Commands}}{{if .IsAvailableCommand}}
  {{rpad .Name 12}} {{.Short}}{{end}}{{end}}

{{end}}{{if .HasHelpSubCommands}}Topics:{{range .Commands}}{{if .IsAdditionalHelpTopicCommand}}
  {{rpad .Name 12}} {{.Short}}{{end}}{{end}}

{{end}}{{if .HasAvailableLocalFlags}}Flags:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}

{{end}}{{if .HasAvailableInheritedFlags}}Flags of every command:
{{.InheritedFlags.FlagUsages | trimTrailingWhitespaces}}
{{end}}`

// helpCommand replaces cobra's, which accepts unknown commands.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", Short: "Explain a command or a topic",
		Example: `  interlock help lock
  interlock help guard enter
  interlock help exit-codes`,
		ValidArgsFunction: completeTopics,
		RunE: func(c *cobra.Command, args []string) error {
			about, rest, err := c.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return usage("there is neither a command nor a topic %q%s; %s --help lists them all",
					strings.Join(args, " "), suggestion(about, strings.Join(rest, " ")), c.Root().Name())
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	}
}

func completeTopics(c *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	about, rest, err := c.Root().Find(args)
	if err != nil || len(rest) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var topics []cobra.Completion
	for _, t := range about.Commands() {
		if strings.HasPrefix(t.Name(), typed) && !t.Hidden {
			topics = append(topics, cobra.CompletionWithDesc(t.Name(), t.Short))
		}
	}
	return topics, cobra.ShellCompDirectiveNoFileComp
}

func exitCodesTopic() *cobra.Command {
	return &cobra.Command{Use: "exit-codes", Short: "Explain the exit codes", Long: exitCodes}
}

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

// page returns the help of a command.
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
