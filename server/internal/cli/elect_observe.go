package cli

import (
	"context"
	"encoding/base64"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/elect"
)

func (a *app) observeCommand() *cobra.Command {
	once := false
	c := &cobra.Command{
		Use: "observe NAME", Short: "Print the leader at each change", Args: oneArg("name"),
		Example: `  interlock elect observe billing
  interlock elect observe billing -o json         one line of JSON each; leader is null if there is none
  interlock elect observe billing --once          who leads now`,
		ValidArgsFunction: a.completeName,
		RunE: func(c *cobra.Command, args []string) error {
			if c.ArgsLenAtDash() >= 0 {
				return usage("elect observe takes no command; an election that is led cannot be called observe here")
			}
			if err := checkName(args[0]); err != nil {
				return err
			}
			return a.observe(c.Context(), args[0], once)
		},
	}
	c.Flags().BoolVar(&once, "once", false, "exit after the first line")
	return c
}

// observe prints leaders until a signal arrives or the output is closed.
func (a *app) observe(ctx context.Context, name string, once bool) error {
	ctx, stop := untilStopped(ctx)
	defer stop()
	var p place
	// An observer needs no guarantee of the backend.
	if err := p.open(ctx, a, 0, elect.Options{InProcess: true}); err != nil {
		return err
	}
	defer p.close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var printing error
	done := false
	err := p.elections.Observe(ctx, name, func(l elect.Leader) {
		if done {
			return
		}
		if printing = a.printLeader(name, l); printing != nil || once {
			done = true
			cancel()
		}
	})
	switch {
	case done:
		return printing
	case signalError(ctx) != nil:
		return signalError(ctx)
	}
	return p.explain(err)
}

// leaderView is the JSON form of a leader.
type leaderView struct {
	Identity string          `json:"identity"`
	Owner    string          `json:"owner"`
	Token    interlock.Token `json:"token,string,omitempty"`
	Since    *time.Time      `json:"since,omitempty"`       // by the backend's clock
	Data     string          `json:"data,omitempty"`        // if it is text
	Base64   string          `json:"data_base64,omitempty"` // if it is not
	Nominee  string          `json:"nominee,omitempty"`
}

func (a *app) printLeader(name string, l elect.Leader) error {
	view := struct {
		Name   string      `json:"name"`
		Leader *leaderView `json:"leader"` // null if there is no leader
	}{Name: name}
	t := line("%s has no leader\n", name)
	if l.Owner != "" {
		view.Leader = viewLeader(l)
		t = line("%s leads %s, token %d", l.Identity, name, l.Token)
		if len(l.Data) > 0 {
			t += line(", %s", string(l.Data))
		}
		if l.Nominee != "" {
			t += line(", to be followed by %s", l.Nominee)
		}
		t += "\n"
	}
	return a.print(view, t)
}

func viewLeader(l elect.Leader) *leaderView {
	v := &leaderView{Identity: l.Identity, Owner: l.Owner, Token: l.Token, Nominee: l.Nominee}
	if !l.Since.IsZero() {
		since := l.Since.UTC()
		v.Since = &since
	}
	if utf8.Valid(l.Data) {
		v.Data = string(l.Data)
	} else {
		v.Base64 = base64.StdEncoding.EncodeToString(l.Data)
	}
	return v
}
