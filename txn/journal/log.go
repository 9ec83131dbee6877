package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
)

// An Entry is the content of a record. Position, Epoch and Written are set by reads and ignored
// by writes.
type Entry struct {
	Kind     string          // what happened: 1 to 32 bytes
	Step     string          // of what, at most 255 bytes
	Data     []byte          // at most driver.MaxPayload
	Position int64           // from 1
	Epoch    interlock.Token // of the shard's owner who wrote it; 0 if somebody else did
	Written  time.Time       // by the store's clock
}

// A Log appends to one transaction. An append is rejected unless it directly follows what this
// Log has read or written. It is not safe for concurrent use.
type Log struct {
	journal *Journal
	owner   *Shard // nil for somebody who owns nothing
	head    driver.Head
	shards  int // what the store has to keep for the transaction to begin; 0 is not checked
}

// Head returns the state of the transaction as far as this Log knows it. Began is zero unless the
// log was opened. Ended is zero if the transaction was ended here and the store does not report
// the time.
func (l *Log) Head() driver.Head { return l.head }

// Append adds 1 to driver.MaxRecords entries durably before it returns, and sets when the
// transaction is due next. It retries for up to Options.Patience, while ctx and the claim of the
// shard's owner last. Errors:
//
//   - [ErrConflict]: another writer has appended. Nothing was written, unless the error is
//     Uncertain: then the entries may be behind the other writer's.
//   - an interlock.StaleTokenError, or the cause with which the claim ended: the shard has
//     another owner.
//   - an Uncertain error: the entries may have been written. Appending them again converges,
//     with this Log or after reopening and reading it.
func (l *Log) Append(ctx context.Context, due time.Time, entries ...Entry) error {
	if due.IsZero() {
		return failure.Bug("append", l.head.Transaction, "when it is due is not said; only the end of a transaction has no time")
	}
	return l.append(ctx, due, entries)
}

// End is [Log.Append] of the transaction's last entries. Afterwards it is never due.
func (l *Log) End(ctx context.Context, entries ...Entry) error {
	return l.append(ctx, time.Time{}, entries)
}

func (l *Log) append(ctx context.Context, due time.Time, entries []Entry) error {
	ctx, cancel := context.WithTimeoutCause(ctx, l.journal.options.Patience, errPatience)
	defer cancel()
	a, err := l.request(due, entries, func(sum, payload []byte) error {
		return l.journal.try(ctx, func() error { return l.journal.store.PutPayload(ctx, l.head.Transaction, sum, payload) })
	})
	if err != nil {
		return err
	}
	if err := l.journal.persist(ctx, l.owner, &a); err != nil {
		return err
	}
	l.Accept(a)
	return nil
}

// errPatience is the cause with which Options.Patience ends.
var errPatience = fmt.Errorf("the store did not answer in time: %w", context.DeadlineExceeded)

// Accept records that the transaction of [Log.AppendIn] has committed.
func (l *Log) Accept(a driver.Append) {
	l.head.Position, l.head.Sum = a.After+int64(len(a.Records)), a.Records[len(a.Records)-1].Sum
	l.head.Due, l.head.Claimed, l.head.Ended = a.Due, false, a.Ended
}

// request makes the records; keep takes what is large, which stands beside them.
func (l *Log) request(due time.Time, entries []Entry, keep func(sum, payload []byte) error) (driver.Append, error) {
	a := driver.Append{Transaction: l.head.Transaction, Shard: l.head.Shard, Type: l.head.Type, After: l.head.Position, Shards: l.shards, Due: due, Was: l.head.Due}
	if l.owner != nil {
		a.Epoch = l.owner.epoch
	}
	if err := driver.CheckTransaction("append", l.head.Transaction); err != nil {
		return a, err
	}
	sum := l.head.Sum
	a.Records = make([]driver.Record, 0, len(entries))
	for _, e := range entries {
		data, err := l.journal.stow(e.Data, keep)
		if err != nil {
			return a, err
		}
		sum = chain(sum, l.head.Transaction, l.head.Type, a.After+int64(len(a.Records))+1, a.Epoch, e.Kind, e.Step, data)
		a.Records = append(a.Records, driver.Record{Kind: e.Kind, Step: e.Step, Data: data, Sum: sum})
	}
	return a, driver.CheckAppend([]driver.Append{a}, 0)
}

// pause is how long to wait before an append is tried again.
var pause = backoff.Policy{First: 10 * time.Millisecond, Max: time.Second}

// persist appends until there is an outcome.
func (j *Journal) persist(ctx context.Context, owner *Shard, a *driver.Append) error {
	alone := false
	return j.try(ctx, func() error {
		if err := owner.holds(); err != nil {
			return err
		}
		err := j.enqueue(ctx, a, alone)
		alone = errors.Is(err, interlock.ErrHeld)
		var elsewhere *driver.PositionError
		if errors.As(err, &elsewhere) {
			return ours(a, elsewhere)
		}
		return err
	})
}

