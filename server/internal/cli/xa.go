package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/server/internal/backend"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/twopc"
)

// xa is the two-phase commits of a journal, and their participants.
type xa struct {
	journalCommands
	namespace    string
	participants []string
}

func (a *app) xaCommand() *cobra.Command {
	x := &xa{journalCommands: journalCommands{app: a}}
	c := group(&cobra.Command{
		Use: "xa", Short: "Show and repair two-phase commits",
		Example: `  interlock xa ls --participant north=postgres://n/bank --participant south=mysql://s/bank
  interlock xa show transfer/42
  interlock xa retry transfer/42 --reason "the client library has a fix"
  interlock xa resolve transfer/42 --reason "south was put right by hand, ticket 7"`,
		Long: `The journal is in the backend. Name each participant as its coordinators do:
--participant NAME=URL, with the URL of a database, of etcd for a shard, or http:// of
a service. --namespace is the coordinators' namespace in the databases. Without
participants, only the journal is read.`,
	}, x.lsCommand(), x.showCommand(), x.resolveCommand(),
		x.operationCommand(xaProtocol, operation{use: "retry ID", short: "Resume a transaction that is halted after crashes", done: "retried",
			example: `retry transfer/42 --reason "the client library has a fix"`, do: onTransaction(twopc.NewOperator, (*twopc.Operator).Retry)}))
	x.add(c)
	c.PersistentFlags().StringArrayVar(&x.participants, "participant", nil, "`NAME=URL` of a participant")
	c.PersistentFlags().StringVar(&x.namespace, "namespace", "interlock", "namespace of the branches in databases, or a shard's prefix")
	x.completeIDs(c, "2pc")
	return c
}

// manage runs something with an engine that serves nothing, within --timeout.
func (x *xa) manage(ctx context.Context, use func(context.Context, *journal.Journal, *twopc.Engine) error) error {
	return x.do(ctx, true, func(ctx context.Context, j *journal.Journal) error {
		var participants []twopc.Defined
		for _, text := range x.participants {
			p, disconnect, err := x.participant(ctx, text)
			if err != nil {
				return err
			}
			defer disconnect()
			participants = append(participants, p)
		}
		c, err := coordinator.New(j, nil)
		if err != nil {
			return err
		}
		m, err := twopc.New(c, nil, participants...)
		if err != nil {
			return usage("%w", err)
		}
		return use(ctx, j, m)
	})
}

func (x *xa) participant(ctx context.Context, text string) (twopc.Defined, func(), error) {
	name, url, ok := strings.Cut(text, "=")
	if !ok || name == "" || url == "" {
		return nil, nil, usage("--participant is not NAME=URL")
	}
	if strings.HasPrefix(url, "http://") || strings.HasPrefix(url, "https://") {
		return twopc.Define(name, twopc.HTTP{URL: url}), noop, nil
	}
	target, err := backend.Parse(url)
	if err != nil {
		return nil, nil, err
	}
	p, disconnect, err := target.Participant(ctx, name, x.namespace)
	if codeOf(err) == exitUnreachable {
		return nil, nil, fail(exitUnreachable, "participant %s: cannot reach %v: %w", name, target, err)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("participant %s: %w", name, err)
	}
	return p, disconnect, nil
}

func noop() {}
