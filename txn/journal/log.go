package journal

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
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
	Kind     string          // 1 to 32 bytes
	Step     string          // at most 255 bytes
	Data     []byte          // at most driver.MaxPayload
	Position int64           // from 1
	Epoch    interlock.Token // of the shard's owner that wrote it; 0 for other writers
	Written  time.Time       // by the store's clock
}

// A Log appends to one transaction. An append is rejected unless it directly follows what this
// Log has read or written. It is not safe for concurrent use.
type Log struct {
	journal *Journal
	owner   *Shard // nil if this process does not own the shard
	head    driver.Head
	shards  int // the store must have this number of shards before the transaction begins; 0 is not checked
}

// Head returns the state of the transaction as far as this Log knows it. Began is zero unless the
// log was opened. Ended is zero if the transaction was ended here and the store does not report
// the time.
func (l *Log) Head() driver.Head { return l.head }

func (j *Journal) begin(ctx context.Context, shard int, id, kind string, due time.Time, entries []Entry) (*Log, error) {
	l := &Log{journal: j, head: driver.Head{Transaction: id, Shard: shard, Type: kind}, shards: j.options.Shards}
	if due.IsZero() {
		return nil, failure.Bug("begin", id, "it has no due time")
	}
	if !j.shardsChecked.Load() { // both requests together take Options.Patience at most
		end := time.Now().Add(j.options.Patience)
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, end, errPatience)
		defer cancel()
		if err := j.try(ctx, end, func() (bool, error) { return false, j.CheckShards(ctx) }); err != nil {
			return nil, err
		}
	}
	if err := l.append(ctx, due, entries); err != nil {
		return nil, err
	}
	return l, nil
}

// Append adds 1 to driver.MaxRecords entries durably before it returns, and sets when the
// transaction is due next. It retries for up to Options.Patience, while ctx and the claim of the
// shard's owner last. Errors:
//
//   - [ErrConflict]: another writer has appended. Nothing was written, unless the error is
//     Uncertain: then the entries may follow the other writer's.
//   - an interlock.StaleTokenError, or the cause with which the claim ended: the shard has
//     another owner.
//   - an Uncertain error: the entries may have been written. Append them again, with this Log or
//     after reopening and reading it.
func (l *Log) Append(ctx context.Context, due time.Time, entries ...Entry) error {
	if due.IsZero() {
		return failure.Bug("append", l.head.Transaction, "it has no due time; only the end of a transaction has none")
	}
	return l.append(ctx, due, entries)
}

// End is [Log.Append] of the transaction's last entries. Afterwards it is never due.
func (l *Log) End(ctx context.Context, entries ...Entry) error {
	return l.append(ctx, time.Time{}, entries)
}

func (l *Log) append(ctx context.Context, due time.Time, entries []Entry) error {
	end := time.Now().Add(l.journal.options.Patience)
	a, err := l.request(due, entries, func(sum, payload []byte) error {
		ctx, cancel := context.WithDeadlineCause(ctx, end, errPatience)
		defer cancel()
		return l.journal.try(ctx, end, func() (bool, error) { return false, l.journal.store.PutPayload(ctx, l.head.Transaction, sum, payload) })
	})
	if err != nil {
		return err
	}
	if err := l.journal.persist(ctx, end, l.owner, &a); err != nil {
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

// request returns the append of the entries. keep stores a payload that is too large for a record.
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
		data, err := l.journal.storePayload(e.Data, keep)
		if err != nil {
			return a, err
		}
		sum = chain(sum, l.head.Transaction, l.head.Type, a.After+int64(len(a.Records))+1, a.Epoch, e.Kind, e.Step, data)
		a.Records = append(a.Records, driver.Record{Kind: e.Kind, Step: e.Step, Data: data, Sum: sum})
	}
	return a, driver.CheckAppend([]driver.Append{a}, 0)
}

// chain returns the sum of a record: SHA-256 over the previous record's sum and its own
// fields. Each has its length before it, so that no two records have the same input.
func chain(before []byte, transaction, kind string, position int64, epoch interlock.Token, what, step string, data []byte) []byte {
	const version = "interlock journal 1"
	var space [512]byte // of most records, without an allocation
	b := appendField(slices.Grow(space[:0], len(before)+len(data)), version)
	b = appendField(b, before)
	b = appendField(b, transaction)
	b = appendField(b, kind)
	b = binary.BigEndian.AppendUint64(appendLength(b, 8), uint64(position))
	b = binary.BigEndian.AppendUint64(appendLength(b, 8), uint64(epoch))
	b = appendField(b, what)
	b = appendField(b, step)
	b = appendField(b, data)
	sum := sha256.Sum256(b)
	return sum[:]
}

// appendField appends a value after its length.
func appendField[T string | []byte](b []byte, value T) []byte {
	return append(appendLength(b, len(value)), value...)
}

func appendLength(b []byte, n int) []byte { return binary.BigEndian.AppendUint64(b, uint64(n)) }

