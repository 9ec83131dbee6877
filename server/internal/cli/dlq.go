package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/flow/outbox"
)

func (a *app) dlqCommand() *cobra.Command {
	m := &outboxCommands{app: a}
	c := group(&cobra.Command{
		Use: "dlq", Short: "Show, replay or discard dead letters",
		Example: `  interlock dlq ls --backend postgres://localhost/shop
  interlock dlq show 0f8e… --backend postgres://localhost/shop
  interlock dlq replay 0f8e… --reason "the receiver is fixed" --backend postgres://localhost/shop
  interlock dlq discard 0f8e… --reason "a test order" --backend postgres://localhost/shop`,
	}, a.deadSagasCommand(), a.deadQueueCommand(), m.lettersCommand(), m.letterCommand(),
		m.decideCommand("replay", "Put dead letters back, in insertion order", "replayed", outbox.Table.Replay),
		m.decideCommand("discard", "Delete dead letters permanently, with a reason", "discarded", outbox.Table.Discard))
	m.addTable(c)
	return c
}

func (m *outboxCommands) lettersCommand() *cobra.Command {
	var q outbox.DeadLetterQuery
	c := listed(&cobra.Command{
		Use: "ls", Short: "List dead letters in insertion order", Args: noArgs,
		Example: `  interlock dlq ls --backend postgres://localhost/shop
  interlock dlq ls --topic orders --key order/42 --limit 10 -o json`,
		RunE: func(c *cobra.Command, _ []string) error {
			var letters []outbox.DeadLetter
			if err := m.do(c.Context(), func(ctx context.Context, t outbox.Table, db driver.SQL) (err error) {
				letters, err = t.DeadLetters(ctx, db, q)
				return err
			}); err != nil {
				return err
			}
			if len(letters) > 0 {
				m.app.hintAtMore(len(letters), q.Limit, fmt.Sprint(letters[len(letters)-1].Place))
			}
			return m.printLetters(letters)
		},
	}, &q.Limit, 100)
	c.Flags().StringVar(&q.Topic, "topic", "", "only those of this topic")
	c.Flags().StringVar(&q.Key, "key", "", "only those of this key")
	c.Flags().Int64Var(&q.After, "after", 0, "only those after this `place`")
	return c
}

func (m *outboxCommands) printLetters(letters []outbox.DeadLetter) error {
	views := []letterView{}
	rows := [][]string{{"ID", "TOPIC", "KEY", "DIED", "ATTEMPTS", "WHY"}}
	for _, l := range letters {
		views = append(views, viewLetter(l))
		rows = append(rows, []string{l.ID, l.Topic, l.Key, l.Died.Local().Format(time.DateTime), fmt.Sprint(l.Attempts), l.LastError})
	}
	return m.app.printRows(struct {
		Letters []letterView `json:"letters"`
	}{views}, rows, "there are no dead letters")
}

func (m *outboxCommands) letterCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Short: "Show a dead letter in full", Args: oneArg("message id"), ValidArgsFunction: m.completeLetters(),
		Example: `  interlock dlq show 0f8e… --backend postgres://localhost/shop -o json`,
		RunE: func(c *cobra.Command, args []string) error {
			var l outbox.DeadLetter
			if err := m.do(c.Context(), func(ctx context.Context, t outbox.Table, db driver.SQL) (err error) {
				l, err = t.DeadLetter(ctx, db, args[0])
				return err
			}); err != nil {
				return err
			}
			v := viewLetter(l)
			v.Headers, v.Payload = l.Headers, l.Payload
			return m.app.print(v, describeLetter(l))
		},
	}
}

// decideCommand returns the command to replay or discard.
func (m *outboxCommands) decideCommand(verb, short, done string,
	do func(t outbox.Table, ctx context.Context, db driver.SQL, ids []string, reason, by string) error) *cobra.Command {
	return m.recorded(&cobra.Command{
		Use: verb + " ID… --reason TEXT", Short: short, ValidArgsFunction: m.completeLetters(),
		Example: "  interlock dlq " + verb + ` 0f8e… --reason "why it is right" --backend postgres://localhost/shop`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("%s wants at least one message id", c.CommandPath())
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if err := m.do(c.Context(), func(ctx context.Context, t outbox.Table, db driver.SQL) error {
				return do(t, ctx, db, args, m.reason, m.by)
			}); err != nil {
				return err
			}
			return m.done(done, args)
		},
	})
}

// letterView is the JSON form of a dead letter; see docs/reference/cli.md.
type letterView struct {
	ID        string            `json:"id"`
	Topic     string            `json:"topic"`
	Key       string            `json:"key,omitempty"`
	Place     int64             `json:"place"`
	Slice     int               `json:"slice"`
	Attempts  int               `json:"attempts"`
	LastError string            `json:"last_error"`
	Added     time.Time         `json:"added"`
	Died      time.Time         `json:"died"`
	Headers   map[string]string `json:"headers,omitempty"`
	Payload   []byte            `json:"payload,omitempty"` // in base64
}

func viewLetter(l outbox.DeadLetter) letterView {
	return letterView{ID: l.ID, Topic: l.Topic, Key: l.Key, Place: l.Place, Slice: l.Slice, Attempts: l.Attempts,
		LastError: l.LastError, Added: l.Added.UTC(), Died: l.Died.UTC()}
}

func describeLetter(l outbox.DeadLetter) text {
	list := [][2]string{{"id", l.ID}, {"topic", l.Topic}, {"key", l.Key}, {"why", l.LastError}, {"attempts", fmt.Sprint(l.Attempts)},
		{"added", l.Added.Local().Format(time.DateTime)}, {"died", l.Died.Local().Format(time.DateTime)}}
	return fields(append(list, contents(l.Headers, l.Payload)...)...)
}

// contents describes the headers and the payload of a message.
func contents(headers map[string]string, payload []byte) (list [][2]string) {
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		list = append(list, [2]string{"header", name + ": " + headers[name]})
	}
	text := string(payload)
	if !utf8.Valid(payload) {
		text = fmt.Sprintf("%d bytes that are no text; -o json has them", len(payload))
	}
	return append(list, [2]string{"payload", text})
}
