package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/server/internal/backend"
)

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

// refusal gives the guard's own answer a code of its own: the backend is fine.
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
	Written  int             `json:"written"` // how many keys
}