// The first byte of a record's data shows where the entry's data is.
const (
	inline = 0 // here
	beside = 1 // in a payload, whose sum follows
)

// storePayload returns the data of a record. It passes data above Options.Inline to keep.
func (j *Journal) storePayload(data []byte, keep func(sum, payload []byte) error) ([]byte, error) {
	if len(data) <= j.options.Inline {
		return append(append(make([]byte, 0, 1+len(data)), inline), data...), nil
	}
	sum := sha256.Sum256(data)
	return append([]byte{beside}, sum[:]...), keep(sum[:], data)
}

// pause is the backoff between attempts of an append.
var pause = backoff.Policy{First: 10 * time.Millisecond, Max: time.Second}

// persist appends, and retries until the outcome is known, ctx ends, or the time is over.
func (j *Journal) persist(ctx context.Context, end time.Time, owner *Shard, a *driver.Append) error {
	alone := false
	return j.try(ctx, end, func() (known bool, err error) {
		if err := owner.valid(); err != nil {
			return false, err
		}
		err = j.enqueue(ctx, end, a, alone)
		alone = errors.Is(err, interlock.ErrHeld)
		var elsewhere *driver.PositionError
		if errors.As(err, &elsewhere) {
			return resolveConflict(a, elsewhere)
		}
		return false, err
	})
}

// try calls once until the outcome is known, ctx ends, or the time is over. known means that the
// outcome of earlier attempts is known, too.
func (j *Journal) try(ctx context.Context, end time.Time, once func() (known bool, err error)) error {
	var lost error // of an earlier attempt that may have succeeded
	for attempt := 1; ; attempt++ {
		known, err := once()
		if err == nil || known {
			return err
		}
		kind := interlock.Kind(err)
		wait := min(pause.Delay(attempt, j.random()), time.Until(end))
		if kind == interlock.Definite || kind == interlock.Bug || !backoff.Sleep(ctx, wait) || time.Until(end) <= 0 {
			return outcome(lost, err)
		}
		if kind == interlock.Uncertain {
			lost = err
		}
	}
}

// outcome returns the error of repeated attempts, of which the last one failed. It is Uncertain if an
// earlier one may have succeeded.
func outcome(lost, last error) error {
	if lost == nil || interlock.Kind(last) == interlock.Uncertain {
		return last
	}
	return &interlock.Error{Op: "repeat", Kind: interlock.Uncertain, Err: fmt.Errorf("%w; and then: %w", lost, last)}
}

// resolveConflict returns nil if the records at the rejected position are those of a: an earlier
// attempt succeeded. If more records follow them, it is not known whether one has. Equal records in
// another shard are those of another begin of the same transaction.
func resolveConflict(a *driver.Append, e *driver.PositionError) (known bool, err error) {
	last, elsewhere := a.After+int64(len(a.Records)), a.After == 0 && e.Found.Shard != a.Shard
	if !elsewhere && e.Found.Position == last && bytes.Equal(e.Found.Sum, a.Records[len(a.Records)-1].Sum) && e.Found.Ended.IsZero() != a.Due.IsZero() {
		a.Ended = e.Found.Ended
		return true, nil
	}
	known = !elsewhere && e.Found.Position <= last
	if a.After == 0 {
		return known, fmt.Errorf("%w: %w", ErrExists, e)
	}
	return known, fmt.Errorf("%w: %w", ErrConflict, e)
}

// Group commit: while a request is under way, appends are queued and sent together. If none is
// under way, an append is sent at once. Another request, up to Options.Requests, is sent when the
// queue is as long as the number of appends under way: a large group is not followed by a single
// append. A shorter queue waits until a request returns, or as long as the last request took, at
// most maxGather. No append fails because of another one in its group: a group that the store
// rejects is sent again in parts.

// maxGather bounds how long an append waits for others while a request is under way.
const maxGather = 20 * time.Millisecond

// queuedAppend is an append that waits for its request and its outcome.
type queuedAppend struct {
	request        driver.Append
	alone          bool       // sent in a request of its own
	outcome        chan error // buffered for one
	followsUnknown bool       // an append of the same transaction had an unknown outcome while this one waited
}

// enqueue appends in a group, unless alone. When ctx ends or the time is over, the outcome is
// unknown if the request was sent. It is also unknown if an earlier append of the same
// transaction was sent or waits: that one may have begun the transaction.
func (j *Journal) enqueue(ctx context.Context, end time.Time, a *driver.Append, alone bool) error {
	w := &queuedAppend{request: *a, alone: alone, outcome: make(chan error, 1)}
	if err := j.queue(w); err != nil {
		return err
	}
	timer, _ := j.timers.Get().(*time.Timer)
	if timer == nil {
		timer = time.NewTimer(time.Until(end))
	} else {
		timer.Reset(time.Until(end))
	}
	defer func() { timer.Stop(); j.timers.Put(timer) }()
	select {
	case err := <-w.outcome:
		a.Ended = w.request.Ended
		return w.classify(err)
	case <-ctx.Done():
		return j.abandon(w, context.Cause(ctx))
	case <-timer.C:
		return j.abandon(w, errPatience)
	}
}

