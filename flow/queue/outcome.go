package queue

import (
	"errors"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// outcome is an error that chooses the outcome of a message.
type outcome struct {
	driver.Outcome
	after time.Duration
	err   error
	whole bool // for all messages of a batch
}

// Error is the reason.
func (o *outcome) Error() string { return o.err.Error() }

// Unwrap is the reason.
func (o *outcome) Unwrap() error { return o.err }

// Retry is an error of a handler: the message is delivered again after a pause, before later
// messages of its key. It counts as an attempt, but never makes a dead letter.
func Retry(after time.Duration, reason error) error {
	return &outcome{Outcome: driver.Retry, after: max(0, after), err: orUnknown(reason)}
}

// Dead is an error of a handler: the message becomes a dead letter, and its key continues.
func Dead(reason error) error { return &outcome{Outcome: driver.Dead, err: orUnknown(reason)} }

// Park is an error of a handler: the message and its key wait until an operator resumes the key. A
// message without a key becomes a dead letter.
func Park(reason error) error { return &outcome{Outcome: driver.Park, err: orUnknown(reason)} }

func orUnknown(reason error) error {
	if reason == nil {
		return errors.New("no reason given")
	}
	return reason
}

// judgement decides the outcome of a handler's error.
type judgement struct {
	failing  Failing
	attempts int
	pause    backoff.Policy
	random   func() float64
}

// judge returns the settlement of a message whose handler returned an error. gone means that the end of
// the claim or of the consumer interrupted the handler: the message is released.
func (j judgement) judge(attempt int, err error, gone bool) (s driver.Settlement) {
	var o *outcome
	switch {
	case errors.As(err, &o):
		s.Outcome, s.After = o.Outcome, o.after
	case gone:
		s.Outcome = driver.Release
	case errors.Is(err, interlock.ErrHeld):
		s.Outcome, s.Uncounted, s.After = driver.Retry, true, j.pause.Delay(1, j.random())
	case j.failing == Skip && attempt >= j.attempts:
		s.Outcome = driver.Dead
	case j.failing == Pause && attempt >= j.attempts:
		s.Outcome = driver.Park
	default:
		s.Outcome, s.After = driver.Retry, j.pause.Delay(attempt, j.random())
	}
	s.Reason = reason(err)
	return s
}

// reason returns the text of an error, as a queue can store it.
func reason(err error) string {
	text := []byte(err.Error())
	if len(text) > maxReason {
		text = text[:maxReason]
	}
	return sqltable.Clean(string(text))
}
