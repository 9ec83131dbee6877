package cli

import (
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// completionPatience is how long a shell waits for the names of locks. A key
// press that shows nothing is better than one that hangs.
const completionPatience = 300 * time.Millisecond

// completionNames is the most names that are offered.
const completionNames = 200

var shells = []string{"bash", "zsh", "fish", "powershell"}

func (a *app) completionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "completion SHELL", Short: "Print a completion script for a shell",
		Example: `  source <(interlock completion bash)                                  for this shell
  interlock completion bash > /etc/bash_completion.d/interlock         for all, with bash-completion
  interlock completion zsh > "${fpath[1]}/_interlock"
  interlock completion fish > ~/.config/fish/completions/interlock.fish
  interlock completion powershell | Out-String | Invoke-Expression`,
		Long: `The script completes commands, flags, the names of locks that are held or awaited,
resources of guards, keys of limits, and the ids of transactions and dead letters.`,
		ValidArgs: shells,
		Args:      oneArg("shell: bash, zsh, fish or powershell"),
		RunE: func(c *cobra.Command, args []string) error {
			root := c.Root()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(a.out, true)
			case "zsh":
				return root.GenZshCompletion(a.out)
			case "fish":
				return root.GenFishCompletion(a.out, true)
			case "powershell":
				return root.GenPowerShellCompletionWithDesc(a.out)
			}
			return usage("there is no completion for %q; there is for bash, zsh, fish and powershell", args[0])
		},
	}
}

// completes offers fixed values for a flag.
func completes(c *cobra.Command, flag string, values ...string) {
	err := c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	if err != nil { // there is no such flag
		panic(err)
	}
}

// completeName offers the locks that are held or awaited as the first argument,
// and nothing after it.
func (a *app) completeName(c *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return a.completeFirst(a.lockNames)(c, args, typed)
}

// completeJob offers a name, and then a command.
func (a *app) completeJob(find func(ctx context.Context, typed string) []string) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return a.completeFirst(find)(c, args, typed)
	}
}

// completeWithin reports no errors. A request to a backend that hangs may not be
// interruptible; it ends with the process.
func (a *app) completeWithin(c *cobra.Command, find func(context.Context) []string) []string {
	if a.checkGlobals(c) != nil {
		return nil
	}
	a.err, a.timeout = io.Discard, min(a.timeout, completionPatience)
	found := make(chan []string, 1)
	go func() { found <- find(c.Context()) }()
	timer := time.NewTimer(completionPatience)
	defer timer.Stop()
	select {
	case names := <-found:
		return slices.DeleteFunc(names, func(name string) bool {
			return !safeWord(name) || strings.HasPrefix(name, "-") // that would be taken for a flag
		})
	case <-timer.C:
		return nil
	}
}

func (a *app) lockNames(ctx context.Context, prefix string) (names []string) {
	_ = a.inspect(ctx, func(ctx context.Context, v *inspection) error {
		locks, _, err := v.Locks(ctx, prefix, completionNames)
		for _, l := range locks {
			names = append(names, l.Name)
		}
		return err
	})
	return names
}

// completionWriter writes the completions of a shell: one word a line, a tab and its description. Shells insert a part of a word without quotes, and
// run what they have inserted: only words that no shell expands get through,
// wherever they come from.
type completionWriter struct{ to io.Writer }

// Write is [io.Writer]'s. It is called with whole lines.
func (o *completionWriter) Write(p []byte) (int, error) {
	var safe strings.Builder
	for line := range strings.Lines(string(p)) {
		word, about, described := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if !safeWord(word) {
			continue
		}
		safe.WriteString(word)
		if described {
			safe.WriteString("\t" + strings.Map(dropShellCharacters, about))
		}
		safe.WriteByte('\n')
	}
	if _, err := io.WriteString(o.to, safe.String()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// dropShellCharacters drops what a shell could expand from a description.
func dropShellCharacters(r rune) rune {
	if strings.ContainsRune("`$\\\"'<>&|;(){}[]*?!~#^", r) || unprintable(r) {
		return -1
	}
	return r
}
