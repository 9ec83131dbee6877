package sequence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// DefaultAttempts is the default of Poison.Attempts.
const DefaultAttempts = 5

// Poison are the options of [WithDeadLetters]. The zero value works.
type Poison struct {
	// Attempts is the number of rejections after which an event becomes a dead letter, counted by
	// this process; 0 means [DefaultAttempts].
	Attempts int
	// Refuses reports whether an error of the handler rejects the event itself; nil means that those
	// of kind Definite and Bug do. A panic always does.
	Refuses func(error) bool
}

// WithDeadLetters returns a handler that makes a dead letter of an event that h rejects
// repeatedly. It does so in the transaction that moves the key, so that later events continue.
// The place of the event is an open hole: [Replay] passes it to a handler later, as Late, and
// [Table.Discard] deletes it. So does h if the event arrives again and h handles it. lend returns the
// transaction of h as SQL, such as postgres.Tx.
func WithDeadLetters[T any](t Table, stream string, lend func(T) driver.SQL, h Handler[T], o *Poison) Handler[T] {
	b := &burier[T]{table: t, stream: stream, lend: lend, handler: h, refused: map[place]refusal{}}
	if o != nil {
		b.options = *o
	}
	b.options.Attempts = cmp.Or(max(b.options.Attempts, 0), DefaultAttempts)
	if b.options.Refuses == nil {
		b.options.Refuses = func(err error) bool {
			kind := interlock.Kind(err)
			return kind == interlock.Definite || kind == interlock.Bug
		}
	}
	return b.handle
}

type place struct {
	key string
	at  Position
}

// refusal is the number of rejections of an event, and the last error.
type refusal struct {
	times int
	err   string
}

type burier[T any] struct {
	table   Table
	stream  string
	lend    func(T) driver.SQL
	handler Handler[T]
	options Poison

	mu      sync.Mutex
	refused map[place]refusal
}

// handle makes a dead letter of an event that was rejected too often, without a call of the handler.
// After a failure of the handler the transaction may be unusable.
func (b *burier[T]) handle(ctx context.Context, in T, d Delivery) (err error) {
	if ctx.Value(replay{}) != nil {
		return b.handler(ctx, in, d)
	}
	at := place{d.Key, d.Position}
	if r := b.count(at, ""); r.times >= b.options.Attempts {
		if err := b.table.bury(ctx, b.lend(in), b.stream, d, r); err != nil {
			return err
		}
		return nil // the count stays: without the commit the event comes again
	}
	returned := false
	defer func() {
		switch {
		case !returned:
			b.count(at, "panic")
		case err == nil:
			b.forget(at)
		case ctx.Err() == nil && b.options.Refuses(err):
			b.count(at, err.Error())
		}
	}()
	err = b.handler(ctx, in, d)
	returned = true
	if err == nil && d.Late { // it may have a letter of another process
		if err = b.table.remove(ctx, b.lend(in), b.stream, d.Key, d.Position); errors.Is(err, ErrNoHole) {
			err = nil
		}
	}
	return err
}

// maxCounted bounds the counted events; at the bound all counts begin again.
const maxCounted = 10_000

// count adds a rejection, unless why is empty, and returns the rejections so far.
func (b *burier[T]) count(at place, why string) refusal {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.refused[at]
	if why != "" {
		if len(b.refused) >= maxCounted {
			clear(b.refused)
		}
		r = refusal{r.times + 1, why}
		b.refused[at] = r
	}
	return r
}

func (b *burier[T]) forget(at place) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.refused, at)
}

// A DeadLetter is an event that a handler rejected.
type DeadLetter struct {
	Event
	Attempts int
	Error    string // of the last one
	Died     time.Time
}

