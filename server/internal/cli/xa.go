package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock/server/internal/backend"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/twopc"
)

// xa selects the two-phase commits of a journal, and their participants.
type xa struct {
	journalCommands
	namespace    string
	participants []string
}

func (a *app) xaCommand() *cobra.Command {
	x := &xa{journalCommands: journalCommands{app: a, protocol: "2pc"}}
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
	x.completeIDs(c)
	return c
}

// manage calls use with an engine that serves nothing, within --timeout. The engine lacks the
// participants that cannot be reached within a --timeout of their own; missing is their error.
func (x *xa) manage(ctx context.Context, use func(_ context.Context, _ *journal.Journal, _ *twopc.Engine, missing error) error) error {
	connected := make([]struct {
		twopc.Defined
		disconnect func()
		err        error
	}, len(x.participants))
	var all sync.WaitGroup
	for i := range connected {
		c := &connected[i]
		all.Go(func() { c.Defined, c.disconnect, c.err = x.participant(ctx, x.participants[i]) })
	}
	all.Wait()
	var participants []twopc.Defined
	var missing, refused error
	for _, c := range connected {
		switch {
		case c.err == nil:
			defer c.disconnect()
			participants = append(participants, c.Defined)
		case codeOf(c.err) == exitUnreachable:
			missing = errors.Join(missing, c.err)
		default:
			refused = cmp.Or(refused, c.err)
		}
	}
	if refused != nil {
		return refused
	}
	return x.do(ctx, true, func(ctx context.Context, j *journal.Journal) error {
		c, err := coordinator.New(j, nil)
		if err != nil {
			return err
		}
		m, err := twopc.New(c, &twopc.Options{Timeout: x.app.timeout}, participants...)
		if err != nil {
			return usage("%w", err)
		}
		return use(ctx, j, m, missing)
	})
}

func (x *xa) participant(ctx context.Context, text string) (twopc.Defined, func(), error) {
	name, address, err := parseParticipant(text)
	if err != nil {
		return nil, nil, err
	}
	if strings.HasPrefix(address, "http://") || strings.HasPrefix(address, "https://") {
		if u, err := url.Parse(address); err != nil || u.User != nil {
			return nil, nil, usage("--participant %s is not a URL, or has a user or a password", name)
		}
		return twopc.Define(name, twopc.HTTP{URL: address}), func() {}, nil
	}
	target, err := backend.Parse(address)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, x.app.timeout)
	defer cancel()
	p, disconnect, err := target.Participant(ctx, name, x.namespace)
	if codeOf(err) == exitUnreachable {
		problem := "cannot reach %v: %w"
		if backend.Answered(err) {
			problem = refusesForNow
		}
		return nil, nil, fail(exitUnreachable, "participant %s: "+problem, name, target, err)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("participant %s: %w", name, x.app.at(address).backendError(target, err))
	}
	return p, disconnect, nil
}

// parseParticipant splits NAME=URL. A URL without a name can have a "=" too, after a password.
func parseParticipant(text string) (name, address string, err error) {
	name, address, _ = strings.Cut(text, "=")
	if name == "" || address == "" || strings.Contains(name, "://") {
		return "", "", usage("--participant is not NAME=URL")
	}
	return name, address, nil
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
	var f listing
	c := &cobra.Command{
		Use: "ls", Short: "List branches in doubt and transactions", Args: noArgs,
		Example: `  interlock xa ls --participant north=postgres://n/bank --participant south=mysql://s/bank
  interlock xa ls -o json`,
		RunE: func(c *cobra.Command, _ []string) error {
			if len(x.participants) == 0 {
				x.app.say("no --participant NAME=URL was given: only the journal is read")
			}
			if err := f.check(c, xaProtocol); err != nil {
				return err
			}
			v := xaList{InDoubt: []doubtView{}}
			if err := x.manage(c.Context(), func(ctx context.Context, j *journal.Journal, m *twopc.Engine, missing error) (err error) {
				v.Transactions, err = x.journalCommands.find(ctx, j, xaProtocol, f)
				if err == nil {
					v.find(c.Context(), m, missing) // the engine bounds the answer of each participant
				}
				return err
			}); err != nil {
				return err
			}
			err := x.app.print(v, v.text(x.namespace, len(x.participants) > 0))
			if v.unasked == nil {
				return err
			}
			return errors.Join(err, fail(exitUnreachable, "some participants could not be reached: %w", v.unasked))
		},
	}
	f.flags(c, xaProtocol)
	return c
}

// xaList is the JSON form of the list; see docs/reference/cli.md.
type xaList struct {
	InDoubt      []doubtView       `json:"in_doubt"`
	Transactions []transactionView `json:"transactions"`
	Error        string            `json:"error,omitempty"` // of participants that could not be asked

	unasked error
}

// find lists branches in doubt, also if some participants cannot be asked.
func (v *xaList) find(ctx context.Context, m *twopc.Engine, missing error) {
	found, err := m.InDoubt(ctx)
	v.unasked = errors.Join(missing, err)
	if v.unasked != nil {
		v.Error = v.unasked.Error()
	}
	for _, d := range found {
		view := doubtView{d.XID.Branch, d.XID.Transaction, d.Age.Seconds(), d.Verdict, d.BlockedFor.Seconds(), ""}
		if d.Err != nil {
			view.Error = d.Err.Error()
		}
		v.InDoubt = append(v.InDoubt, view)
	}
}

