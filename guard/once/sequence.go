package once

import (
	"context"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

// place is the position of a sequence: the last message that had its effect.
type place struct {
	epoch, seq int64
	hash       []byte // of its payload; nil if the message was skipped
}

// nowhere is the place of a key without messages.
var nowhere = place{epoch: -1}

// compare returns the outcome of a message for a key at a place. Done means that the message
// comes next. These are all rules of sequences; the rest is locking.
func compare(at place, consumer string, m Message) (Outcome, error) {
	switch {
	case m.Epoch < at.epoch, m.Epoch == at.epoch && m.Seq < at.seq:
		return Duplicate, nil
	case m.Epoch == at.epoch && m.Seq == at.seq:
		if at.hash != nil && !m.same(at.hash) {
			return Mismatched, &MismatchError{Consumer: consumer, Message: m.name()}
		}
		return Duplicate, nil
	}
	want := int64(1)
	if m.Epoch == at.epoch {
		want = at.seq + 1
	}
	if m.Seq > want {
		return Undone, &GapError{Consumer: consumer, Key: m.Key, Epoch: m.Epoch, Want: want, Got: m.Seq}
	}
	return Done, nil
}

// follow runs once for a message with a sequence number.
func (t tables) follow(ctx context.Context, m Message, fn func(context.Context) error) (Outcome, error) {
	p := place{m.Epoch, m.Seq, m.hash()}
	if t.Optimistic {
		return t.followLate(ctx, m, p, fn)
	}
	// If the message before it was committed between the two statements, the lock
	// of the second one makes the next attempt certain.
	for range 2 {
		moved, err := t.advance(ctx, m.Key, p)
		if err != nil {
			return Undone, err
		}
		if moved {
			return finished(fn(ctx))
		}
		at, err := t.place(ctx, m.Key, ` for update`)
		if err != nil {
			return Undone, err
		}
		if outcome, err := compare(at, t.Consumer, m); err != nil || outcome != Done {
			return outcome, err
		}
	}
	return Undone, retryable("receive", m.name(), "the sequence moved meanwhile")
}

// followLate moves the sequence after the effect.
func (t tables) followLate(ctx context.Context, m Message, p place, fn func(context.Context) error) (Outcome, error) {
	at, err := t.place(ctx, m.Key, ``)
	if err != nil {
		return Undone, err
	}
	if outcome, err := compare(at, t.Consumer, m); err != nil || outcome != Done {
		return outcome, err
	}
	if err := fn(ctx); err != nil {
		return Undone, err
	}
	moved, err := t.advance(ctx, m.Key, p)
	if err == nil && !moved {
		return Undone, overtaken(m)
	}
	return finished(err)
}

// Skip moves the sequence of key on to (epoch, seq), as if every message up to there had had
// its effect. Use it to begin in the middle of a stream, or to skip a message that will not
// arrive. It never moves back, and skipped messages are duplicates from then on. It takes
// effect when the transaction commits.
func (in Inbox) Skip(ctx context.Context, db driver.SQL, key string, epoch, seq int64) error {
	const op = "skip"
	m := Message{Key: key, Epoch: epoch, Seq: seq}
	if seq < 1 {
		return failure.Bug(op, key, "sequence number %d; numbers begin with 1", seq)
	}
	if err := m.check(); err != nil {
		return err
	}
	t, err := in.open(op, m.name(), db)
	if err != nil {
		return err
	}
	return t.skip(ctx, key, place{epoch: epoch, seq: seq})
}

// overtaken returns the error of the slower of two optimistic transactions.
func overtaken(m Message) error {
	return &interlock.Error{Op: "receive", Name: m.name(), Kind: interlock.Retryable, Err: errOvertaken}
}
