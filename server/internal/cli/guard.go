package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/server/internal/backend"
)

func (a *app) guardCommand() *cobra.Command {
	var table string
	c := group(&cobra.Command{
		Use: "guard", Short: "Enter, show or correct the mark that rejects stale tokens",
		Example: `  interlock guard show account/42 --backend postgres://localhost/bank
  interlock guard rebase account/42 --to 0 --reason "restored from last night's backup"`,
	}, a.guardEnterCommand(&table), a.guardShowCommand(&table), a.guardRebaseCommand(&table))
	c.PersistentFlags().StringVar(&table, "table", "", "the guard table, in a database (default: interlock_fence)")
	return c
}

// guard opens a guard and calls use, within --timeout.
func (a *app) guard(ctx context.Context, table string, use func(context.Context, backend.Guard) error) error {
	return connect(ctx, a, func(ctx context.Context, t backend.Target) (backend.Guard, func(), error) {
		if kind := t.Kind(); table != "" && kind != "postgres" && kind != "mysql" {
			return nil, nil, usage("--table is for databases; %s has none", kind)
		}
		return t.Guard(ctx, backend.GuardOptions{Prefix: a.prefix, Table: table})
	}, use)
}

func (a *app) guardShowCommand(table *string) *cobra.Command {
	return &cobra.Command{
		Use: "show RESOURCE", Short: "Show the highest token that has entered a resource", Args: oneArg("resource"), ValidArgsFunction: a.completeResource(table),
		Example: `  interlock guard show account/42
  interlock guard show account/42 --backend postgres://localhost/bank
  interlock guard show account/42 -o json`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkResource(args[0]); err != nil {
				return err
			}
			return a.guard(c.Context(), *table, func(ctx context.Context, g backend.Guard) error {
				m, err := g.Mark(ctx, args[0])
				if err != nil {
					return err
				}
				return a.print(markView{Resource: args[0], Token: m.Token, Source: m.Source, Raised: m.Raised.UTC()}, line("%s: %s\n", args[0], describeMark(m)))
			})
		},
	}
}

func (a *app) guardRebaseCommand(table *string) *cobra.Command {
	var to int64
	var r audit
	c := &cobra.Command{
		Use: "rebase RESOURCE --to TOKEN --reason TEXT", Short: "Set a mark by hand, with a reason", Args: oneArg("resource"), ValidArgsFunction: a.completeResource(table),
		Example: `  interlock guard rebase account/42 --to 0 --reason "restored from last night's backup"
  interlock guard rebase account/42 --to 890214828572692480 --reason "moved here from the old cluster" --by alice`,
		Long: `A lower mark admits holders that the guard rejected before: stop them first. The
guard stores author, time, reason and the old mark beside the mark.`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkResource(args[0]); err != nil {
				return err
			}
			if !c.Flags().Changed("to") {
				return usage("--to is required: the new mark, or 0 as if no token had entered")
			}
			if err := cmp.Or(checkRebase(interlock.Token(to), time.Now()), r.check()); err != nil {
				return err
			}
			return a.guard(c.Context(), *table, func(ctx context.Context, g backend.Guard) error {
				old, err := g.Rebase(ctx, args[0], interlock.Token(to), r.reason, r.by)
				if err != nil {
					return err
				}
				return a.print(rebased{args[0], old.Token, interlock.Token(to), r.reason, r.by},
					line("%s: mark set to %d by %s; before: %s\n", args[0], to, r.by, describeMark(old)))
			})
		},
	}
	c.Flags().Int64Var(&to, "to", 0, "the new mark, a `token`; 0 for none")
	r.flags(c.Flags())
	return c
}

// checkRebase rejects a token that no lock can have issued: such a mark would
// exclude all holders.
func checkRebase(to interlock.Token, now time.Time) error {
	if to != 0 && (!to.Valid() || to.Counter() > interlock.CounterAt(now.Add(interlock.MaxAhead))) {
		return usage("--to %d cannot be a token: copy one from guard show or locks show; 0 means none", to)
	}
	return nil
}

type markView struct {
	Resource string          `json:"resource"`
	Token    interlock.Token `json:"token,string"`
	Source   string          `json:"source,omitempty"`
	Raised   time.Time       `json:"raised,omitzero"` // by the store's clock
}

type rebased struct {
	Resource string          `json:"resource"`
	From     interlock.Token `json:"from,string"`
	To       interlock.Token `json:"to,string"`
	Reason   string          `json:"reason"`
	By       string          `json:"by"`
}

