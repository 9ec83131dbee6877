package outbox

import (
	"context"
	"slices"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// One statement adds so many messages, or bytes of them, at most.
const (
	addRows  = 1000
	addBytes = 4 << 20
)

// Add stores messages for delivery, in the user's transaction: they are sent if it
// commits, and only then. A message without an ID is given a random one. It takes
// one statement (on MariaDB two, if there are keys) for up to 1000 messages of 4 MiB
// in all, and one more for each further such number.
//
// Messages of one topic and key are in the order in which their transactions commit,
// because Add locks the topic and key until the transaction ends: it waits for others
// that added to it and are still under way. The locks of one call are taken in one
// order everywhere; those of several calls are not, so that the database may have to
// end a transaction (Retryable). A lock that was not to be had in time is Retryable
// too. Each key takes a place in PostgreSQL's table of locks.
//
// What cannot be stored is a [*MessageError], and nothing is sent to the database;
// an id that waits already is a [*DuplicateError], after which, as after any error
// of the database, the transaction must be rolled back.
func (t Table) Add(ctx context.Context, db driver.SQL, messages ...Message) error {
	return t.AddAt(ctx, db, time.Time{}, messages...)
}

// AddAt is Add of messages that are not delivered before a time, by the database's
// clock. What is added to their keys later waits for them. Times before 1970 and
// after 9999 are a [*MessageError]; the zero time is now.
func (t Table) AddAt(ctx context.Context, db driver.SQL, notBefore time.Time, messages ...Message) error {
	const op = "add to outbox"
	s, err := t.open(op, db)
	if err != nil || len(messages) == 0 {
		return err
	}
	if !notBefore.IsZero() && (notBefore.Unix() < 0 || notBefore.Year() > 9999) {
		return &MessageError{ID: messages[0].ID, Why: "it is not to be sent before " + notBefore.String()}
	}
	all := make([]prepared, len(messages))
	var lanes []int64
	for i, m := range messages {
		if all[i], err = prepare(i, m); err != nil {
			return err
		}
		if m.Key != "" {
			lanes = append(lanes, all[i].lane)
		}
	}
	slices.Sort(lanes)
	lanes = slices.Compact(lanes)
	for chunk := range chunks(all) {
		// All locks come with the first chunk, so that they are in one order.
		if err := s.insert(ctx, add{chunk, lanes, micro(notBefore)}); err != nil {
			return s.failed(err)
		}
		lanes = nil
	}
	return nil
}

// add is what one insert does: lock the lanes, in order; then draw ids and store.
type add struct {
	messages  []prepared
	lanes     []int64 // sorted
	notBefore int64   // microseconds since 1970, 0 if it is now
}

// micro is a time as it is stored.
func micro(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// chunks divides messages into what one statement takes.
func chunks(all []prepared) func(yield func([]prepared) bool) {
	return func(yield func([]prepared) bool) {
		start, size := 0, 0
		for i, m := range all {
			if i > start && (i-start == addRows || size+m.size() > addBytes) {
				if !yield(all[start:i]) {
					return
				}
				start, size = i, 0
			}
			size += m.size()
		}
		yield(all[start:])
	}
}
