package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// forcedRelease is one run of locks release.
type forcedRelease struct {
	app *app
	audit
	name, owner string
	yes         bool
}

func (a *app) releaseCommand() *cobra.Command {
	f := &forcedRelease{app: a}
	c := &cobra.Command{
		Use: "release NAME --reason TEXT", Short: "Take a lock away from its holder", Args: oneArg("name"),
		Example: `  interlock locks release nightly --reason "the host is gone, ticket 42"
  interlock locks release nightly --reason "host is gone" --owner host:31540/HEXE --yes     from a script`,
		Long: `On a terminal it shows the holder, since when and with which token, and asks.
Elsewhere it requires --yes. It records the author and the reason. The next holder
has a higher token.

It cannot stop the holder's work: make sure that the holder no longer runs. Only a
guard rejects its later writes, after the next holder has entered.

Exit codes: 0 released, 1 nobody holds it or the answer was no, 75 the holder is not
the one shown or named.`,
		ValidArgsFunction: a.completeFirst(a.lockNames),
		RunE: func(c *cobra.Command, args []string) error {
			f.name = args[0]
			if err := f.check(); err != nil {
				return err
			}
			return f.run(c.Context())
		},
	}
	f.audit.flags(c.Flags())
	c.Flags().StringVar(&f.owner, "owner", "", "release only if this owner holds it, as locks show prints it")
	c.Flags().BoolVar(&f.yes, "yes", false, "do not ask")
	return c
}

func (f *forcedRelease) check() error {
	switch {
	case len(f.reason) > driver.MaxName:
		return usage("--reason has %d bytes, at most %d are kept", len(f.reason), driver.MaxName)
	case len(f.by) > driver.MaxName:
		return usage("--by has %d bytes, at most %d are kept", len(f.by), driver.MaxName)
	case !f.yes && !f.canAsk():
		return usage("there is no terminal to ask on: --yes releases without asking, best with --owner")
	}
	return cmp.Or(checkName(f.name), f.audit.check())
}

// canAsk reports whether the standard input is a terminal.
func (f *forcedRelease) canAsk() bool { return term.IsTerminal(int(f.app.in.Fd())) }

func (f *forcedRelease) run(ctx context.Context) error {
	v, err := f.app.view(ctx)
	if err != nil {
		return err
	}
	defer v.close()
	holder, err := f.holder(ctx, v)
	if err == nil && !f.yes {
		holder, err = f.confirm(ctx, v, holder)
	}
	if err != nil {
		return f.app.backendError(v.target, err)
	}
	return f.take(ctx, v, holder)
}

// holder returns the current holder, if it is the named one.
func (f *forcedRelease) holder(ctx context.Context, v *inspection) (driver.Contender, error) {
	ctx, cancel := context.WithTimeout(ctx, f.app.timeout)
	defer cancel()
	state, err := v.Lock(ctx, f.name)
	switch {
	case err != nil:
		return driver.Contender{}, err
	case state.Holder == nil:
		return driver.Contender{}, fail(exitFailed, "%s is not held", f.name)
	case f.owner != "" && state.Holder.Owner != f.owner:
		return driver.Contender{}, fail(exitNotAcquired, "not released: %s is held by %s", f.name, describe(*state.Holder))
	}
	return *state.Holder, nil
}

// confirm asks on the terminal, and then checks that the holder is still the same: a foreign
// holder may use its name again.
func (f *forcedRelease) confirm(ctx context.Context, v *inspection, shown driver.Contender) (driver.Contender, error) {
	f.app.say("%s is held by %s%s", f.name, describe(shown), kindOf(shown))
	f.warn(v, shown)
	if !f.ask() {
		return shown, fail(exitFailed, "not released")
	}
	now, err := f.holder(ctx, v)
	if err == nil && (now.Owner != shown.Owner || now.Token != shown.Token || !now.Since.Equal(shown.Since)) {
		err = fail(exitNotAcquired, "not released: by now %s is held by %s", f.name, describe(now))
	}
	return now, err
}

func kindOf(c driver.Contender) string {
	if c.Foreign {
		return " (foreign)"
	}
	return ""
}