// text returns the list as text. asked means that there were participants to ask.
func (v *xaList) text(namespace string, asked bool) text {
	rows := [][]string{{"PARTICIPANT", "IN DOUBT", "FOR", "VERDICT"}}
	for _, d := range v.InDoubt {
		rows = append(rows, []string{d.Participant, d.Transaction, seconds(d.Age), strings.TrimSpace(d.Verdict + " " + d.Error)})
	}
	text := table(rows)
	switch {
	case len(v.InDoubt) > 0:
	case v.unasked != nil || !asked:
		text = "" // there may be some
	default: // those over HTTP may keep no list
		text = line("no participant lists a branch in doubt in namespace %s\n", namespace)
	}
	switch {
	case len(v.Transactions) == 0 && asked:
		return text
	case text != "":
		text += "\n"
	}
	return text + table(rowsOf(v.Transactions))
}

// seconds returns a time as text, in whole seconds.
func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(time.Second).String()
}

// branchState describes a branch in one line.
func branchState(b twopc.Branch) string {
	switch {
	case b.Heuristic != "":
		return "against the decision: " + b.Heuristic
	case b.Done:
		return "committed"
	case b.Failing != "":
		return fmt.Sprintf("not committed after %d attempts: %s", b.Attempts, b.Failing)
	}
	return "not known to be committed"
}

func (x *xa) showCommand() *cobra.Command {
	return &cobra.Command{
		Use: "show ID", Short: "Show the decision and which participants applied it", Args: oneArg("transaction"),
		Example: `  interlock xa show transfer/42
  interlock xa show transfer/42 -o json`,
		RunE: func(c *cobra.Command, args []string) error {
			var v transactionView
			if err := x.manage(c.Context(), func(ctx context.Context, j *journal.Journal, m *twopc.Engine, _ error) error {
				o, err := look(ctx, m, args[0])
				if err != nil {
					return x.explainForeign(ctx, j, args[0], err)
				}
				_, entries, err := j.Open(ctx, o.Key)
				v = viewXA(o)
				v.History = historyOf(entries)
				return err
			}); err != nil {
				return err
			}
			list := [][2]string{{"at participants", v.Transaction}, {"decided", localTime(v.Decided)}, {"by", cmp.Or(v.Resolved.Actor, v.DecidedBy)}, {"note", v.Resolved.Reason}}
			for _, branch := range v.Branches {
				list = append(list, [2]string{branch.Participant, branchState(branch)})
			}
			return x.app.print(v, v.shown(list...))
		},
	}
}

// look finds a transaction by its id, or by its name at participants.
func look(ctx context.Context, m *twopc.Engine, name string) (twopc.Outcome, error) {
	o, err := m.Look(ctx, name)
	if parts := runName.FindStringSubmatch(name); parts != nil && errors.Is(err, twopc.ErrNone) {
		o, err = m.Look(ctx, parts[1])
	}
	if errors.Is(err, twopc.ErrNone) {
		err = fmt.Errorf("%w, so no commit was decided; interlock xa ls shows whether it is in doubt", err)
	}
	return o, err
}

// runName matches a transaction's name at participants: its id and a run's suffix.
var runName = regexp.MustCompile(`^(.+)\.[0-9a-v]{12}$`)

func (x *xa) resolveCommand() *cobra.Command {
	var decision string
	c := x.recorded(&cobra.Command{
		Use: "resolve ID --reason TEXT", Short: "Resolve a heuristic outcome, or decide by hand", Args: oneArg("transaction"),
		Example: `  interlock xa resolve transfer/42 --reason "south was put right by hand, ticket 7"
  interlock xa resolve 1x7k… --decide abort --reason "its coordinator is gone for good" --participant north=postgres://n/bank`,
		Long: `Without --decide it ends a HEURISTIC transaction: a branch ended differently from the
decision, and you have corrected that by hand.

With --decide commit or abort it decides for a branch in doubt that the journal does not
know, and that is too old for presumed abort. ID is then the one that "xa ls" shows as in
doubt. It never overrules a decision. A decision to commit covers the branches that are
in doubt now: name all participants, and make sure that none is missing.`,
		RunE: func(c *cobra.Command, args []string) error {
			if decision != "" && decision != string(twopc.Commit) && decision != string(twopc.Abort) {
				return usage("--decide %s is not known; it is commit or abort", decision)
			}
			if decision != "" && !runName.MatchString(args[0]) {
				return usage("--decide is about a branch in doubt: name it as interlock xa ls does, which is ID.RUN and not %s", args[0])
			}
			if decision == "" {
				return x.runOperation(c.Context(), "resolved", args[0], func(ctx context.Context, j *journal.Journal, by coordinator.By) error {
					return twopc.NewOperator(j).Resolve(ctx, args[0], by)
				})
			}
			if err := x.manage(c.Context(), func(ctx context.Context, _ *journal.Journal, m *twopc.Engine, missing error) error {
				if missing != nil {
					return missing
				}
				return m.Settle(ctx, args[0], twopc.Decision(decision), twopc.By{Actor: x.by, Reason: x.reason})
			}); err != nil {
				return err
			}
			return x.done("resolved", args[0])
		},
	})
	c.Flags().StringVar(&decision, "decide", "", "commit or abort")
	completes(c, "decide", "commit", "abort")
	return c
}
