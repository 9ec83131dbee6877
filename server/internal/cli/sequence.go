package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/flow/sequence"
)

// sequenceCommands selects the table of sequences of a command.
type sequenceCommands struct {
	app   *app
	table string
}

func (a *app) sequenceCommand() *cobra.Command {
	o := &sequenceCommands{app: a}
	c := group(&cobra.Command{
		Use: "sequence", Short: "Show holes and dead letters of ordered streams",
		Example: `  interlock sequence holes orders --backend postgres://localhost/shop
  interlock sequence write-off orders order/42 0:7-9 --backend postgres://localhost/shop
  interlock sequence letters orders --backend postgres://localhost/shop
  interlock sequence discard orders order/42 0:7 --backend postgres://localhost/shop`,
	}, o.holesCommand(), o.writeOffCommand(), o.lettersCommand(), o.discardCommand())
	c.PersistentFlags().StringVar(&o.table, "table", "", "the table of positions (default: interlock_sequence)")
	return c
}

// do calls use in one transaction, within --timeout.
func (o *sequenceCommands) do(ctx context.Context, use func(context.Context, sequence.Table, driver.SQL) error) error {
	return o.app.inTx(ctx, func(ctx context.Context, tx driver.SQL) error {
		err := use(ctx, sequence.Table{Name: o.table}, tx)
		if errors.Is(err, sequence.ErrNoHole) {
			return fail(exitFailed, "%w", err)
		}
		return err
	})
}

type holeView struct {
	Key    string    `json:"key"`
	Epoch  int64     `json:"epoch"`
	From   int64     `json:"from"`
	To     int64     `json:"to"`
	Opened time.Time `json:"opened"`
}

func (o *sequenceCommands) holesCommand() *cobra.Command {
	var limit int
	return listed(&cobra.Command{
		Use: "holes STREAM", Short: "List skipped events", Args: oneArg("stream"),
		Example: `  interlock sequence holes orders --backend postgres://localhost/shop`,
		RunE: func(c *cobra.Command, args []string) error {
			views, rows := []holeView{}, [][]string{{"KEY", "HOLE", "OPENED"}}
			if err := o.do(c.Context(), func(ctx context.Context, t sequence.Table, db driver.SQL) error {
				holes, err := t.Open(ctx, db, args[0], limit)
				for _, h := range holes {
					views = append(views, holeView{h.Key, h.Epoch, h.From, h.To, h.Opened})
					rows = append(rows, []string{h.Key, fmt.Sprintf("%d:%d-%d", h.Epoch, h.From, h.To), h.Opened.Format(time.RFC3339)})
				}
				return err
			}); err != nil {
				return err
			}
			o.app.hintAtMore(len(views), limit, "")
			return o.app.printRows(views, rows, "there are no open holes in "+args[0])
		},
	}, &limit, 100)
}

func (o *sequenceCommands) writeOffCommand() *cobra.Command {
	return &cobra.Command{
		Use: "write-off STREAM KEY EPOCH:FROM-TO", Short: "Close a hole whose events will never arrive",
		Example: `  interlock sequence write-off orders order/42 0:7-9 --backend postgres://localhost/shop`,
		Args:    exactly(3, "a stream, a key and a hole"),
		RunE: func(c *cobra.Command, args []string) error {
			h, err := parseHole(args[2])
			if err != nil {
				return err
			}
			h.Key = args[1]
			if err := o.do(c.Context(), func(ctx context.Context, t sequence.Table, db driver.SQL) error {
				return t.WriteOff(ctx, db, args[0], h)
			}); err != nil {
				return err
			}
			return o.done("written off", args[1:])
		},
	}
}

type eventView struct {
	Key      string    `json:"key"`
	Epoch    int64     `json:"epoch"`
	Seq      int64     `json:"seq"`
	Attempts int       `json:"attempts"`
	Error    string    `json:"error"`
	Died     time.Time `json:"died"`
	Payload  []byte    `json:"payload"`
}

func (o *sequenceCommands) lettersCommand() *cobra.Command {
	var limit int
	return listed(&cobra.Command{
		Use: "letters STREAM", Short: "List events that the handler refused", Args: oneArg("stream"),
		Example: `  interlock sequence letters orders --backend postgres://localhost/shop -o json`,
		Long: `Lists the dead letters of a stream, the oldest first; with -o json also the payloads.
To replay one, call sequence.Replay in the program that has the handler.`,
		RunE: func(c *cobra.Command, args []string) error {
			views, rows := []eventView{}, [][]string{{"KEY", "EVENT", "ATTEMPTS", "DIED", "ERROR"}}
			if err := o.do(c.Context(), func(ctx context.Context, t sequence.Table, db driver.SQL) error {
				letters, err := t.DeadLetters(ctx, db, args[0], limit)
				for _, l := range letters {
					views = append(views, eventView{l.Key, l.Epoch, l.Seq, l.Attempts, l.Error, l.Died, l.Payload})
					rows = append(rows, []string{l.Key, l.Position.String(), strconv.Itoa(l.Attempts), l.Died.Format(time.RFC3339), l.Error})
				}
				return err
			}); err != nil {
				return err
			}
			o.app.hintAtMore(len(views), limit, "")
			return o.app.printRows(views, rows, "there are no dead letters in "+args[0])
		},
	}, &limit, 100)
}

func (o *sequenceCommands) discardCommand() *cobra.Command {
	return &cobra.Command{
		Use: "discard STREAM KEY EPOCH:SEQ", Short: "Delete a dead letter and close its hole",
		Example: `  interlock sequence discard orders order/42 0:7 --backend postgres://localhost/shop`,
		Args:    exactly(3, "a stream, a key and an event"),
		RunE: func(c *cobra.Command, args []string) error {
			h, err := parseHole(args[2])
			if err != nil || h.From != h.To {
				return usage("%s is not EPOCH:SEQ, such as 0:7", args[2])
			}
			if err := o.do(c.Context(), func(ctx context.Context, t sequence.Table, db driver.SQL) error {
				return t.Discard(ctx, db, args[0], args[1], sequence.Position{Epoch: h.Epoch, Seq: h.From})
			}); err != nil {
				return err
			}
			return o.done("discarded", args[1:])
		},
	}
}

func (o *sequenceCommands) done(what string, args []string) error {
	return o.app.print(struct {
		Done string `json:"done"`
		Key  string `json:"key"`
		At   string `json:"at"`
	}{what, args[0], args[1]}, line("%s: %s %s\n", what, args[0], args[1]))
}

// parseHole parses EPOCH:FROM-TO, or EPOCH:SEQ.
func parseHole(s string) (h sequence.Hole, err error) {
	epoch, rest, ok := strings.Cut(s, ":")
	from, to, several := strings.Cut(rest, "-")
	if !several {
		to = from
	}
	for _, n := range []struct {
		to   *int64
		text string
	}{{&h.Epoch, epoch}, {&h.From, from}, {&h.To, to}} {
		if *n.to, err = strconv.ParseInt(n.text, 10, 64); err != nil || !ok {
			return h, usage("%s is not EPOCH:FROM-TO, such as 0:7-9", s)
		}
	}
	return h, nil
}
