package cli

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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

{{end}}{{with globalFlags .}}Flags of every command:
{{. | trimTrailingWhitespaces}}
{{end}}`

// noBackend is the annotation of commands that use no backend.
const noBackend = "no backend"

// withoutBackend marks commands that use no backend: their help leaves out its flags.
func withoutBackend(commands ...*cobra.Command) []*cobra.Command {
	for _, c := range commands {
		c.Annotations = map[string]string{noBackend: "true"}
	}
	return commands
}

func init() { cobra.AddTemplateFunc("globalFlags", globalFlags) }

// globalFlags returns the usages of the global flags that a command reads.
func globalFlags(c *cobra.Command) string {
	local := false
	for p := c; p != nil; p = p.Parent() {
		local = local || p.Annotations[noBackend] != ""
	}
	used := pflag.NewFlagSet("", pflag.ContinueOnError)
	c.InheritedFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name == "output" || !local {
			used.AddFlag(f)
		}
	})
	return used.FlagUsages()
}

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