// warn prints the limits and side effects of a forced release.
func (f *forcedRelease) warn(v *inspection, holder driver.Contender) {
	f.app.say("this does not stop the holder's work; only a guard rejects its later writes")
	if holder.Foreign {
		f.app.say("the holder is another kind of client, which may not notice that its lock is gone")
	}
	if costs := v.target.BreakingCosts(); costs != "" {
		f.app.say("%s", costs)
	}
}

func (f *forcedRelease) ask() bool {
	f.app.ask("%s: release it? [y/N] ", f.app.program)
	answer, _ := bufio.NewReader(f.app.in).ReadString('\n') // no answer is no
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "y" || answer == "yes"
}

func (f *forcedRelease) take(ctx context.Context, v *inspection, holder driver.Contender) error {
	ctx, cancel := context.WithTimeout(ctx, f.app.timeout)
	defer cancel()
	record, ok, err := v.Break(ctx, driver.Break{Name: f.name, Owner: holder.Owner, Reason: f.reason, By: f.by})
	var own *interlock.Error
	switch {
	case err != nil && errors.As(err, &own) && own.Kind == interlock.Uncertain:
		return f.app.backendError(v.target, fail(exitUnreachable,
			"it is not known whether %s was released: look with locks show, and repeat it if need be: %w", f.name, err))
	case err != nil:
		return f.app.backendError(v.target, err)
	case !ok:
		return fail(exitNotAcquired, "not released: %s is no longer held by %s", f.name, holder.Owner)
	}
	if f.yes { // otherwise it was already printed
		f.warn(v, holder)
	}
	return f.app.print(viewBroken(record), line("%s: taken from %s by %s: %s\n",
		record.Name, describe(driver.Contender{Owner: record.Owner, Token: record.Token}), record.By, record.Reason))
}

func (a *app) historyCommand() *cobra.Command {
	var limit int
	return listed(&cobra.Command{
		Use: "history [NAME]", Short: "Show forced releases, newest first",
		Example: `  interlock locks history
  interlock locks history nightly
  interlock locks history -o json --limit 10`,
		Long: `Backends record forced releases only: not former holders that released or lost a
lock, and not locks that an operator deleted with other tools.`,
		ValidArgsFunction: a.completeFirst(a.lockNames),
		Args:              atMostOne("name"),
		RunE: func(c *cobra.Command, args []string) error {
			name := prefixOf(args)
			if len(args) == 1 {
				if err := checkName(name); err != nil {
					return err
				}
			}
			return a.inspect(c.Context(), func(ctx context.Context, v *inspection) error {
				records, err := v.Breaks(ctx, name, limit)
				if err != nil {
					return err
				}
				a.hintAtMore(len(records), limit, "")
				return v.printHistory(name, records)
			})
		},
	}, &limit, 100)
}

func (v *inspection) printHistory(name string, records []driver.BreakRecord) error {
	v.app.say("only forced releases are remembered, no grants: %s", v.target.Forgetting())
	views := make([]brokenView, 0, len(records))
	rows := [][]string{{"AT", "NAME", "TAKEN FROM", "TOKEN", "BY", "REASON"}}
	for _, r := range records {
		views = append(views, viewBroken(r))
		rows = append(rows, []string{localTime(r.At), r.Name, r.Owner, tokenText(r.Token), r.By, r.Reason})
	}
	return v.app.printRows(struct {
		Releases []brokenView `json:"releases"`
	}{views}, rows, "no forced releases"+ofName(name))
}

func ofName(name string) string {
	if name == "" {
		return ""
	}
	return " of " + name
}

// brokenView is the JSON form of a forced release; docs/reference/cli.md promises it.
type brokenView struct {
	Name   string          `json:"name"`
	Owner  string          `json:"owner"` // the former holder
	Token  interlock.Token `json:"token,string,omitempty"`
	Reason string          `json:"reason"`
	By     string          `json:"by"`
	At     time.Time       `json:"at"`
}

func viewBroken(r driver.BreakRecord) brokenView {
	return brokenView{Name: r.Name, Owner: r.Owner, Token: r.Token, Reason: r.Reason, By: r.By, At: r.At.UTC()}
}
