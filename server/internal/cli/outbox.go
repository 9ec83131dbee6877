package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/server/internal/backend"
)

// outboxCommands selects the outbox of a command.
type outboxCommands struct {
	app   *app
	table string
	audit
}

func (m *outboxCommands) addTable(c *cobra.Command) {
	c.PersistentFlags().StringVar(&m.table, "table", "", "the outbox table (default: interlock_outbox)")
}

// do calls use in one transaction on the outbox, within --timeout.
func (m *outboxCommands) do(ctx context.Context, use func(context.Context, outbox.Table, driver.SQL) error) error {
	return m.app.inTx(ctx, func(ctx context.Context, tx driver.SQL) error {
		return outboxError(use(ctx, outbox.Table{Name: m.table}, tx))
	})
}

// outboxError gives refusals of an outbox exit code 1: the backend works.
func outboxError(err error) error {
	var missing *outbox.NotFoundError
	var order *outbox.OrderError
	var twice *outbox.DuplicateError
	if errors.As(err, &missing) || errors.As(err, &order) || errors.As(err, &twice) {
		return fail(exitFailed, "%w", err)
	}
	return err
}

func (a *app) outboxCommand() *cobra.Command {
	m := &outboxCommands{app: a}
	c := group(&cobra.Command{
		Use: "outbox", Short: "Show and repair what an outbox has not delivered",
		Example: `  interlock outbox status --backend postgres://localhost/shop
  interlock outbox retry 0f8e… --backend postgres://localhost/shop
  interlock outbox replay --topic orders --reason "the receiver is fixed" --backend postgres://localhost/shop`,
	}, m.statusCommand(), m.replayAllCommand(), m.retryCommand(), m.deadLetterCommand(), m.slicesCommand())
	m.addTable(c)
	return c
}

func (m *outboxCommands) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show what waits, for how long and why", Args: noArgs,
		Example: `  interlock outbox status --backend postgres://localhost/shop
  interlock outbox status --backend postgres://localhost/shop -o json`,
		RunE: func(c *cobra.Command, _ []string) error {
			var s outbox.Status
			if err := m.do(c.Context(), func(ctx context.Context, t outbox.Table, db driver.SQL) (err error) {
				s, err = t.Status(ctx, db)
				return err
			}); err != nil {
				return err
			}
			return m.app.print(viewStatus(s), describeStatus(s))
		},
	}
}

func (m *outboxCommands) replayAllCommand() *cobra.Command {
	var q outbox.DeadLetterQuery
	c := m.recorded(&cobra.Command{
		Use: "replay --reason TEXT", Short: "Replay all dead letters, or those of a topic or key", Args: noArgs,
		Example: `  interlock outbox replay --topic orders --reason "the receiver is fixed" --backend postgres://localhost/shop
  interlock outbox replay --topic orders --key order/42 --reason "order 42 exists now"`,
		Long: `They are delivered with their ids, in the order in which they were added, before the
messages that follow them. Messages delivered in the meantime came before them. One
call puts back at most a thousand, and prints whether there are more.`,
		RunE: func(c *cobra.Command, _ []string) error {
			ids, more, err := m.replayAll(c.Context(), q)
			for errors.As(err, new(*outbox.NotFoundError)) { // somebody else has replayed or discarded one of them since the list
				ids, more, err = m.replayAll(c.Context(), q)
			}
			if err != nil {
				return err
			}
			if more {
				m.app.say("there are more than %d: type this again for the rest", len(ids))
			}
			return m.done("replayed", ids)
		},
	})
	c.Flags().StringVar(&q.Topic, "topic", "", "only those of this topic")
	c.Flags().StringVar(&q.Key, "key", "", "only those of this key")
	return c
}

// replayAll replays at most a thousand dead letters, up to one whose id it has replayed: it can follow when
// that one is delivered. more reports that there are others.
func (m *outboxCommands) replayAll(ctx context.Context, q outbox.DeadLetterQuery) (ids []string, more bool, err error) {
	const most = 1000
	q.Limit = most + 1
	err = m.do(ctx, func(ctx context.Context, t outbox.Table, db driver.SQL) error {
		letters, err := t.DeadLetters(ctx, db, q)
		if err != nil {
			return err
		}
		for _, l := range letters {
			if more = len(ids) == most || slices.Contains(ids, l.ID); more {
				break
			}
			ids = append(ids, l.ID)
		}
		return t.Replay(ctx, db, ids, m.reason, m.by)
	})
	return ids, more, err
}

