package cli

import (
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/server/internal/backend"
	"github.com/interlock-dev/interlock/txn/journal"
)

// completionPatience bounds the wait of a shell for the names of locks. No answer to a key press is better
// than a blocked shell.
const completionPatience = 300 * time.Millisecond

// completionNames is the most offered names.
const completionNames = 200

var shells = []string{"bash", "zsh", "fish", "powershell"}

func (a *app) completionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "completion SHELL", Short: "Print a completion script for a shell",
		Example: `  source <(interlock completion bash)                                  for this shell; needs bash-completion
  interlock completion bash > /etc/bash_completion.d/interlock         for all shells
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

// completeJob offers a name, then a command.
func (a *app) completeJob(find func(ctx context.Context, typed string) []string) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return a.completeFirst(find)(c, args, typed)
	}
}

// completeWithin returns no errors. A request to a backend that hangs may not be interruptible; it ends with
// the process.
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
			return !safeWord(name) || strings.HasPrefix(name, "-") // a flag to the shell
		})
	case <-timer.C:
		return nil
	}
}

// lockNames returns locks that are held or awaited; internal ones if the prefix is that of one.
func (a *app) lockNames(ctx context.Context, prefix string) (names []string) {
	_ = a.inspect(ctx, func(ctx context.Context, v *inspection) error {
		locks, _, err := v.Locks(ctx, prefix, completionNames)
		for _, l := range locks {
			if !internalName(l.Name) || internalName(prefix) {
				names = append(names, l.Name)
			}
		}
		return err
	})
	return names
}

// completionWriter writes the completions of a shell: one word a line, a tab and its description. Shells
// insert parts of words unquoted, and then execute them: it drops words that a shell could expand, from any
// source.
type completionWriter struct{ to io.Writer }

// Write implements [io.Writer]. It is called with whole lines.
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

// dropShellCharacters removes characters from a description that a shell could expand.
func dropShellCharacters(r rune) rune {
	if strings.ContainsRune("`$\\\"'<>&|;(){}[]*?!~#^", r) || unprintable(r) {
		return -1
	}
	return r
}

// completeFirst offers names for the first argument that are found within [completionPatience].
func (a *app) completeFirst(find func(ctx context.Context, typed string) []string) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.completeWithin(c, func(ctx context.Context) []string { return find(ctx, typed) }), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeIDs adds completion to the commands of a group that begin with an ID.
func (l *journalCommands) completeIDs(group *cobra.Command) {
	for _, c := range group.Commands() {
		if _, args, _ := strings.Cut(c.Use, " "); c.Name() != "start" && c.ValidArgsFunction == nil &&
			(strings.HasPrefix(args, "ID") || strings.HasPrefix(args, "[ID")) {
			c.ValidArgsFunction = l.app.completeFirst(func(ctx context.Context, typed string) []string { return l.ids(ctx, typed) })
		}
	}
}

// ids returns transactions of the group's protocol that begin with the typed text.
func (l *journalCommands) ids(ctx context.Context, typed string) (ids []string) {
	_ = l.do(ctx, true, func(ctx context.Context, j *journal.Journal) error {
		heads, err := j.Heads(ctx, typed, completionNames)
		for _, h := range heads {
			if strings.HasPrefix(h.Transaction, typed) && strings.HasPrefix(h.Type, l.protocol+":") {
				ids = append(ids, h.Transaction)
			}
		}
		return err
	})
	return ids
}

// completeResource offers locks that are held or awaited. It adds resources with a mark, if the
// guard lists them at little cost.
func (a *app) completeResource(table *string) cobra.CompletionFunc {
	return a.completeFirst(func(ctx context.Context, typed string) (names []string) {
		names = a.lockNames(ctx, typed)
		_ = a.guard(ctx, *table, func(ctx context.Context, g backend.Guard) error {
			lister, ok := g.(backend.Lister)
			if !ok {
				return nil
			}
			all, err := lister.Resources(ctx, typed, completionNames)
			for _, name := range all {
				if strings.HasPrefix(name, typed) {
					names = append(names, name)
				}
			}
			return err
		})
		slices.Sort(names)
		return slices.Compact(names)
	})
}

// completeLetters offers the ids of dead letters.
func (m *outboxCommands) completeLetters() cobra.CompletionFunc {
	return m.app.completeFirst(func(ctx context.Context, _ string) (ids []string) {
		_ = m.do(ctx, func(ctx context.Context, t outbox.Table, db driver.SQL) error {
			letters, err := t.DeadLetters(ctx, db, outbox.DeadLetterQuery{Limit: completionNames})
			for _, l := range letters {
				ids = append(ids, l.ID)
			}
			return err
		})
		return ids
	})
}

// completeWaiting offers the ids of messages that block their keys.
func (m *outboxCommands) completeWaiting() cobra.CompletionFunc {
	return m.app.completeFirst(func(ctx context.Context, _ string) (ids []string) {
		_ = m.do(ctx, func(ctx context.Context, t outbox.Table, db driver.SQL) error {
			s, err := t.Status(ctx, db)
			for _, w := range s.Waiting {
				ids = append(ids, w.ID)
			}
			return err
		})
		return ids
	})
}