func describeMark(m driver.Mark) text {
	t := line("token %d", m.Token)
	switch {
	case m.Token == 0 && m.Source == "":
		return "no token has entered"
	case m.Token == 0: // an operator set it to none
		t = line("no token has entered since the %s", m.Source)
	case m.Source != "":
		t += line(" by %s", m.Source)
	}
	if !m.Raised.IsZero() {
		t += line(" at %s", localTime(m.Raised))
	}
	return t
}

// whoami returns the default author of a correction, without --by.
func whoami() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return name
}

type enterFlags struct {
	token  string
	set    []string
	remove []string
	strict bool
}

func (a *app) guardEnterCommand(table *string) *cobra.Command {
	f := &enterFlags{}
	c := &cobra.Command{
		Use: "enter RESOURCE [--set KEY=VALUE]…", Short: "Raise the mark to our token, and write",
		Example: `  interlock lock nightly -- sh -c 'interlock guard enter nightly && ./report.sh > out &&
    interlock guard enter nightly --set "last-report=$(cat out)"'`,
		Long: `Enter before you read, and again with what you write. If a newer holder has entered,
both fail with exit code 80. The token is that of the lock around this command.
The check and the writes are one atomic step; writes need a key-value backend.`,
		Args: oneArg("resource"), ValidArgsFunction: a.completeResource(table),
		RunE: func(c *cobra.Command, args []string) error { return a.enter(c.Context(), *table, args[0], f) },
	}
	flags := c.Flags()
	flags.StringVar(&f.token, "token", "", "the `token` to enter with (default: $INTERLOCK_TOKEN)")
	flags.StringArrayVar(&f.set, "set", nil, "write `KEY=VALUE` in the same step; may be repeated")
	flags.StringArrayVar(&f.remove, "delete", nil, "delete `KEY` in the same step; may be repeated")
	flags.BoolVar(&f.strict, "strict", false, "also reject a token that has entered before")
	return c
}

func (a *app) enter(ctx context.Context, table, resource string, f *enterFlags) error {
	if err := checkResource(resource); err != nil {
		return err
	}
	raise, err := f.raise(resource)
	if err != nil {
		return err
	}
	writes, err := f.writes()
	if err != nil {
		return err
	}
	return a.guard(ctx, table, func(ctx context.Context, g backend.Guard) error {
		if err := g.Enter(ctx, raise, writes...); err != nil {
			return refusal(err)
		}
		return a.print(entered{resource, raise.Token, len(writes)},
			line("%s: token %d entered%s\n", resource, raise.Token, written(len(writes))))
	})
}

// refusal gives the guard's refusal its own exit code: the backend works.
func refusal(err error) error {
	var stale *interlock.StaleTokenError
	if errors.As(err, &stale) {
		return fail(exitStale, "refused: %w", stale)
	}
	return err
}

func (f *enterFlags) raise(resource string) (driver.Raise, error) {
	text := f.token
	if text == "" {
		text = os.Getenv(envToken)
	}
	if text == "" {
		return driver.Raise{}, usage("there is no token: run this under interlock lock, or give --token")
	}
	token, err := interlock.ParseToken(text)
	if err != nil {
		return driver.Raise{}, usage("%q is not a token: interlock lock gives one in %s", text, envToken)
	}
	source := os.Getenv(envOwner)
	if source == "" {
		source = whoami()
	}
	return driver.Raise{Resource: resource, Token: token, Source: source, Strict: f.strict}, nil
}

func (f *enterFlags) writes() ([]driver.Write, error) {
	var writes []driver.Write
	for _, pair := range f.set {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return nil, usage("--set %q is not KEY=VALUE", pair)
		}
		writes = append(writes, driver.Write{Key: key, Value: []byte(value)})
	}
	for _, key := range f.remove {
		if key == "" {
			return nil, usage("--delete needs a key")
		}
		writes = append(writes, driver.Write{Key: key, Delete: true})
	}
	return writes, nil
}

func written(n int) string {
	switch n {
	case 0:
		return ""
	case 1:
		return ", 1 key written"
	}
	return fmt.Sprintf(", %d keys written", n)
}

type entered struct {
	Resource string          `json:"resource"`
	Token    interlock.Token `json:"token,string"`
	Written  int             `json:"written"` // number of keys
}