// queue adds w to the queue, and sends a request if one more may be under way.
func (j *Journal) queue(w *queuedAppend) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return &interlock.Error{Op: "append", Name: w.request.Transaction, Kind: interlock.Bug, Err: interlock.ErrClosed}
	}
	j.waiting = append(j.waiting, w)
	j.sendIfReady(len(j.waiting) >= j.sentAppends)
	return nil
}

// sendIfReady sends the queue if one more request may be under way, and none is or the group is
// large enough. Otherwise the queue is sent when a request returns, or after a short wait. The
// caller holds the lock.
func (j *Journal) sendIfReady(enough bool) {
	switch {
	case len(j.waiting) == 0 || j.requests == j.options.Requests:
	case j.requests == 0 || enough:
		j.requests++
		j.work.Go(j.sendGroups)
	case !j.gathering:
		j.gathering = true
		time.AfterFunc(min(j.lastTook, maxGather), func() {
			j.mu.Lock()
			defer j.mu.Unlock()
			j.gathering = false
			j.sendIfReady(true)
		})
	}
}

// abandon removes w from the queue, and returns its error.
func (j *Journal) abandon(w *queuedAppend, cause error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	follows := w.followsUnknown || j.busy[w.request.Transaction]
	for i, other := range j.waiting {
		if other == w {
			j.waiting = append(j.waiting[:i:i], j.waiting[i+1:]...)
			return w.unsent(cause, follows)
		}
		follows = follows || other.request.Transaction == w.request.Transaction
	}
	select {
	case err := <-w.outcome:
		return w.classify(err)
	default:
		return &interlock.Error{Op: "append", Name: w.request.Transaction, Kind: interlock.Uncertain,
			Err: fmt.Errorf("no answer yet: %w", cause)}
	}
}

// unsent returns the error of an append that was not sent.
func (w *queuedAppend) unsent(cause error, follows bool) error {
	kind := interlock.Definite
	switch {
	case follows:
		kind, cause = interlock.Uncertain, fmt.Errorf("%w: %w", errFollowsUnknown, cause)
	case errors.Is(cause, errPatience):
		kind = interlock.Retryable
	}
	return &interlock.Error{Op: "append", Name: w.request.Transaction, Kind: kind, Err: cause}
}

// classify returns the outcome of a request that was sent. If the store rejects it for now, an
// earlier append of the same transaction may still have been written.
func (w *queuedAppend) classify(err error) error {
	if err == nil || interlock.Kind(err) != interlock.Retryable || !w.followsUnknown {
		return err
	}
	return w.unsent(err, true)
}

var errFollowsUnknown = errors.New("the outcome of an earlier append of the same transaction is unknown")

// sendGroups sends requests until the queue is empty.
func (j *Journal) sendGroups() {
	for group := j.takeGroup(true); len(group) > 0; group = j.takeGroup(false) {
		requests := make([]driver.Append, len(group))
		for i, w := range group {
			requests[i] = w.request
		}
		ctx, cancel := context.WithTimeout(j.requestCtx, j.options.Patience)
		sent := time.Now()
		outcomes := j.send(ctx, requests)
		cancel()
		j.finishGroup(group, outcomes, time.Since(sent))
		for i, w := range group {
			w.request.Ended = requests[i].Ended
			w.outcome <- outcomes[i]
		}
	}
}

// send appends. Members that fail for a reason that may be another member's are sent again in two
// halves: nothing of them was written.
func (j *Journal) send(ctx context.Context, requests []driver.Append) []error {
	outcomes := j.store.Append(ctx, requests)
	var again []int
	for i, err := range outcomes {
		if len(requests) > 1 && ctx.Err() == nil && mayBeAnothers(err) {
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

// mayBeAnothers reports whether an append may have been rejected because of another one in the same
// request: for a value that the store rejects, or a lock held by another database transaction.
func mayBeAnothers(err error) bool {
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

// takeGroup takes a group from the queue, one append for each transaction, and none of a transaction
// with an append under way. An append with alone set is a group of its own. If the queue is empty,
// or too short while another request is under way, it returns nil and the request counts as ended.
func (j *Journal) takeGroup(enough bool) []*queuedAppend {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !enough && j.requests > 1 && len(j.waiting) < j.sentAppends {
		j.requests--
		j.sendIfReady(false)
		return nil
	}
	var group, rest []*queuedAppend
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
	j.sentAppends += len(group)
	if len(group) == 0 {
		j.requests--
	}
	return group
}

// finishGroup removes a group from the requests under way, and marks the queued appends that follow
// one with an unknown outcome.
func (j *Journal) finishGroup(group []*queuedAppend, outcomes []error, took time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.sentAppends, j.lastTook = j.sentAppends-len(group), took
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
		w.followsUnknown = w.followsUnknown || lost[w.request.Transaction]
	}
}
