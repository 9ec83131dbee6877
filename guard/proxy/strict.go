package proxy

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/transact"
)

// cleaning bounds the work after a call, even if its context has ended.
const cleaning = 5 * time.Second

// NewRecorded returns a Caller with marks in a SQL database, which it holds while a call is
// made. It records calls in the table of calls, which [Calls.Create] creates in the same
// database. A call takes two transactions: two commits, and one connection at a time. marks
// must accept an equal token again; Strict marks are a Bug.
func NewRecorded[T any](db driver.Beginner[T], marks fence.Marks, calls Calls, o *Options) (*Caller, error) {
	table, _ := marks.(fence.Table)
	column, _ := marks.(fence.Column)
	if table.Strict || column.Strict {
		return nil, failure.Bug("make caller", "", "Strict marks are not supported: a call enters its token twice")
	}
	options := o.resolve()
	return newCaller(&strict{db: lifted[T]{db}, marks: marks, calls: calls, options: options}, options), nil
}

type strict struct {
	db      driver.Beginner[session]
	marks   fence.Marks
	calls   Calls
	options Options
}

// attempt is the state of one attempt.
type attempt struct {
	number int64     // counted by the record; 0 if there is none
	called time.Time // when the first attempt began, as the record has it
	tried  bool      // send was run
	status int
	err    error // of send
}

// sent reports whether the call may have been sent.
func (a *attempt) sent() bool {
	return a.tried && (a.err == nil || interlock.Kind(a.err) == interlock.Uncertain)
}

func (s *strict) call(ctx context.Context, c interlock.Claim, call *Call, send Send) (status int, tried bool, err error) {
	var a attempt
	enter := func(fn func(context.Context, session) error) error {
		return fence.Tx(ctx, s.db, s.marks, c, call.Resource, fn)
	}
	// The mark is durable before anything is visible: a crash must not forget that
	// this token has entered.
	err = enter(func(ctx context.Context, tx session) error { return s.begin(ctx, tx, call, &a) })
	if err == nil {
		err = enter(func(ctx context.Context, tx session) error { return s.held(ctx, tx, c, call, send, &a) })
	}
	switch {
	case !a.sent():
		s.withdraw(ctx, call, a)
		return 0, a.tried, unsent(err)
	case a.err != nil:
		return 0, true, a.err
	case err != nil: // the answer arrived, but the claim or the session ended
		err = s.outside(ctx, func(ctx context.Context, tx driver.SQL) error { return s.record(ctx, tx, call, a) })
	}
	if err != nil {
		err = &interlock.Error{Op: "record call", Name: call.Operation, Kind: interlock.Uncertain, Err: err}
	}
	return a.status, true, err
}

// begin records that the call is about to be sent.
func (s *strict) begin(ctx context.Context, tx driver.SQL, call *Call, a *attempt) error {
	if call.Operation == "" {
		return nil
	}
	number, r, err := s.calls.begin(ctx, tx, call)
	switch {
	case err != nil:
		return err
	case r.Settled:
		return call.done(r)
	case number > 1 && !s.options.Repeat:
		return &InDoubtError{Resource: call.Resource, Operation: call.Operation, Status: r.Status}
	}
	a.number, a.called = number, r.Called
	return nil
}

// held sends while tx holds the mark, and records the answer.
func (s *strict) held(ctx context.Context, tx session, c interlock.Claim, call *Call, send Send, a *attempt) error {
	h, err := hold(ctx, tx, s.options.now)
	if err != nil {
		return err
	}
	defer h.end()
	call.ready = func() error {
		if err := valid(c, call.Resource); err != nil {
			return err
		}
		return h.lasts(call.Resource)
	}
	if err := s.unanswered(ctx, tx, call); err != nil {
		return err
	}
	if err := call.ready(); err != nil {
		return err
	}
	a.tried = true
	if a.status, a.err = send(withCall(h.ctx, call), call); a.err != nil {
		return a.err
	}
	h.end()
	return s.record(ctx, tx, call, *a)
}

// unanswered returns an error if another process, under the same token, has had the answer of the call since begin.
func (s *strict) unanswered(ctx context.Context, tx driver.SQL, call *Call) error {
	if call.Operation == "" || !s.options.Repeat {
		return nil
	}
	r, err := s.calls.Show(ctx, tx, call.Resource, call.Operation)
	if err == nil && r.Settled {
		err = call.done(r)
	}
	return err
}

func (s *strict) record(ctx context.Context, tx driver.SQL, call *Call, a attempt) error {
	if call.Operation == "" {
		return nil
	}
	switch m := s.options.meaning(a.status); {
	case m == Final:
		return s.calls.settled(ctx, tx, "record call", call.Key, a.status)
	case m == NotDone && a.number == 1:
		return s.calls.withdraw(ctx, tx, call, a.called)
	}
	return s.calls.answered(ctx, tx, call, a.number, a.status)
}

// withdraw removes an attempt that was certainly not sent from the record. If an earlier attempt
// exists, it may have been sent, so the record stays. If withdraw fails, the call stays in
// doubt.
func (s *strict) withdraw(ctx context.Context, call *Call, a attempt) {
	if a.number == 0 {
		return
	}
	_ = s.outside(ctx, func(ctx context.Context, tx driver.SQL) error {
		if a.number > 1 {
			return s.calls.uncount(ctx, tx, call, a.number)
		}
		return s.calls.withdraw(ctx, tx, call, a.called)
	})
}

// outside runs fn in a transaction that enters no mark, even if ctx has ended.
func (s *strict) outside(ctx context.Context, fn func(context.Context, driver.SQL) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleaning)
	defer cancel()
	return transact.Do(ctx, s.db.Begin, "", func(tx driver.Tx[session]) error { return fn(ctx, tx) })
}
