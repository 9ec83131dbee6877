package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/server/internal/backend"
)

// queueCommands selects the queues of a command.
type queueCommands struct {
	app   *app
	table string
	audit
}

func (a *app) queueCommand() *cobra.Command {
	q := &queueCommands{app: a}
	c := group(&cobra.Command{
		Use: "queue", Short: "Show queues; repair dead letters, resume keys",
		Example: `  interlock queue ls --backend postgres://localhost/shop
  interlock queue stuck orders --backend redis://localhost
  interlock queue letters orders --backend postgres://localhost/shop
  interlock queue edit orders 1042 --payload - --reason "the customer was misspelled" < fixed.json
  interlock queue replay orders 1042 --reason "the customer exists" --backend postgres://localhost/shop
  interlock queue resume orders order/42 --reason "the warehouse is open" --backend postgres://localhost/shop`,
	}, q.listCommand(), q.stuckCommand(), q.lettersCommand("letters"), q.letterCommand(), q.editCommand(),
		q.placesCommand("replay", "Deliver dead letters again, in their places", "replayed", backend.Queues.Replay),
		q.placesCommand("discard", "Delete dead letters permanently", "discarded", backend.Queues.Discard), q.resumeCommand())
	q.addTable(c.PersistentFlags())
	return c
}

func (q *queueCommands) addTable(f *pflag.FlagSet) {
	f.StringVar(&q.table, "table", "", "the table of messages in a database (default: interlock_queue)")
}

// deadQueueCommand is in the group dlq, which lists all dead letters.
func (a *app) deadQueueCommand() *cobra.Command {
	q := &queueCommands{app: a}
	c := q.lettersCommand("queue")
	c.Example = `  interlock dlq queue orders --key order/42
  interlock queue replay orders 1042 --reason "the customer exists"    or show, edit, discard`
	q.addTable(c.Flags()) // instead of the group's, which is the outbox
	return c
}

// do calls use on the queues of the backend, within --timeout.
func (q *queueCommands) do(ctx context.Context, use func(context.Context, backend.Queues) error) error {
	if kind, _, _ := strings.Cut(q.app.url(), "://"); kind == "kafka" || kind == "nats" {
		return usage("no command shows queues of %s: docs/how-to/%s.md explains how to operate them; this one needs a redis://, postgres:// or mysql:// URL", kind, kind)
	}
	return connect(ctx, q.app, func(ctx context.Context, t backend.Target) (backend.Queues, func(), error) {
		return t.Queues(ctx, queue.Table{Name: q.table})
	}, func(ctx context.Context, queues backend.Queues) error {
		err := use(ctx, queues)
		if errors.Is(err, queue.ErrNotFound) || errors.Is(err, redis.ErrNotFound) {
			return fail(exitFailed, "%w; nothing was changed, see interlock queue letters or stuck", err)
		}
		return err
	})
}

// author returns the author of a change and the reason.
func (q *queueCommands) author() queue.By { return queue.By{Actor: q.by, Reason: q.reason} }

// queueView is the JSON form of a queue; see docs/reference/cli.md.
type queueView struct {
	Queue    string `json:"queue"`
	Messages int64  `json:"messages"`
	Dead     int64  `json:"dead"`
	Parked   int64  `json:"parked"`
	Leased   int64  `json:"leased"`
	Oldest   int64  `json:"oldest_micros"`
}