func (m *outboxCommands) retryCommand() *cobra.Command {
	return &cobra.Command{
		Use: "retry ID", Short: "Retry at once the message that blocks its key", Args: oneArg("message id"), ValidArgsFunction: m.completeWaiting(),
		Example: `  interlock outbox retry 0f8e… --backend postgres://localhost/shop`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := m.do(c.Context(), func(ctx context.Context, t outbox.Table, db driver.SQL) error {
				return t.Retry(ctx, db, args[0])
			}); err != nil {
				return err
			}
			return m.done("tried again", args)
		},
	}
}

func (m *outboxCommands) deadLetterCommand() *cobra.Command {
	return m.recorded(&cobra.Command{
		Use: "dead-letter ID --reason TEXT", Short: "Make a dead letter of a message that blocks its key", Args: oneArg("message id"), ValidArgsFunction: m.completeWaiting(),
		Example: `  interlock outbox dead-letter 0f8e… --reason "the receiver will never take it" --backend postgres://localhost/shop`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := m.do(c.Context(), func(ctx context.Context, t outbox.Table, db driver.SQL) error {
				return t.MakeDeadLetter(ctx, db, args[0], m.reason, m.by)
			}); err != nil {
				return err
			}
			return m.done("dead letter", args)
		},
	})
}

// done prints the change of messages.
func (m *outboxCommands) done(what string, ids []string) error {
	t := line("%s: none\n", what)
	if len(ids) > 0 {
		t = ""
	}
	for _, id := range ids {
		t += line("%s: %s\n", what, id)
	}
	return m.app.print(struct {
		Done     string   `json:"done"`
		Messages []string `json:"messages"`
	}{what, append([]string{}, ids...)}, t)
}

// statusView is the JSON form of an outbox's status; see docs/reference/cli.md.
type statusView struct {
	Oldest  float64       `json:"oldest_seconds"`
	Dead    int64         `json:"dead_letters"`
	Keys    int64         `json:"waiting_keys"`
	Slices  []sliceView   `json:"slices"`
	Waiting []waitingView `json:"waiting"`
}

type sliceView struct {
	Slice  int             `json:"slice"`
	Ready  int64           `json:"ready"`
	Parked int64           `json:"parked"`
	Oldest float64         `json:"oldest_seconds"`
	Owner  string          `json:"owner,omitempty"`
	Token  interlock.Token `json:"token,string"`
	Since  *time.Time      `json:"since,omitempty"`
}

type waitingView struct {
	Topic     string     `json:"topic"`
	Key       string     `json:"key,omitempty"`
	ID        string     `json:"id"`
	Why       string     `json:"why"`
	Attempts  int        `json:"attempts"`
	LastError string     `json:"last_error,omitempty"`
	Since     *time.Time `json:"since,omitempty"`
	Until     *time.Time `json:"until,omitempty"`
	Messages  int64      `json:"messages"`
}

func viewStatus(s outbox.Status) statusView {
	v := statusView{Oldest: s.Oldest.Seconds(), Dead: s.Dead, Keys: s.Keys, Slices: []sliceView{}, Waiting: []waitingView{}}
	for _, l := range s.Slices {
		v.Slices = append(v.Slices, sliceView{l.Slice, l.Ready, l.Parked, l.Oldest.Seconds(), l.Owner, l.Token, timeOrNil(l.Since)})
	}
	for _, w := range s.Waiting {
		v.Waiting = append(v.Waiting, waitingView{w.Topic, w.Key, w.ID, w.Why, w.Attempts, w.LastError, timeOrNil(w.Since), timeOrNil(w.Until), w.Messages})
	}
	return v
}

// timeOrNil returns nil for the zero time, which JSON would show as a year.
func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