// A doubt is an append that may have been done by a try whose answer was lost, and was
// not tried again.
type doubt struct{ lost, last error }

func (d *doubt) Error() string                  { return fmt.Sprintf("%v; and then: %v", d.lost, d.last) }
func (d *doubt) Unwrap() []error                { return []error{d.lost, d.last} }
func (d *doubt) ErrorKind() interlock.ErrorKind { return interlock.Uncertain }

// try does what may be repeated until there is an outcome, or ctx ends. What ends the
// tries says nothing of one before whose answer was lost, unless the store has shown
// since that it had no effect.
func (j *Journal) try(ctx context.Context, once func() error) error {
	var lost error
	for attempt := 1; ; attempt++ {
		err := once()
		if err == nil {
			return nil
		}
		kind := interlock.Kind(err)
		var final *absent
		switch {
		case errors.As(err, &final):
			return err
		case kind == interlock.Definite || kind == interlock.Bug || ctx.Err() != nil:
			return doubted(lost, err)
		case kind == interlock.Uncertain:
			lost = err
		}
		timer := time.NewTimer(pause.Delay(attempt, j.random()))
		select {
		case <-ctx.Done():
			timer.Stop()
			return doubted(lost, err)
		case <-timer.C:
		}
	}
}

// doubted is the error that ended the tries, of which an earlier one may have lost its
// answer.
func doubted(lost, last error) error {
	if lost == nil || interlock.Kind(last) == interlock.Uncertain {
		return last
	}
	return &doubt{lost, last}
}

// absent is a refusal by which the records are not there, whatever was lost before.
type absent struct{ error }

func (a *absent) Unwrap() error { return a.error }

// ours is nil if it is these records that stand where the append is refused: an
// earlier try was done, whose answer was lost. If more stand there nobody can tell.
func ours(a *driver.Append, e *driver.PositionError) error {
	last := a.After + int64(len(a.Records))
	if e.Found.Position == last && bytes.Equal(e.Found.Sum, a.Records[len(a.Records)-1].Sum) && e.Found.Ended.IsZero() != a.Due.IsZero() {
		a.Ended = e.Found.Ended
		return nil
	}
	refused := fmt.Errorf("%w: %w", ErrConflict, e)
	if a.After == 0 {
		refused = fmt.Errorf("%w: %w", ErrExists, e)
	}
	if e.Found.Position > last {
		return refused
	}
	return &absent{refused}
}

// Group commit: appends that come while others are under way travel together. If no
// request is under way, an append is sent at once. One more request, up to Options.Requests,
// is sent when as many appends wait as are under way, so that a large group is not followed
// by one of a single append. Fewer appends wait until a request returns, or for as long as
// the last one took, at most maxGather. No member of a group fails for another one's fault: a
// group that the store refuses as a whole is sent again in parts.

// maxGather bounds how long an append waits for others while a request is under way.
const maxGather = 20 * time.Millisecond

// waiter is an append that waits for its turn and its outcome.
type waiter struct {
	request driver.Append
	alone   bool       // it travels by itself
	outcome chan error // has room for one
	behind  bool       // an append of the same transaction had an unknown outcome while this one waited
}

// enqueue appends in the company of others, unless alone. When ctx ends, the outcome is
// unknown if the request was sent, or if another append of the same transaction was sent or
// is to be sent before it: that one may have begun the transaction.
func (j *Journal) enqueue(ctx context.Context, a *driver.Append, alone bool) error {
	w := &waiter{request: *a, alone: alone, outcome: make(chan error, 1)}
	if err := j.join(w); err != nil {
		return err
	}
	select {
	case err := <-w.outcome:
		a.Ended = w.request.Ended
		return w.judge(err)
	case <-ctx.Done():
		return j.leave(w, context.Cause(ctx))
	}
}

// join lets w wait, and sends a request if one more may be under way.
func (j *Journal) join(w *waiter) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return &interlock.Error{Op: "append", Name: w.request.Transaction, Kind: interlock.Bug, Err: interlock.ErrClosed}
	}
	j.waiting = append(j.waiting, w)
	j.depart(len(j.waiting) >= j.aboard)
	return nil
}

// depart sends those who wait, if one more request may be under way and none is, or the group
// is large enough. Otherwise they are sent when a request returns, or soon. The caller holds
// the lock.
func (j *Journal) depart(enough bool) {
	switch {
	case len(j.waiting) == 0 || j.flights == j.options.Requests:
	case j.flights == 0 || enough:
		j.flights++
		j.work.Go(j.fly)
	case !j.gathering:
		j.gathering = true
		time.AfterFunc(min(j.took, maxGather), func() {
			j.mu.Lock()
			defer j.mu.Unlock()
			j.gathering = false
			j.depart(true)
		})
	}
}