func (q *queueCommands) listCommand() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List queues, with their messages and dead letters", Args: noArgs,
		Example: `  interlock queue ls --backend postgres://localhost/shop -o json`,
		RunE: func(c *cobra.Command, _ []string) error {
			views, rows := []queueView{}, [][]string{{"QUEUE", "MESSAGES", "OLDEST", "LEASED", "PARKED", "DEAD"}}
			if err := q.do(c.Context(), func(ctx context.Context, t backend.Queues) error {
				all, err := t.Status(ctx)
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

func viewQueueLetter(m queue.DeadLetter) queueLetterView {
	return queueLetterView{m.Place, m.ID, m.Key, m.Attempts, m.LastError, m.Added, m.Died, m.Headers, m.Payload}
}

func (q *queueCommands) lettersCommand(verb string) *cobra.Command {
	var l queue.DeadLetterQuery
	c := listed(&cobra.Command{
		Use: verb + " QUEUE", Short: "List dead letters of a queue in insertion order", Args: oneArg("queue"),
		Example: `  interlock queue letters orders --key order/42 --backend postgres://localhost/shop`,
		RunE: func(c *cobra.Command, args []string) error {
			views, rows := []queueLetterView{}, [][]string{{"PLACE", "ID", "KEY", "DIED", "ATTEMPTS", "WHY"}}
			if err := q.do(c.Context(), func(ctx context.Context, t backend.Queues) error {
				all, err := t.DeadLetters(ctx, args[0], l)
				for _, m := range all {
					views = append(views, viewQueueLetter(m))
					rows = append(rows, []string{fmt.Sprint(m.Place), m.ID, m.Key, m.Died.Local().Format(time.DateTime), fmt.Sprint(m.Attempts), m.LastError})
				}
				return err
			}); err != nil {
				return err
			}
			if len(views) > 0 {
				q.app.hintAtMore(len(views), l.Limit, fmt.Sprint(views[len(views)-1].Place))
			}
			return q.app.printRows(views, rows, "there are no dead letters in "+args[0])
		},
	}, &l.Limit, 100)
	c.Flags().StringVar(&l.Key, "key", "", "only those of this key")
	c.Flags().Int64Var(&l.After, "after", 0, "only those after this `place`")
	return c
}

// stuckView is the JSON form of a stuck key.
type stuckView struct {
	Key       string `json:"key,omitempty"`
	Place     int64  `json:"place"`
	ID        string `json:"id"`
	Attempts  int    `json:"attempts"`
	LastError string `json:"last_error"`
	Parked    bool   `json:"parked"`
	Wait      int64  `json:"wait_micros,omitempty"`
}

func (q *queueCommands) stuckCommand() *cobra.Command {
	var limit int
	return listed(&cobra.Command{
		Use: "stuck QUEUE", Short: "List keys that are parked or whose message fails", Args: oneArg("queue"),
		Example: `  interlock queue stuck orders --backend postgres://localhost/shop`,
		RunE: func(c *cobra.Command, args []string) error {
			views, rows := []stuckView{}, [][]string{{"KEY", "ID", "ATTEMPTS", "RETRY", "WHY"}}
			if err := q.do(c.Context(), func(ctx context.Context, t backend.Queues) error {
				all, err := t.Stuck(ctx, args[0], limit)
				for _, s := range all {
					views = append(views, stuckView{s.Key, s.Place, s.ID, s.Attempts, s.LastError, s.Parked, s.Wait.Microseconds()})
					retry := "in " + s.Wait.Round(time.Second).String()
					if s.Parked {
						retry = "parked"
					}
					rows = append(rows, []string{s.Key, s.ID, fmt.Sprint(s.Attempts), retry, s.LastError})
				}
				return err
			}); err != nil {
				return err
			}
			q.app.hintAtMore(len(views), limit, "")
			return q.app.printRows(views, rows, "no key of "+args[0]+" is stuck")
		},
	}, &limit, 100)
}

func parsePlace(text string) (int64, error) {
	place, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, usage("%q is not a place: see \"interlock queue letters\"", text)
	}
	return place, nil
}

func (q *queueCommands) letterCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show QUEUE PLACE", Short: "Show a dead letter in full", Args: exactly(2, "a queue and a place"),
		Example: `  interlock queue show orders 1042 --backend postgres://localhost/shop -o json`,
		RunE: func(c *cobra.Command, args []string) error {
			place, err := parsePlace(args[1])
			if err != nil {
				return err
			}
			var l queue.DeadLetter
			if err := q.do(c.Context(), func(ctx context.Context, t backend.Queues) (err error) {
				l, err = t.DeadLetter(ctx, args[0], place)
				return err
			}); err != nil {
				return err
			}
			return q.app.print(viewQueueLetter(l), fields(append([][2]string{{"place", args[1]}, {"id", l.ID}, {"key", l.Key}, {"why", l.LastError}, {"attempts", fmt.Sprint(l.Attempts)},
				{"added", l.Added.Local().Format(time.DateTime)}, {"died", l.Died.Local().Format(time.DateTime)}}, contents(l.Headers, l.Payload)...)...))
		},
	}
}

