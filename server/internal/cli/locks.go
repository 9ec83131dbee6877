package cli

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/deadlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/server/internal/backend"
)

func (a *app) locksCommand() *cobra.Command {
	return group(&cobra.Command{
		Use: "locks", Short: "Show locks, hold one, or release one by force",
		Example: `  interlock locks ls                 what is held or awaited
  interlock locks show nightly       who holds it, who waits, in order
  interlock locks watch              every change, as it happens
  interlock locks hold nightly       hold it until the standard input ends
  interlock locks release nightly --reason "host is gone"
  interlock locks history            what was taken away, by whom and why
  interlock locks graph              who waits for what while holding something`,
	}, a.lsCommand(), a.showCommand(), a.watchCommand(), a.holdCommand(), a.releaseCommand(), a.historyCommand(), a.graphCommand())
}

// inspection is a backend opened for inspection.
type inspection struct {
	*backend.View
	app    *app
	target backend.Target
}

// view connects within --timeout.
func (a *app) view(ctx context.Context) (*inspection, error) {
	target, err := a.target()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	v, err := target.View(ctx, backend.Options{Prefix: a.prefix})
	if err != nil {
		return nil, a.backendError(target, err)
	}
	return &inspection{v, a, target}, nil
}

func (v *inspection) close() {
	ctx, cancel := context.WithTimeout(context.Background(), disconnect)
	defer cancel()
	if err := v.Close(ctx); err != nil {
		v.app.say("warning: disconnecting from %v: %v", v.target, err)
	}
}

// inspect opens a backend for inspection, within --timeout.
func (a *app) inspect(ctx context.Context, look func(context.Context, *inspection) error) error {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	v, err := a.view(ctx)
	if err != nil {
		return err
	}
	err = look(ctx, v)
	v.close()
	if err != nil {
		return a.backendError(v.target, err)
	}
	return nil
}

// listFlags are the flags of locks ls.
type listFlags struct {
	limit    int
	foreign  bool
	all      bool
	shedlock string
}

func (a *app) lsCommand() *cobra.Command {
	var f listFlags
	c := listed(&cobra.Command{
		Use: "ls [PREFIX]", Short: "List the locks that are held or awaited",
		Example: `  interlock locks ls
  interlock locks ls account/                    those whose names begin so
  interlock locks ls --foreign                   those that other clients hold
  interlock locks ls -o json --limit 10`,
		Long: `A holder that is another kind of client is marked (foreign). In a database it also
lists the locks of ShedLock, if its table has the usual name. Their times are correct
if ShedLock uses the database's clock.`,
		ValidArgsFunction: a.completeFirst(a.lockNames),
		Args:              atMostOne("prefix"),
		RunE: func(c *cobra.Command, args []string) error {
			return a.inspect(c.Context(), func(ctx context.Context, v *inspection) error {
				locks, more, err := v.list(ctx, prefixOf(args), f)
				if err != nil {
					return err
				}
				return a.printLocks(locks, more)
			})
		},
	}, &f.limit, 1000)
	c.Flags().BoolVar(&f.foreign, "foreign", false, "only those whose holder is another kind of client; on Redis with a PREFIX")
	c.Flags().BoolVar(&f.all, "all", false, allUsage)
	c.Flags().StringVar(&f.shedlock, "shedlock", "", "the `table` of ShedLock in a database (default: shedlock, if there is one)")
	return c
}

// internalPrefixes begin the names of locks of Interlock itself: those of the relay of an outbox and of
// coordinators, and in braces those of coordinators' shards.
var internalPrefixes = []string{"interlock.", "{interlock."}

const allUsage = "also the internal locks of Interlock, whose names begin with interlock. or {interlock."

