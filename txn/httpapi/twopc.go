package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/twopc"
)

// commitRequest is a requested two-phase commit: the body for each participant.
type commitRequest struct {
	Branches map[string]json.RawMessage `json:"branches"`
}

// commitView is the answer for a two-phase commit. The state is empty if the journal has none, or does
// not answer.
type commitView struct {
	coordinator.Summary
	Outputs  map[string]json.RawMessage `json:"outputs,omitempty"`
	Branches []twopc.Branch             `json:"branches,omitempty"`
}

func (s *Service) runTwoPC(r *http.Request) (any, error) {
	asked, wait, err := readWaiting[commitRequest](r)
	if err != nil {
		return nil, err
	}
	if len(asked.Branches) == 0 {
		return nil, badRequest("it has no branches")
	}
	for name := range asked.Branches {
		if _, known := s.participants[name]; !known {
			return nil, badRequest("unknown participant %q: start the service with its name and address", name)
		}
	}
	id, run, branches := r.PathValue("id"), "", map[string]*twopc.Remote{}
	err = s.twopc.Run(r.Context(), id, func(ctx context.Context, t *twopc.T) error {
		run = t.XID("").Transaction
		if _, err := witnessDefinition.Join(ctx, t); err != nil {
			return err
		}
		for name, input := range asked.Branches {
			b, err := s.participants[name].Join(ctx, t)
			if err != nil {
				return err
			}
			b.Send(input)
			branches[name] = b
		}
		return nil
	})
	var aborted *twopc.AbortedError
	switch {
	case errors.As(err, &aborted):
		return s.abortedTwoPC(r, run, aborted)
	case err != nil:
		return nil, err
	}
	v := commitView{Summary: coordinator.Summary{ID: id, Decision: twopc.Commit}, Outputs: map[string]json.RawMessage{}}
	for name, b := range branches {
		if text := b.Output(); len(text) > 0 {
			v.Outputs[name] = text
		}
	}
	_ = s.settledTwoPC(r.Context(), &v, wait) // the decision does not depend on it
	return v, nil
}

// longestReason leaves room for the ellipsis of a truncated text.
const longestReason = coordinator.MaxReason - 3

// abortedTwoPC answers a request whose run had no effect. A concurrent run of the same id may still commit,
// so an abort is recorded first; if the other run was first, its decision is returned.
func (s *Service) abortedTwoPC(r *http.Request, run string, why *twopc.AbortedError) (any, error) {
	if !why.Recorded {
		if err := s.twopc.Settle(r.Context(), run, twopc.Abort, twopc.By{Actor: "its own request", Reason: coordinator.Truncate(why.Reason.Error(), longestReason)}); err != nil {
			return nil, err
		}
	}
	return showDone(s.showTwoPC(r))
}

// settledTwoPC waits until the transaction has ended, and fills in its state.
func (s *Service) settledTwoPC(ctx context.Context, v *commitView, wait time.Duration) error {
	if wait > 0 {
		waited, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		_, _ = s.twopc.Wait(waited, v.ID) // the state is read below
	}
	o, err := s.twopc.Look(ctx, v.ID)
	switch {
	case errors.Is(err, twopc.ErrNone): // one participant, or no changes
		return nil
	case err != nil:
		return err
	}
	o.ID = v.ID // the requested id
	v.Summary, v.Branches = summary(o.Summary), o.Branches
	return nil
}

func (s *Service) showTwoPC(r *http.Request) (any, error) {
	wait, err := waiting(r)
	if err != nil {
		return nil, err
	}
	o, err := s.twopc.Look(r.Context(), r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	v := commitView{Summary: coordinator.Summary{ID: r.PathValue("id"), Decision: o.Decision}}
	return v, s.settledTwoPC(r.Context(), &v, wait)
}

// decideTwoPC answers a participant that voted yes and received no decision. The id is the transaction that
// the participant received.
func (s *Service) decideTwoPC(r *http.Request) (any, error) {
	d, err := s.twopc.Decide(r.Context(), r.PathValue("id"))
	return decisionView{string(d)}, err
}

// A witness takes part in every two-phase commit, and changes nothing. A single participant would
// commit without a record, and again after a repeated request.
type witness struct{}

// witnessDefinition has a name that no other participant has.
var witnessDefinition = twopc.Define("_http", driver.Preparer[witness](witness{}))

func (w witness) Begin(context.Context, driver.XID) (witness, driver.Preparing, error) {
	return w, w, nil
}
func (witness) Prepare(context.Context) (driver.Vote, error)      { return driver.VoteReadOnly, nil }
func (witness) CommitOne(context.Context) error                   { return nil }
func (witness) Abandon(context.Context) error                     { return nil }
func (witness) Commit(context.Context, driver.XID) error          { return nil }
func (witness) Rollback(context.Context, driver.XID) error        { return nil }
func (witness) InDoubt(context.Context) ([]driver.InDoubt, error) { return nil, nil }
