package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/flow/queue"
)

// queueing is a table of queues that a command is about.
type queueing struct {
	app   *app
	table string
}

func (a *app) queueCommand() *cobra.Command {
	q := &queueing{app: a}
	c := &cobra.Command{
		Use: "queue", Short: "Show queues; replay dead letters, resume keys",
		Example: `  interlock queue ls --backend postgres://localhost/shop
  interlock queue letters orders --backend postgres://localhost/shop
  interlock queue replay orders 1042 --backend postgres://localhost/shop
  interlock queue resume orders order/42 --backend postgres://localhost/shop`,
		Args: isGroup,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.PersistentFlags().StringVar(&q.table, "table", "", "the table of messages (default: interlock_queue)")
	c.AddCommand(q.listCommand(), q.lettersCommand(), q.placesCommand("replay", "Deliver dead letters again, in their places", "replayed", queue.Table.Replay),
		q.placesCommand("discard", "Delete dead letters permanently", "discarded", queue.Table.Discard), q.resumeCommand())
	return c
}

// do runs something in one transaction, within --timeout.
func (q *queueing) do(ctx context.Context, use func(context.Context, queue.Table, driver.SQL) error) error {
	target, err := q.app.target()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, q.app.timeout)
	defer cancel()
	db, err := target.Database(ctx)
	if err != nil {
		return q.app.unreached(target, err)
	}
	defer db.Close()
	err = db.In(ctx, func(tx driver.SQL) error { return use(ctx, queue.Table{Name: q.table}, tx) })
	if errors.Is(err, queue.ErrNotFound) {
		return fail(exitFailed, "%w", err)
	}
	return q.app.unreached(target, err)
}

// queueView is the JSON form of a queue; docs/reference/cli.md promises it.
type queueView struct {
	Queue    string `json:"queue"`
	Messages int64  `json:"messages"`
	Dead     int64  `json:"dead"`
	Parked   int64  `json:"parked"`
	Leased   int64  `json:"leased"`
	Oldest   int64  `json:"oldest_micros"`
}

func (q *queueing) listCommand() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List queues, with their messages and dead letters", Args: noArgs,
		Example: `  interlock queue ls --backend postgres://localhost/shop -o json`,
		RunE: func(c *cobra.Command, _ []string) error {
			views, rows := []queueView{}, [][]string{{"QUEUE", "MESSAGES", "OLDEST", "LEASED", "PARKED", "DEAD"}}
			if err := q.do(c.Context(), func(ctx context.Context, t queue.Table, db driver.SQL) error {
				all, err := t.Status(ctx, db)
				for _, s := range all {
					views = append(views, queueView{s.Queue, s.Messages, s.Dead, s.Parked, s.Leased, s.OldestMicros})
					oldest := time.Duration(s.OldestMicros) * time.Microsecond
					rows = append(rows, []string{s.Queue, fmt.Sprint(s.Messages), oldest.Round(time.Second).String(), fmt.Sprint(s.Leased), fmt.Sprint(s.Parked), fmt.Sprint(s.Dead)})
				}
				return err
			}); err != nil {
				return err
			}
			return q.app.printRows(views, rows, "there are no queues with messages")
		},
	}
}

// queueLetterView is the JSON form of a dead letter of a queue.
type queueLetterView struct {
	Place     int64             `json:"place"`
	ID        string            `json:"id"`
	Key       string            `json:"key,omitempty"`
	Attempts  int               `json:"attempts"`
	LastError string            `json:"last_error"`
	Added     time.Time         `json:"added"`
	Died      time.Time         `json:"died"`
	Headers   map[string]string `json:"headers,omitempty"`
	Payload   []byte            `json:"payload,omitempty"` // in base64
}

func (q *queueing) lettersCommand() *cobra.Command {
	var l queue.LetterQuery
	c := &cobra.Command{
		Use: "letters QUEUE", Short: "List dead letters in insertion order", Args: oneArg("queue"),
		Example: `  interlock queue letters orders --key order/42 --backend postgres://localhost/shop`,
		RunE: func(c *cobra.Command, args []string) error {
			if l.Limit < 1 {
				return usage("--limit must be above zero, not %d", l.Limit)
			}
			views, rows := []queueLetterView{}, [][]string{{"PLACE", "ID", "KEY", "DIED", "ATTEMPTS", "WHY"}}
			if err := q.do(c.Context(), func(ctx context.Context, t queue.Table, db driver.SQL) error {
				all, err := t.Letters(ctx, db, args[0], l)
				for _, m := range all {
					views = append(views, queueLetterView{m.Place, m.ID, m.Key, m.Attempts, m.LastError, m.Added, m.Died, m.Headers, m.Payload})
					rows = append(rows, []string{fmt.Sprint(m.Place), m.ID, m.Key, m.Died.Local().Format(time.DateTime), fmt.Sprint(m.Attempts), m.LastError})
				}
				return err
			}); err != nil {
				return err
			}
			return q.app.printRows(views, rows, "there are no dead letters in "+args[0])
		},
	}
	c.Flags().StringVar(&l.Key, "key", "", "only those of this key")
	c.Flags().IntVar(&l.Limit, "limit", 100, "show at most this many")
	c.Flags().Int64Var(&l.After, "after", 0, "only those after this `place`")
	return c
}

// placesCommand replays or discards.
func (q *queueing) placesCommand(verb, short, done string, do func(queue.Table, context.Context, driver.SQL, string, ...int64) error) *cobra.Command {
	return &cobra.Command{
		Use: verb + " QUEUE PLACE…", Short: short,
		Example: "  interlock queue " + verb + " orders 1042 --backend postgres://localhost/shop",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usage("%s wants a queue and at least one place", c.CommandPath())
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			var places []int64
			for _, a := range args[1:] {
				place, err := strconv.ParseInt(a, 10, 64)
				if err != nil {
					return usage("%q is not a place: see \"interlock queue letters\"", a)
				}
				places = append(places, place)
			}
			if err := q.do(c.Context(), func(ctx context.Context, t queue.Table, db driver.SQL) error {
				return do(t, ctx, db, args[0], places...)
			}); err != nil {
				return err
			}
			return q.app.print(struct {
				Queue  string  `json:"queue"`
				Places []int64 `json:"places"`
			}{args[0], places}, line("%s: %d of %s\n", done, len(places), args[0]))
		},
	}
}

func (q *queueing) resumeCommand() *cobra.Command {
	return &cobra.Command{
		Use: "resume QUEUE KEY", Short: "Deliver the messages of a parked key again",
		Example: `  interlock queue resume orders order/42 --backend postgres://localhost/shop`,
		Args:    exactly(2, "a queue and a key"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := q.do(c.Context(), func(ctx context.Context, t queue.Table, db driver.SQL) error {
				return t.Resume(ctx, db, args[0], args[1])
			}); err != nil {
				return err
			}
			return q.app.print(struct {
				Queue string `json:"queue"`
				Key   string `json:"key"`
			}{args[0], args[1]}, line("resumed: %s\n", args[1]))
		},
	}
}