func internalName(name string) bool {
	return slices.ContainsFunc(internalPrefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// prefixOf returns the prefix argument, or "".
func prefixOf(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

// list returns the backend's locks, including ShedLock's there.
func (v *inspection) list(ctx context.Context, prefix string, f listFlags) ([]driver.LockState, bool, error) {
	if f.shedlock != "" && !v.target.HasShedLock() {
		return nil, false, usage("--shedlock is for databases; %s has no tables", v.target.Kind())
	}
	if f.foreign && prefix+v.app.prefix+v.target.Setting("prefix") == "" && v.target.Kind() == "redis" {
		return nil, false, usage("on Redis --foreign scans the keys with a prefix: interlock locks ls PREFIX --foreign")
	}
	f.all = f.all || internalName(prefix)
	limit := f.limit + 1
	if f.foreign {
		limit = math.MaxInt32
	}
	var locks []driver.LockState
	for more := true; more && len(locks) <= f.limit; limit *= 2 { // those that are not shown count
		var err error
		if locks, more, err = v.lister(f)(ctx, prefix, limit); err != nil {
			return nil, false, err
		}
		locks = slices.DeleteFunc(locks, func(l driver.LockState) bool {
			return f.foreign && (l.Holder == nil || !l.Holder.Foreign) || !f.all && internalName(l.Name)
		})
	}
	if v.target.HasShedLock() {
		shed, err := v.shedLock(ctx, prefix, f)
		if err != nil {
			return nil, false, err
		}
		locks = append(locks, shed...)
		slices.SortStableFunc(locks, func(a, b driver.LockState) int { return strings.Compare(a.Name, b.Name) })
	}
	return locks[:min(len(locks), f.limit)], len(locks) > f.limit, nil
}

// foreignLister is a backend that finds locks of other clients at an extra cost.
type foreignLister interface {
	ForeignLocks(ctx context.Context, prefix string, limit int) ([]driver.LockState, bool, error)
}

func (v *inspection) lister(f listFlags) func(context.Context, string, int) ([]driver.LockState, bool, error) {
	if l, ok := v.View.View.(foreignLister); ok && f.foreign {
		return l.ForeignLocks
	}
	return v.Locks
}

// shedLock reads ShedLock's table. The default table may be missing, or another
// program's.
func (v *inspection) shedLock(ctx context.Context, prefix string, f listFlags) ([]driver.LockState, error) {
	locks, ok, err := v.target.ShedLock(ctx, cmp.Or(f.shedlock, backend.ShedLockTable), prefix, f.limit+1)
	switch {
	case err != nil && f.shedlock == "" && ctx.Err() == nil:
		v.app.say("warning: there is a table %s that cannot be read, if it is ShedLock's its locks are not shown: %v",
			backend.ShedLockTable, err)
		return nil, nil
	case err == nil && !ok && f.shedlock != "":
		return nil, fail(exitConfig, "there is no table %s in this database", f.shedlock)
	}
	return locks, err
}

func (a *app) printLocks(locks []driver.LockState, more bool) error {
	if more {
		a.say("there are more; give a prefix or a higher --limit")
	}
	now := time.Now()
	views := make([]lockView, 0, len(locks))
	rows := [][]string{{"NAME", "HOLDER", "TOKEN", "SINCE", "EXPIRES", "WAITERS"}}
	for _, l := range locks {
		views = append(views, view(l, now))
		row := append([]string{l.Name}, "-", "-", "-", "-")
		if l.Holder != nil {
			copy(row[1:], contenderRow(*l.Holder))
		}
		rows = append(rows, append(row, strconv.Itoa(len(l.Waiters))))
	}
	return a.printRows(struct {
		Locks []lockView `json:"locks"`
		More  bool       `json:"more"`
	}{views, more}, rows, "nothing is held or awaited")
}

func (a *app) showCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show NAME", Short: "Show who holds a lock and who waits, in order", Args: oneArg("name"),
		Example: `  interlock locks show nightly
  interlock locks show nightly -o json           holder is null if it is free`,
		ValidArgsFunction: a.completeFirst(a.lockNames),
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkName(args[0]); err != nil {
				return err
			}
			return a.inspect(c.Context(), func(ctx context.Context, v *inspection) error {
				state, err := v.Lock(ctx, args[0])
				if err != nil {
					return err
				}
				return a.print(view(state, time.Now()), showText(state))
			})
		},
	}
}

func showText(l driver.LockState) text {
	if l.Holder == nil && len(l.Waiters) == 0 {
		return line("%s is free\n", l.Name)
	}
	rows := [][]string{{"", "OWNER", "TOKEN", "SINCE", "EXPIRES"}}
	if l.Holder != nil {
		rows = append(rows, append([]string{"holder"}, contenderRow(*l.Holder)...))
	}
	for i, w := range l.Waiters {
		rows = append(rows, append([]string{fmt.Sprintf("waiter %d", i+1)}, contenderRow(w)...))
	}
	return table(rows)
}

// contenderRow returns owner, token, since and remaining time as text.
func contenderRow(c driver.Contender) []string {
	row := []string{c.Owner + kindOf(c), tokenText(c.Token), localTime(c.Since), "-"}
	if c.Expires > 0 {
		row[3] = "in " + c.Expires.Round(100*time.Millisecond).String()
	}
	return row
}

// tokenText returns a token; "-" for none.
func tokenText(t interlock.Token) string {
	if t == 0 {
		return "-"
	}
	return t.String()
}

// lockView and contenderView are the JSON forms; see docs/reference/cli.md.
type lockView struct {
	Name    string          `json:"name"`
	Holder  *contenderView  `json:"holder"` // null if it is free
	Waiters []contenderView `json:"waiters"`
}

type contenderView struct {
	Owner     string          `json:"owner"`
	Token     interlock.Token `json:"token,string,omitempty"`
	Since     time.Time       `json:"since,omitzero"`       // by the backend's clock
	Deadline  time.Time       `json:"deadline,omitzero"`    // by our clock: the expiry without renewal
	ExpiresMS int64           `json:"expires_ms,omitempty"` // the same, from now
	Foreign   bool            `json:"foreign,omitempty"`    // taken by another client
}

func view(l driver.LockState, now time.Time) lockView {
	v := lockView{Name: l.Name, Waiters: []contenderView{}}
	if l.Holder != nil {
		holder := viewContender(*l.Holder, now)
		v.Holder = &holder
	}
	for _, w := range l.Waiters {
		v.Waiters = append(v.Waiters, viewContender(w, now))
	}
	return v
}

func viewContender(c driver.Contender, now time.Time) contenderView {
	v := contenderView{Owner: c.Owner, Token: c.Token, Since: c.Since.UTC(), Foreign: c.Foreign, ExpiresMS: c.Expires.Milliseconds()}
	if c.Expires > 0 {
		v.Deadline = now.Add(c.Expires).UTC()
	}
	return v
}

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