// leave gives up waiting.
func (j *Journal) leave(w *waiter, cause error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	behind := w.behind || j.busy[w.request.Transaction]
	for i, other := range j.waiting {
		if other == w {
			j.waiting = append(j.waiting[:i:i], j.waiting[i+1:]...)
			return w.unsent(cause, behind)
		}
		behind = behind || other.request.Transaction == w.request.Transaction
	}
	select {
	case err := <-w.outcome:
		return w.judge(err)
	default:
		return &interlock.Error{Op: "append", Name: w.request.Transaction, Kind: interlock.Uncertain,
			Err: fmt.Errorf("no answer yet: %w", cause)}
	}
}

// unsent is the error of an append that was not sent.
func (w *waiter) unsent(cause error, behind bool) error {
	kind := interlock.Definite
	switch {
	case behind:
		kind, cause = interlock.Uncertain, fmt.Errorf("%w: %w", errBehind, cause)
	case errors.Is(cause, errPatience):
		kind = interlock.Retryable
	}
	return &interlock.Error{Op: "append", Name: w.request.Transaction, Kind: kind, Err: cause}
}

// judge is the outcome of a request that was sent. If the store refuses it for now, an
// append before it may still have been done.
func (w *waiter) judge(err error) error {
	if err == nil || interlock.Kind(err) != interlock.Retryable || !w.behind {
		return err
	}
	return w.unsent(err, true)
}

var errBehind = errors.New("the outcome of an earlier append of the same transaction is unknown")

// fly sends requests until nobody waits.
func (j *Journal) fly() {
	for group := j.board(true); len(group) > 0; group = j.board(false) {
		requests := make([]driver.Append, len(group))
		for i, w := range group {
			requests[i] = w.request
		}
		ctx, cancel := context.WithTimeout(j.life, j.options.Patience)
		sent := time.Now()
		outcomes := j.send(ctx, requests)
		cancel()
		j.land(group, outcomes, time.Since(sent))
		for i, w := range group {
			w.request.Ended = requests[i].Ended
			w.outcome <- outcomes[i]
		}
	}
}

// send appends. Members of a group that fail for a reason that may be another member's
// are sent again in two halves: nothing of them was done.
func (j *Journal) send(ctx context.Context, requests []driver.Append) []error {
	outcomes := j.store.Append(ctx, requests)
	var again []int
	for i, err := range outcomes {
		if len(requests) > 1 && ctx.Err() == nil && unspecific(err) {
			again = append(again, i)
		}
	}
	if len(again) == 0 {
		return outcomes
	}
	for half := range slices.Chunk(again, (len(again)+1)/2) {
		part := make([]driver.Append, len(half))
		for k, i := range half {
			part[k] = requests[i]
		}
		for k, err := range j.send(ctx, part) {
			outcomes[half[k]] = err
			requests[half[k]].Ended = part[k].Ended
		}
	}
	return outcomes
}

// unspecific reports whether an append was refused for a reason that may be that of
// another one in the same request: a value that the store does not take, or a lock that
// a transaction outside holds.
func unspecific(err error) bool {
	if err == nil {
		return false
	}
	var elsewhere *driver.PositionError
	var other *driver.ShardsError
	if errors.As(err, &elsewhere) || errors.As(err, &other) || errors.Is(err, interlock.ErrStaleToken) {
		return false
	}
	return interlock.Kind(err) == interlock.Definite || errors.Is(err, interlock.ErrHeld)
}

// board takes those who wait, as many as travel together, and none whose
// transaction is under way already; one that travels alone only by itself. If there are
// none, or not enough of them while another request is under way, the flight has ended.
func (j *Journal) board(enough bool) []*waiter {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !enough && j.flights > 1 && len(j.waiting) < j.aboard {
		j.flights--
		j.depart(false)
		return nil
	}
	var group, rest []*waiter
	for _, w := range j.waiting {
		full := len(group) == j.options.Group || len(group) > 0 && (w.alone || group[0].alone)
		if full || j.busy[w.request.Transaction] {
			rest = append(rest, w)
			continue
		}
		j.busy[w.request.Transaction] = true
		group = append(group, w)
	}
	j.waiting = rest
	j.aboard += len(group)
	if len(group) == 0 {
		j.flights--
	}
	return group
}

// land takes the outcomes of a request. Appends that wait behind one of unknown outcome are marked.
func (j *Journal) land(group []*waiter, outcomes []error, took time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.aboard, j.took = j.aboard-len(group), took
	lost := map[string]bool{}
	for i, w := range group {
		delete(j.busy, w.request.Transaction)
		if outcomes[i] != nil && interlock.Kind(outcomes[i]) == interlock.Uncertain {
			lost[w.request.Transaction] = true
		}
	}
	if len(lost) == 0 {
		return
	}
	for _, w := range j.waiting {
		w.behind = w.behind || lost[w.request.Transaction]
	}
}
