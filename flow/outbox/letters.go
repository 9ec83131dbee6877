package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// A DeadLetter is a message that is not delivered any more.
type DeadLetter struct {
	Message
	Place     int64 // in the order of all messages; see [DeadLetterQuery]
	Slice     int
	Attempts  int
	LastError string
	Added     time.Time // by the clock of the database, as is Died
	Died      time.Time
}

// A DeadLetterQuery selects dead letters. The zero value selects the first hundred.
type DeadLetterQuery struct {
	Topic string // if not empty
	Key   string // if not empty
	After int64  // only those after that Place
	Limit int    // at most so many; 0 means 100
}

// A NotFoundError means that there is no such message of that id. It is Definite.
type NotFoundError struct {
	Table string
	What  string // "dead letter", "undelivered message" or "waiting message"
	ID    string
}

// Error returns a message with the table, What and the id.
func (e *NotFoundError) Error() string {
	return fmt.Sprintf("outbox %s has no %s %q", e.Table, e.What, e.ID)
}

// ErrorKind returns [interlock.Definite].
func (e *NotFoundError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// DeadLetters lists dead letters in the order in which they were added, without their
// headers and payload.
func (t Table) DeadLetters(ctx context.Context, db driver.SQL, q DeadLetterQuery) ([]DeadLetter, error) {
	const op = "list dead letters"
	s, err := t.open(op, db)
	if err != nil {
		return nil, err
	}
	where, args := ` where id > ?`, []any{q.After}
	if q.Topic != "" {
		where, args = where+` and topic = ?`, append(args, q.Topic)
	}
	if q.Key != "" {
		where, args = where+` and msg_key = ?`, append(args, q.Key)
	}
	if q.Limit <= 0 {
		q.Limit = 100
	}
	return s.letters(ctx, op, `{empty}, null`, where+fmt.Sprintf(` order by id limit %d`, q.Limit), args...)
}

// DeadLetter returns a dead letter with headers and payload. An id that was added again can have
// several dead letters: every method that takes an id means the oldest. If there is none, the error
// is a [*NotFoundError].
func (t Table) DeadLetter(ctx context.Context, db driver.SQL, id string) (DeadLetter, error) {
	const op = "show dead letter"
	s, err := t.open(op, db)
	if err != nil {
		return DeadLetter{}, err
	}
	found, err := s.letters(ctx, op, `headers, payload`, ` where message_id = ? order by id limit 1`, id)
	if err != nil {
		return DeadLetter{}, err
	}
	if len(found) == 0 {
		return DeadLetter{}, s.notFound("dead letter", id)
	}
	return found[0], nil
}

func (s store) letters(ctx context.Context, op, body, where string, args ...any) (found []DeadLetter, err error) {
	err = s.Each(ctx, `select id, message_id, slice, topic, msg_key, attempts, last_error, added, died, `+body+` from {dead}`+where, args,
		func(scan func(...any) error) error {
			var l DeadLetter
			var headers string
			var added, died int64
			if err := scan(&l.Place, &l.ID, &l.Slice, &l.Topic, &l.Key, &l.Attempts, &l.LastError, &added, &died, &headers, &l.Payload); err != nil {
				return err
			}
			l.Added, l.Died = time.UnixMicro(added).UTC(), time.UnixMicro(died).UTC()
			var err error
			l.Headers, err = decoded(headers)
			found = append(found, l)
			return err
		})
	return found, s.failed(err)
}

func (s store) notFound(what, id string) error {
	return &NotFoundError{Table: s.table.name(), What: what, ID: id}
}
