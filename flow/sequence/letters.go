package sequence

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// DefaultAttempts is how often an event is refused before it is a dead letter.
const DefaultAttempts = 5

// Poison says when [Bury] gives up. The zero value works.
type Poison struct {
	// Attempts is how often in a row an event has to be refused; 0 means [DefaultAttempts].
	// They are counted by this process.
	Attempts int
	// Refuses tells whether an error of the handler refuses the event for what it is; nil
	// takes those of kind Definite and Bug. A panic always does.
	Refuses func(error) bool
}

// WithDeadLetters makes a dead letter of an event that h refuses again and again, in the
// transaction that moves the key, so that one event cannot hold up those behind it. Its
// place is recorded as an open hole: [Replay] hands it to a handler later, as Late, and
// [Table.Discard] gives it up. lend is the transaction that h gets, as SQL, such as
// postgres.Tx.
func WithDeadLetters[T any](t Table, stream string, lend func(T) driver.SQL, h Handler[T], o *Poison) Handler[T] {
	b := &burier[T]{table: t, stream: stream, lend: lend, handler: h, refused: map[place]refusal{}}
	if o != nil {
		b.options = *o
	}
	b.options.Attempts = cmp.Or(b.options.Attempts, DefaultAttempts)
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

// refusal is how often an event was refused, and the last error.
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

// handle buries what was refused too often, instead of handing it over: a transaction in
// which a handler failed may be of no use any more.
func (b *burier[T]) handle(ctx context.Context, in T, d Delivery) (err error) {
	at := place{d.Key, d.Position}
	if r := b.count(at, ""); r.times >= b.options.Attempts {
		if err := b.table.bury(ctx, b.lend(in), b.stream, d, r); err != nil {
			return err
		}
		return nil // counted until it is known to be committed: it may come again
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
	return err
}

// maxCounted bounds what is counted; beyond it counts begin again.
const maxCounted = 10_000

// count counts a refusal, unless why is empty, and returns how many there were.
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

// A DeadLetter is an event that a handler refused for what it is.
type DeadLetter struct {
	Event
	Attempts int
	Error    string // of the last one
	Died     time.Time
}

// bury records a letter and the hole that it leaves, in the transaction that moves the
// key. A letter of a hole that was filled meanwhile opens it again.
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
			values (?, ?, ?, ?, {?}, ?, {?}, {now})`, append(at, payload, r.times, strings.ToValidUTF8(fmt.Sprintf("%.2000s", r.err), "\uFFFD"))...)
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

// DeadLetters lists dead letters of a stream, the oldest first, at most limit, which is at
// least 1.
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

// Discard deletes a dead letter for good, and closes its hole: should the event come
// again, it is a duplicate. It fails with [ErrNoHole] if there is no such letter.
func (t Table) Discard(ctx context.Context, db driver.SQL, stream, key string, at Position) error {
	const op = "discard dead letter"
	if err := both(op, stream, key); err != nil {
		return err
	}
	q, err := t.open(op, key, db)
	if err != nil {
		return err
	}
	if _, err := q.lock(ctx, stream, key); err != nil { // the key first, in the order of those that move it
		return err
	}
	if err := t.remove(ctx, db, stream, key, at); err != nil {
		return err
	}
	n, err := q.Exec(ctx, `update {holes} set closed_at = {now}
		where stream = ? and name = ? and epoch = ? and from_seq = ? and to_seq = ? and closed_at is null`, stream, key, at.Epoch, at.Seq, at.Seq)
	if err == nil && n > 0 {
		err = q.count(ctx, stream, key, -1)
	}
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

// Replay hands a dead letter to a handler, as Late, and closes its hole, in one
// transaction. An error of h leaves the letter as it is. It fails with [ErrNoHole] if the
// letter is not there any more.
func Replay[T any](ctx context.Context, db driver.Beginner[T], t Table, stream string, l DeadLetter, lend func(T) driver.SQL, h Handler[T]) error {
	_, err := InTx(db, t).Fill(ctx, stream, l.Key, l.Position, func(ctx context.Context, in T) error {
		if err := t.remove(ctx, lend(in), stream, l.Key, l.Position); err != nil {
			return err
		}
		return h(ctx, in, Delivery{Event: l.Event, Late: true})
	})
	return err
}