func (q *queueCommands) editCommand() *cobra.Command {
	var payload string
	c := q.recorded(&cobra.Command{
		Use: "edit QUEUE PLACE --payload TEXT|- --reason TEXT", Short: "Replace the payload of a dead letter", Args: exactly(2, "a queue and a place"),
		Example: `  interlock queue edit orders 1042 --payload '{"customer":7}' --reason "the customer was misspelled"
  interlock queue edit orders 1042 --payload - --reason "the customer was misspelled" < fixed.json`,
		RunE: func(c *cobra.Command, args []string) error {
			place, err := parsePlace(args[1])
			if err != nil {
				return err
			}
			if !c.Flags().Changed("payload") {
				return usage("--payload is missing: the new payload, or - for the standard input")
			}
			text, err := q.app.flagOrInput("--payload", payload, queue.MaxPayload)
			if err != nil {
				return err
			}
			if err := q.do(c.Context(), func(ctx context.Context, t backend.Queues) error {
				return t.Edit(ctx, args[0], q.author(), place, text)
			}); err != nil {
				return err
			}
			return q.done("edited", args[0], place)
		},
	})
	c.Flags().StringVar(&payload, "payload", "", "the new payload; - reads the standard input")
	return c
}

// done prints the change of dead letters.
func (q *queueCommands) done(what, name string, places ...int64) error {
	return q.app.print(struct {
		Queue  string  `json:"queue"`
		Places []int64 `json:"places"`
	}{name, places}, line("%s: %s %s\n", what, name, strings.Trim(fmt.Sprint(places), "[]")))
}

// placesCommand returns the command to replay or discard.
func (q *queueCommands) placesCommand(verb, short, done string, do func(backend.Queues, context.Context, string, queue.By, ...int64) error) *cobra.Command {
	return q.recorded(&cobra.Command{
		Use: verb + " QUEUE PLACE… --reason TEXT", Short: short,
		Example: "  interlock queue " + verb + ` orders 1042 --reason "why it is right" --backend postgres://localhost/shop`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usage("%s wants a queue and at least one place", c.CommandPath())
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			var places []int64
			for _, a := range args[1:] {
				place, err := parsePlace(a)
				if err != nil {
					return err
				}
				places = append(places, place)
			}
			if err := q.do(c.Context(), func(ctx context.Context, t backend.Queues) error {
				return do(t, ctx, args[0], q.author(), places...)
			}); err != nil {
				return err
			}
			return q.done(done, args[0], places...)
		},
	})
}

func (q *queueCommands) resumeCommand() *cobra.Command {
	return q.recorded(&cobra.Command{
		Use: "resume QUEUE KEY --reason TEXT", Short: "Deliver the messages of a parked key again",
		Example: `  interlock queue resume orders order/42 --reason "the warehouse is open" --backend postgres://localhost/shop`,
		Args:    exactly(2, "a queue and a key"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := q.do(c.Context(), func(ctx context.Context, t backend.Queues) error {
				return t.Resume(ctx, args[0], q.author(), args[1])
			}); err != nil {
				return err
			}
			return q.app.print(struct {
				Queue string `json:"queue"`
				Key   string `json:"key"`
			}{args[0], args[1]}, line("resumed: %s\n", args[1]))
		},
	})
}
