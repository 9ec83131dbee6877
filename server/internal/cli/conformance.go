package cli

import (
	"context"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/server/internal/lab/threepc"
	"github.com/interlock-dev/interlock/txn/barrier/conformance"
)

func (a *app) conformanceCommand() *cobra.Command {
	var o conformance.Options
	var protocols []string
	c := &cobra.Command{
		Use: "conformance URL", Short: "Test a participant of sagas, TCC or two-phase commit",
		Args: oneArg("URL"),
		Long: `Plays the messages of a coordinator to a participant over HTTP: in every order,
duplicated, late and concurrently. It checks answers and effects.
docs/reference/conformance.md has the expected answers, and what a participant must
offer. The test writes accounts and transactions with generated names, and the
participant keeps them.`,
		Example: `  interlock conformance http://127.0.0.1:7470
  interlock conformance http://127.0.0.1:7470 --protocol saga -o json`,
		RunE: func(c *cobra.Command, args []string) error {
			o.URL = args[0]
			for _, p := range protocols {
				if !slices.Contains(conformance.Protocols(), conformance.Protocol(p)) {
					return usage("--protocol %s is not known; it is one of %v", p, conformance.Protocols())
				}
				o.Protocols = append(o.Protocols, conformance.Protocol(p))
			}
			return a.conform(c.Context(), o)
		},
	}
	c.Flags().StringSliceVar(&protocols, "protocol", nil, "saga, tcc or 2pc; several with commas (default: saga,tcc)")
	c.Flags().StringVar(&o.Inspect, "inspect", "", "URL that reports an account (default: the same URL)")
	c.Flags().IntVar(&o.Rounds, "rounds", 0, "times that each pair of messages is sent concurrently (default: 10)")
	c.Flags().DurationVar(&o.Patience, "patience", 0, "longest time to wait for an answer (default: 10s)")
	completes(c, "protocol", "saga", "tcc", "2pc")
	return c
}

// conformView is the JSON form of a report; see docs/reference/cli.md.
type conformView struct {
	Plays    int               `json:"plays"`
	Messages int               `json:"messages"`
	Failures []conformFailView `json:"failures"`
}

type conformFailView struct {
	Protocol  string   `json:"protocol"`
	Play      string   `json:"play,omitempty"`
	Sequence  []string `json:"sequence"`
	Position  int      `json:"position"`
	Operation string   `json:"operation"`
	Expected  string   `json:"expected"`
	Got       string   `json:"got"`
}

func (a *app) conform(ctx context.Context, o conformance.Options) error {
	ctx, stop := untilStopped(ctx)
	defer stop()
	report, err := a.play(ctx, o)
	if interlock.Kind(err) == interlock.Bug {
		return usage("cannot judge the participant: %w", err)
	}
	if err != nil && signalError(ctx) == nil {
		return fail(exitUnreachable, "cannot judge the participant: %w", err)
	}
	v := conformView{Plays: report.Plays, Messages: report.Messages, Failures: []conformFailView{}}
	var t text
	for _, f := range report.Failures {
		view := conformFailView{string(f.Protocol), f.Play, nil, f.Position, string(f.Operation), f.Expected, f.Got}
		for _, op := range f.Sequence {
			view.Sequence = append(view.Sequence, string(op))
		}
		v.Failures = append(v.Failures, view)
		t += line("%s\n", f.String())
	}
	t += line("%d plays, %d messages, %d failures\n", v.Plays, v.Messages, len(v.Failures))
	if err := a.print(v, t); err != nil {
		return err
	}
	if err := signalError(ctx); err != nil {
		return fail(codeOf(err), "not all was played: %w", err)
	}
	if len(v.Failures) > 0 {
		return fail(exitFailed, "the participant does not conform: see docs/reference/conformance.md")
	}
	return nil
}

// progress is the interval at which a long play reports its progress.
const progress = 10 * time.Second

// play tests a participant, and reports progress every few seconds.
func (a *app) play(ctx context.Context, o conformance.Options) (conformance.Report, error) {
	count := &counted{}
	o.Client = &http.Client{Transport: count}
	over, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		ticker := time.NewTicker(progress)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				a.say("still playing to the participant: %d requests so far", count.requests.Load())
			case <-over:
				return
			}
		}
	}()
	defer func() { close(over); <-gone }()
	return conformance.Run(ctx, o)
}

// counted is the default transport with a count of requests.
type counted struct{ requests atomic.Int64 }

// RoundTrip implements [http.RoundTripper].
func (c *counted) RoundTrip(r *http.Request) (*http.Response, error) {
	c.requests.Add(1)
	return http.DefaultTransport.RoundTrip(r)
}

func (a *app) labCommand() *cobra.Command {
	return group(&cobra.Command{
		Use: "lab", Short: "Simulate protocols under faults",
		Example: `  interlock lab commit       two-phase and three-phase commit beside each other`,
	}, a.labCommitCommand())
}

func (a *app) labCommitCommand() *cobra.Command {
	return &cobra.Command{
		Use: "commit", Short: "Compare two-phase and three-phase commit", Args: noArgs,
		Example: `  interlock lab commit
  interlock lab commit -o json`,
		Long: `Simulates both protocols, and two-phase commit with its decision in a consensus
register, and compares messages, blocking and split decisions. It runs them without
faults, with a coordinator crash at every point, and under a partition. The
simulation is deterministic and takes a few seconds.`,
		RunE: func(*cobra.Command, []string) error {
			r := threepc.Compare()
			return a.print(r, lines(r.String()))
		},
	}
}