// bury stores a letter and its hole, in the transaction that moves the key. If the hole exists and was
// closed, it opens it again.
func (t Table) bury(ctx context.Context, db driver.SQL, stream string, e Delivery, r refusal) error {
	const op = "bury event"
	q, err := t.open(op, e.Key, db)
	if err != nil {
		return err
	}
	where := ` where stream = ? and name = ? and epoch = ? and `
	at := []any{stream, e.Key, e.Epoch, e.Seq}
	payload := e.Payload
	if payload == nil {
		payload = []byte{}
	}
	_, err = q.Exec(ctx, `delete from {dead}`+where+`seq = ?`, at...)
	if err == nil {
		_, err = q.Exec(ctx, `insert into {dead} (stream, name, epoch, seq, payload, attempts, error, died_at)
			values (?, ?, ?, ?, {?}, ?, {?}, {now})`, append(at, payload, r.times, sqltable.Clean(fmt.Sprintf("%.2000s", r.err)))...)
	}
	var reopened int64
	if err == nil {
		reopened, err = q.Exec(ctx, `update {holes} set closed_at = null`+where+`from_seq = ? and to_seq = ? and closed_at is not null`, append(at, e.Seq)...)
	}
	if err == nil && reopened == 0 {
		_, err = q.Exec(ctx, `insert into {holes} (stream, name, epoch, from_seq, to_seq, opened_at)
			values (?, ?, ?, ?, ?, {now})`, append(at, e.Seq)...)
	}
	if err == nil {
		err = q.count(ctx, stream, e.Key, 1)
	}
	return err
}

// DeadLetters lists dead letters of a stream, the oldest first, at most limit. A limit below 1 is a
// Bug.
func (t Table) DeadLetters(ctx context.Context, db driver.SQL, stream string, limit int) (letters []DeadLetter, err error) {
	q, err := t.list("list dead letters", db, stream, limit)
	if err != nil {
		return nil, err
	}
	var died int64
	err = q.Each(ctx, `select name, epoch, seq, payload, attempts, error, {micros died_at} from {dead}
		where stream = ? order by died_at, name, epoch, seq limit ?`, []any{stream, limit}, func(scan func(...any) error) error {
		var l DeadLetter
		err := scan(&l.Key, &l.Epoch, &l.Seq, &l.Payload, &l.Attempts, &l.Error, &died)
		l.Died = time.UnixMicro(died).UTC()
		letters = append(letters, l)
		return err
	})
	return letters, err
}

// Discard deletes a dead letter and closes its hole: if the event arrives again, it is a duplicate. If
// there is no such letter, the error is an [ErrNoHole].
func (t Table) Discard(ctx context.Context, db driver.SQL, stream, key string, at Position) error {
	const op = "discard dead letter"
	if err := checkNames(op, stream, key); err != nil {
		return err
	}
	q, err := t.open(op, key, db)
	if err != nil {
		return err
	}
	if _, err := q.lock(ctx, stream, key); err != nil { // the key first, as by a move
		return err
	}
	if err := t.remove(ctx, db, stream, key, at); err != nil {
		return err
	}
	_, err = q.close(ctx, stream, Hole{key, at.Epoch, at.Seq, at.Seq})
	return err
}

// remove deletes a letter.
func (t Table) remove(ctx context.Context, db driver.SQL, stream, key string, at Position) error {
	const op = "remove dead letter"
	q, err := t.open(op, key, db)
	if err != nil {
		return err
	}
	n, err := q.Exec(ctx, `delete from {dead} where stream = ? and name = ? and epoch = ? and seq = ?`, stream, key, at.Epoch, at.Seq)
	if err == nil && n == 0 {
		err = noHole(key, at)
	}
	return err
}

// replay is the key of a context in which no handler makes a dead letter.
type replay struct{}

// Replay passes a dead letter to a handler, as Late, and closes its hole, in one transaction. After an
// error of h the letter remains. If it does not exist any more, the error is an [ErrNoHole].
func Replay[T any](ctx context.Context, db driver.Beginner[T], t Table, stream string, l DeadLetter, lend func(T) driver.SQL, h Handler[T]) error {
	_, err := InTx(db, t).Fill(ctx, stream, l.Key, l.Position, func(ctx context.Context, in T) error {
		if err := t.remove(ctx, lend(in), stream, l.Key, l.Position); err != nil {
			return err
		}
		return h(context.WithValue(ctx, replay{}, true), in, Delivery{Event: l.Event, Late: true})
	})
	return err
}
