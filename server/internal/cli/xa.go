package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/server/internal/backend"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/twopc"
)

// xa is the two-phase commits of a journal, and their participants.
type xa struct {
	ledger
	namespace    string
	participants []string
}

func (a *app) xaCommand() *cobra.Command {
	x := &xa{ledger: ledger{app: a}}
	c := &cobra.Command{
		Use: "xa", Short: "See what two-phase commits have in doubt, and decide where nobody can",
		Example: `  interlock xa ls --participant north=postgres://n/bank --participant south=mysql://s/bank
  interlock xa show transfer/42
  interlock xa resolve transfer/42 --reason "south was put right by hand, ticket 7"`,
		Long: `The journal is in the backend. A participant is named as its coordinators name it:
--participant NAME=URL, where the URL is that of a database, of etcd for a shard, or
http:// of a service. --namespace is what the coordinators gave the databases. Without
participants only the journal is looked at.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	x.add(c)
	c.PersistentFlags().StringArrayVar(&x.participants, "participant", nil, "`NAME=URL` of a participant")
	c.PersistentFlags().StringVar(&x.namespace, "namespace", "interlock", "of the coordinators' branches in databases, or a shard's prefix")
	c.AddCommand(x.lsCommand(), x.showCommand(), x.resolveCommand())
	return c
}

// manage runs something with a manager that serves nothing, within --timeout.
func (x *xa) manage(ctx context.Context, use func(context.Context, *twopc.Manager) error) error {
	return x.do(ctx, true, func(ctx context.Context, j *journal.Journal) error {
		var participants []twopc.Registered
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
		return refusedXA(use(ctx, m))
	})
}

// refusedXA gives what a manager refuses the exit code of a failure.
func refusedXA(err error) error {
	if errors.Is(err, twopc.ErrNone) || errors.Is(err, twopc.ErrDecided) || errors.Is(err, twopc.ErrOther) {
		return fail(exitFailed, "%w", err)
	}
	return err
}

// refusedDecision gives a decision that is not possible the exit code of a failure.
func refusedDecision(err error) error {
	if err != nil && interlock.Kind(err) == interlock.Definite {
		return fail(exitFailed, "%w", err)
	}
	return err
}

func (x *xa) participant(ctx context.Context, text string) (twopc.Registered, func(), error) {
	name, url, ok := strings.Cut(text, "=")
	if !ok || name == "" || url == "" {
		return nil, nil, usage("--participant %s is not NAME=URL", text)
	}
	if strings.HasPrefix(url, "http://") || strings.HasPrefix(url, "https://") {
		return twopc.At(name, twopc.HTTP{URL: url}), nothing, nil
	}
	target, err := backend.Parse(url)
	if err != nil {
		return nil, nil, err
	}
	p, disconnect, err := target.Participant(ctx, name, x.namespace)
	if err != nil {
		return nil, nil, fmt.Errorf("participant %s: %w", name, x.app.unreached(target, err))
	}
	return p, disconnect, nil
}

func nothing() {}

// xaView is the JSON form of a transaction in the journal; docs/cli.md promises it.
type xaView struct {
	ID          string         `json:"id"`
	State       string         `json:"state"`
	Decision    string         `json:"decision"`
	Transaction string         `json:"transaction"`
	Decided     string         `json:"decided"`
	Reason      string         `json:"reason,omitempty"`
	Actor       string         `json:"actor,omitempty"`
	Note        string         `json:"note,omitempty"`
	Branches    []xaBranchView `json:"branches,omitempty"`
}

type xaBranchView struct {
	Participant string `json:"participant"`
	Done        bool   `json:"done"`
	Heuristic   string `json:"heuristic,omitempty"`
}

func viewXA(o twopc.Outcome) xaView {
	v := xaView{ID: o.ID, State: string(o.State), Decision: string(o.Decision), Transaction: o.Transaction, Decided: stamp(o.Decided),
		Reason: o.Reason, Actor: o.Actor, Note: o.Note}
	for _, b := range o.Branches {
		v.Branches = append(v.Branches, xaBranchView{b.Participant, b.Done, b.Heuristic})
	}
	return v
}

// doubtView is the JSON form of a branch in doubt.
type doubtView struct {
	Participant string  `json:"participant"`
	Transaction string  `json:"transaction"`
	Age         float64 `json:"age_seconds"`
	Verdict     string  `json:"verdict"`
	Blocked     float64 `json:"blocked_seconds,omitempty"`
	Error       string  `json:"error,omitempty"`
}

func (x *xa) lsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List branches in doubt, and transactions that have not ended", Args: noArgs,
		Example: `  interlock xa ls --participant north=postgres://n/bank --participant south=mysql://s/bank
  interlock xa ls -o json`,
		RunE: func(c *cobra.Command, _ []string) error {
			v := struct {
				InDoubt    []doubtView `json:"in_doubt"`
				Unfinished []xaView    `json:"unfinished"`
			}{[]doubtView{}, []xaView{}}
			if err := x.manage(c.Context(), func(ctx context.Context, m *twopc.Manager) error {
				found, err := m.InDoubt(ctx)
				for _, d := range found {
					view := doubtView{d.XID.Branch, d.XID.Transaction, d.Age.Seconds(), d.Verdict, d.BlockedFor.Seconds(), ""}
					if d.Err != nil {
						view.Error = d.Err.Error()
					}
					v.InDoubt = append(v.InDoubt, view)
				}
				if err != nil { // the others' are shown
					x.app.say("%v", err)
				}
				for o, err := range m.Unfinished(ctx) {
					if err != nil {
						return err
					}
					v.Unfinished = append(v.Unfinished, viewXA(o))
				}
				return nil
			}); err != nil {
				return err
			}
			return x.app.print(v, describeXA(v.InDoubt, v.Unfinished))
		},
	}
}

func describeXA(doubts []doubtView, unfinished []xaView) string {
	rows := [][]string{{"PARTICIPANT", "IN DOUBT", "FOR", "VERDICT"}}
	for _, d := range doubts {
		rows = append(rows, []string{d.Participant, plain(d.Transaction), seconds(d.Age), strings.TrimSpace(d.Verdict + " " + plain(d.Error))})
	}
	text := "no branch is in doubt\n"
	if len(doubts) > 0 {
		text = table(rows)
	}
	if len(unfinished) == 0 {
		return text
	}
	rows = [][]string{{"ID", "STATE", "WAITS FOR", "WHY"}}
	for _, o := range unfinished {
		var waits []string
		for _, b := range o.Branches {
			if !b.Done {
				waits = append(waits, b.Participant)
			}
		}
		rows = append(rows, []string{plain(o.ID), o.State, strings.Join(waits, ", "), plain(o.Reason)})
	}
	return text + "\n" + table(rows)
}

// seconds is a time in whole seconds, for people.
func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(time.Second).String()
}

func (x *xa) showCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Short: "Show what was decided of a transaction, and who has done it", Args: oneArg("transaction"),
		Example: `  interlock xa show transfer/42
  interlock xa show transfer/42 -o json`,
		RunE: func(c *cobra.Command, args []string) error {
			var o twopc.Outcome
			if err := x.manage(c.Context(), func(ctx context.Context, m *twopc.Manager) (err error) {
				o, err = m.Look(ctx, args[0])
				return err
			}); err != nil {
				return err
			}
			v := viewXA(o)
			var b strings.Builder
			for _, f := range [][2]string{{"id", v.ID}, {"state", v.State}, {"decision", v.Decision}, {"known there as", v.Transaction},
				{"decided", o.Decided.Local().Format(time.DateTime)}, {"why", v.Reason}, {"by", v.Actor}, {"note", v.Note}} {
				if f[1] != "" {
					fmt.Fprintf(&b, "%-15s %s\n", f[0], plain(f[1]))
				}
			}
			for _, branch := range v.Branches {
				state := map[bool]string{true: "committed", false: "not known to be"}[branch.Done]
				if branch.Heuristic != "" {
					state = "otherwise than decided: " + plain(branch.Heuristic)
				}
				fmt.Fprintf(&b, "%-15s %s\n", plain(branch.Participant), state)
			}
			return x.app.print(v, b.String())
		},
	}
}

func (x *xa) resolveCommand() *cobra.Command {
	var decision string
	c := &cobra.Command{
		Use: "resolve ID --reason TEXT", Short: "Acknowledge a heuristic outcome, or decide what nobody has decided", Args: oneArg("transaction"),
		Example: `  interlock xa resolve transfer/42 --reason "south was put right by hand, ticket 7"
  interlock xa resolve 1x7k… --decide abort --reason "its coordinator is gone for good" --participant north=postgres://n/bank`,
		Long: `Without --decide it ends a HEURISTIC transaction: a branch was finished otherwise than
decided, and you have put that right. With --decide commit or abort it decides for a
branch in doubt of which the journal knows nothing, and which is too old to be presumed
aborted; the ID is then the one that "xa ls" shows as in doubt. It never overrules a
decision. A decision to commit covers the branches that are in doubt now: name all
participants, and make sure that none is missing.`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkReason(x.reason); err != nil {
				return err
			}
			if decision != "" && decision != string(twopc.Commit) && decision != string(twopc.Abort) {
				return usage("--decide %s is not known; it is commit or abort", decision)
			}
			if err := x.manage(c.Context(), func(ctx context.Context, m *twopc.Manager) error {
				decide := m.Acknowledge
				if decision != "" {
					decide = func(ctx context.Context, id, actor, reason string) error {
						return m.Resolve(ctx, id, twopc.Decision(decision), actor, reason)
					}
				}
				return refusedDecision(decide(ctx, args[0], x.by, x.reason))
			}); err != nil {
				return err
			}
			return x.done("resolved", args[0])
		},
	}
	c.Flags().StringVar(&decision, "decide", "", "commit or abort")
	completes(c, "decide", "commit", "abort")
	x.answerable(c)
	return c
}
