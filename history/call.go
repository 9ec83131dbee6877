package history

import (
	"cmp"
	"errors"

	"github.com/interlock-dev/interlock"
)

// A Call is a running operation. Call exactly one of its methods, once, after the reply.
type Call struct {
	w     *Writer
	start Event
}

// Invoke records that an operation is about to begin, and sets e.Kind. Call it before the
// request is sent.
func (w *Writer) Invoke(e Event) Call {
	if e.Src == "" {
		e.Src = caller(1)
	}
	e.Kind = Invoke
	e.Seq = w.Record(e)
	return Call{w: w, start: e}
}

// OK records that it was done. value is the read or written value, or empty.
func (c Call) OK(value string) { c.end(Event{Kind: OK, Value: value}) }

// Granted records that an acquire got the lock.
func (c Call) Granted(token interlock.Token, owner string) {
	c.end(Event{Kind: Grant, Token: token, Owner: owner})
}

// Fail records that it was definitely not done.
func (c Call) Fail(why string) { c.end(Event{Kind: Fail, Value: why}) }

// Info records that its outcome is unknown.
func (c Call) Info(why string) { c.end(Event{Kind: Info, Value: why}) }

// Reject records that a guard rejected it; seen is the token of the guard's mark.
func (c Call) Reject(seen interlock.Token) { c.end(Event{Kind: Reject, Seen: seen}) }

// EndWith ends the call with an event of any kind that ends a call. If Token, Owner, ID, Amount
// or Stamp of e is zero, the call's value is used.
func (c Call) EndWith(e Event) { c.end(e) }

// End records the outcome by err: nil is OK, an [interlock.StaleTokenError] Reject, an
// uncertain error Info, and everything else Fail.
func (c Call) End(err error) {
	var stale *interlock.StaleTokenError
	switch {
	case err == nil:
		c.end(Event{Kind: OK})
	case errors.As(err, &stale):
		c.end(Event{Kind: Reject, Seen: stale.Seen, Value: err.Error()})
	case interlock.Kind(err) == interlock.Uncertain:
		c.end(Event{Kind: Info, Value: err.Error()})
	default:
		c.end(Event{Kind: Fail, Value: err.Error()})
	}
}

func (c Call) end(e Event) {
	s := c.start
	e.Lane, e.Op, e.Key, e.Cause, e.Src = s.Lane, s.Op, s.Key, s.Seq, caller(2)
	e.Token = cmp.Or(e.Token, s.Token)
	e.Owner = cmp.Or(e.Owner, s.Owner)
	e.ID = cmp.Or(e.ID, s.ID)
	e.Amount = cmp.Or(e.Amount, s.Amount)
	e.Stamp = cmp.Or(e.Stamp, s.Stamp)
	c.w.Record(e)
}