func describeStatus(s outbox.Status) text {
	t := line("oldest undelivered: %v; keys that wait: %d; dead letters: %d\n", s.Oldest.Round(time.Millisecond), s.Keys, s.Dead)
	rows := [][]string{{"SLICE", "READY", "PARKED", "OLDEST", "LAST SERVED BY"}}
	for _, l := range s.Slices {
		owner := "none yet"
		if l.Token != 0 {
			owner = l.Owner
		}
		rows = append(rows, []string{fmt.Sprint(l.Slice), fmt.Sprint(l.Ready), fmt.Sprint(l.Parked), l.Oldest.Round(time.Millisecond).String(), owner})
	}
	t += table(rows)
	if len(s.Waiting) == 0 {
		return t
	}
	rows = [][]string{{"WAITS FOR", "TOPIC", "KEY", "WHY", "ATTEMPTS", "MESSAGES", "LAST ERROR"}}
	for _, w := range s.Waiting {
		rows = append(rows, []string{w.ID, w.Topic, w.Key, w.Why, fmt.Sprint(w.Attempts), fmt.Sprint(w.Messages), w.LastError})
	}
	return t + table(rows)
}

func (m *outboxCommands) slicesCommand() *cobra.Command {
	var set int
	c := &cobra.Command{
		Use: "slices", Short: "Show or change the number of slices", Args: noArgs,
		Example: `  interlock outbox slices --backend postgres://localhost/shop
  interlock outbox slices --set 16 --reason "more relays" --backend postgres://localhost/shop`,
		Long: `Shows the number of slices over which keys are spread. At most that many relays share
the work.

--set changes it while services run. It waits for transactions that have added
messages, then moves undelivered messages; relays wait in the meantime. Relays of all
slices (RunAll) resume by themselves; those of a group of claim/partition need its
Resize to the new number. Services that name the old number are refused. If the command fails or
is interrupted, relays may wait until it is repeated. On PostgreSQL it needs the rights
of the tables' owner.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if !c.Flags().Changed("set") {
				return m.showSlices(c.Context(), 0, func(l outbox.Layout) text { return line("%d slices\n", l.Slices) })
			}
			if set < 1 || set > outbox.MaxSlices {
				return usage("--set must be 1 to %d, not %d", outbox.MaxSlices, set)
			}
			if err := m.check(); err != nil {
				return err
			}
			moved, err := m.setSlices(c.Context(), set)
			if err != nil {
				return err
			}
			return m.showSlices(c.Context(), moved, func(l outbox.Layout) text { return line("%d slices, %d rows moved\n", l.Slices, moved) })
		},
	}
	c.Flags().IntVar(&set, "set", 0, "change it to `N`, 1 to 4096")
	m.audit.flags(c.Flags())
	return c
}

// slicesView is the JSON form of an outbox's number of slices; see docs/reference/cli.md.
type slicesView struct {
	Slices   int   `json:"slices"`
	Changing bool  `json:"changing"`
	Moved    int64 `json:"moved"`
}

func (m *outboxCommands) showSlices(ctx context.Context, moved int64, show func(outbox.Layout) text) error {
	var l outbox.Layout
	if err := m.do(ctx, func(ctx context.Context, t outbox.Table, db driver.SQL) (err error) {
		l, err = t.Layout(ctx, db)
		return err
	}); err != nil {
		return err
	}
	if l.Changing {
		m.app.say("a change to %d slices has begun and relays wait: if no other command runs it, repeat it with --set %d", l.Slices, l.Slices)
	}
	return m.app.print(slicesView{l.Slices, l.Changing, moved}, show(l))
}

// setSlices changes the number and regularly reports the moved rows. --timeout bounds only the
// connection.
func (m *outboxCommands) setSlices(ctx context.Context, n int) (moved int64, err error) {
	said := time.Now()
	change := outbox.SliceChange{Slices: n, Reason: m.reason, By: m.by, Progress: func(moved int64) {
		if time.Since(said) > progress {
			said = time.Now()
			m.app.say("%d rows moved so far", moved)
		}
	}}
	err = m.app.onDatabase(ctx, func(_ context.Context, db *backend.Database) (err error) {
		moved, err = db.SetSlices(ctx, outbox.Table{Name: m.table}, change)
		return err
	})
	return moved, err
}
