package timestamp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
)

const (
	// DefaultAhead is the default of Options.Ahead.
	DefaultAhead = 3 * time.Second
	// batchTimeout bounds the requests of one batch.
	batchTimeout = 5 * time.Second
	maxBatch     = 1 << 16
	// maxWrite bounds the values of the commits in one batch, in bytes; a larger commit is one alone.
	maxWrite = 512 << 10
	// steadyAfter is for how long a leader leads before it commits: while leaders alternate,
	// their commits would fail.
	steadyAfter = time.Second
)

// races is the delay after another process took over at the same time.
var races = backoff.Policy{First: time.Millisecond, Max: 50 * time.Millisecond}

var errNoAnswer = errors.New("the store did not answer in time")

// Options of an [Oracle]; nil and the zero value work.
type Options struct {
	// Ahead is the distance by which a leader raises the bound ahead of its time. It is also
	// the maximum leap of time at a change of the leader. 0 means [DefaultAhead].
	Ahead time.Duration
}

// Oracle issues timestamps. It is safe for concurrent use, runs a goroutine only while
// a caller waits, and needs no Close.
type Oracle struct {
	store driver.KeyValues
	key   string
	ahead time.Duration
	start time.Time        // of the monotonic clock
	wall  func() time.Time // tests let it jump

	mu      sync.Mutex
	waiting []request
	commits []request
	busy    bool // a goroutine serves
	steady  bool // it has led for steadyAfter

	// These are the serving goroutine's.
	leader   leader        // its epoch is 0 before it first led
	revision int64         // of the leader's record
	unknown  bool          // whether a commit took place: no timestamp is issued before the next write
	since    time.Duration // when it took over from another one
}

// A request waits for one answer.
type request struct {
	change func(at Timestamp) []driver.Swap // of a commit
	at     Timestamp                        // of a commit in a group
	answer chan<- issued
}

// issued is the answer to one request. The timestamp of a commit is 0 if nothing was written.
type issued struct {
	at  Timestamp
	err error
}

// NewOracle returns an oracle whose state is in store under key, which all processes share.
// It performs no I/O. It fails with an error of kind Bug if the key or the options are
// invalid.
func NewOracle(store driver.KeyValues, key string, o *Options) (*Oracle, error) {
	oracle := &Oracle{store: store, key: key, start: time.Now(), wall: time.Now}
	if o != nil {
		oracle.ahead = o.Ahead
	}
	oracle.ahead = cmp.Or(oracle.ahead, DefaultAhead)
	const op = "make timestamp oracle"
	switch {
	case store == nil:
		return nil, &interlock.Error{Op: op, Name: key, Kind: interlock.Bug, Err: errors.New("a store is required")}
	case oracle.ahead < 0 || oracle.ahead > time.Minute:
		return nil, &interlock.Error{Op: op, Name: key, Kind: interlock.Bug, Err: fmt.Errorf("bound ahead by %v, up to a minute is allowed", oracle.ahead)}
	}
	return oracle, driver.CheckName(op, "a key", key, driver.MaxName)
}

// Next returns a timestamp above all that were returned before the call, in any process.
// It blocks until its batch is answered or ctx ends, which does not harm the oracle. It does
// not retry; the caller can, after a Retryable error.
func (o *Oracle) Next(ctx context.Context) (Timestamp, error) {
	if ctx.Err() != nil {
		return 0, o.failed(interlock.Definite, context.Cause(ctx))
	}
	select {
	case a := <-o.ask(nil):
		return a.at, a.err
	case <-ctx.Done():
		return 0, o.failed(interlock.Retryable, context.Cause(ctx))
	}
}

// Commit writes changes of the oracle's store with a timestamp, in one request: all timestamps
// that were returned before the write took place are lower, and all that are requested
// after Commit returned are higher. It returns 0 if nothing was written: a revision differs, change
// returned nothing, another oracle issued timestamps, or this one has led for less than a second.
// Then the caller commits in another way. Commits that wait at the same time are one write.
//
// After an Uncertain error the write took place, or takes place before the next timestamp
// is returned, or never. Commit returns no other error. It blocks until its batch is
// answered or ctx ends. Another goroutine calls change, perhaps again with another timestamp; it
// must not block.
func (o *Oracle) Commit(ctx context.Context, change func(at Timestamp) []driver.Swap) (Timestamp, error) {
	if !o.Commits(o.store) {
		return 0, nil
	}
	select {
	case a := <-o.ask(change):
		return a.at, a.err
	case <-ctx.Done():
		return 0, o.failed(interlock.Uncertain, context.Cause(ctx))
	}
}

// Commits reports whether [Oracle.Commit] can write to store, and is likely to succeed now.
// It performs no I/O.
func (o *Oracle) Commits(store driver.KeyValues) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.steady && reflect.TypeOf(store).Comparable() && store == o.store
}

// ask adds a request to the next batch.
func (o *Oracle) ask(change func(at Timestamp) []driver.Swap) <-chan issued {
	answer := make(chan issued, 1)
	o.mu.Lock()
	defer o.mu.Unlock()
	if r := (request{change: change, answer: answer}); change == nil {
		o.waiting = append(o.waiting, r)
	} else {
		o.commits = append(o.commits, r)
	}
	if !o.busy {
		o.busy = true
		go o.serve()
	}
	return answer
}

func (o *Oracle) failed(kind interlock.ErrorKind, err error) error {
	return &interlock.Error{Op: "get timestamp", Name: o.key, Kind: kind, Err: err}
}

// serve answers batch after batch until no request waits.
func (o *Oracle) serve() {
	for {
		timestamps, commits := o.take()
		if len(timestamps)+len(commits) == 0 {
			return
		}
		if len(commits) > 0 && o.commit(commits, timestamps) || len(timestamps) == 0 {
			continue
		}
		first, err := o.issue(len(timestamps))
		for i, r := range timestamps {
			r.answer <- issued{first + Timestamp(i), err}
		}
	}
}

// take returns the requests of the next batch. If there are none, the goroutine must end.
func (o *Oracle) take() (timestamps, commits []request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, m := min(len(o.waiting), maxBatch), min(len(o.commits), driver.MaxSwaps-1)
	timestamps, o.waiting = o.waiting[:n], o.waiting[n:]
	commits, o.commits = o.commits[:m], o.commits[m:]
	o.busy = n+m > 0
	o.steady = o.leader.Epoch > 0 && time.Since(o.start)-o.since >= steadyAfter
	return timestamps, commits
}

// commit writes the changes of commits, and answers these. If it wrote them, it answers timestamps,
// too, and returns true. It writes the leader's record as well, so it fails if another process
// took over. No timestamp is issued until its outcome is known, or another write of the record
// took place: then this one cannot arrive any more.
func (o *Oracle) commit(commits, timestamps []request) bool {
	ctx, cancel := context.WithTimeoutCause(context.Background(), batchTimeout, errNoAnswer)
	defer cancel()
	now, first := o.leader.reserved(time.Since(o.start), len(commits)+len(timestamps))
	swaps := []driver.Swap{{Key: o.key, Revision: o.revision, Value: now.encode()}}
	group := o.group(commits, first, &swaps)
	if len(group) == 0 {
		return false
	}
	revision, err := o.store.Swap(ctx, swaps...)
	switch {
	case err != nil:
		o.unknown = true
		answer(group, issued{err: o.failed(interlock.Uncertain, err)})
		return false
	case revision == 0:
		answer(group, issued{})
		return false
	}
	o.leader, o.revision, o.unknown = now, revision, false
	for _, r := range group {
		r.answer <- issued{at: r.at}
	}
	for i, r := range timestamps {
		r.answer <- issued{at: first + Timestamp(len(commits)+i)}
	}
	return true
}

// group adds the changes of commits to swaps, and returns those whose changes it added.
// It refuses a commit that changes nothing, too much, or a key of another one. The others that
// do not fit wait for the next batch.
func (o *Oracle) group(commits []request, first Timestamp, swaps *[]driver.Swap) (group []request) {
	size, keys := 0, map[string]bool{o.key: true}
	for i, r := range commits {
		r.at = first + Timestamp(i)
		changes := r.change(r.at)
		if len(changes) == 0 || len(changes) >= driver.MaxSwaps || slices.ContainsFunc(changes, func(c driver.Swap) bool { return keys[c.Key] }) {
			answer(commits[i:i+1], issued{})
			continue
		}
		for _, c := range changes {
			size += len(c.Value)
			keys[c.Key] = true
		}
		if len(group) > 0 && (size > maxWrite || len(*swaps)+len(changes) > driver.MaxSwaps) {
			o.mu.Lock()
			o.commits = slices.Concat(commits[i:], o.commits)
			o.mu.Unlock()
			break
		}
		*swaps = append(*swaps, changes...)
		group = append(group, r)
	}
	return group
}

func answer(requests []request, with issued) {
	for _, r := range requests {
		r.answer <- with
	}
}

// issue returns the first of n timestamps, and takes over first if it must. The batch is
// closed: all timestamps returned before any of its requests are lower.
func (o *Oracle) issue(n int) (Timestamp, error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), batchTimeout, errNoAnswer)
	defer cancel()
	for lost := 1; ; lost++ {
		first, ok, err := o.attempt(ctx, n)
		switch {
		case err != nil:
			kind := interlock.Kind(err)
			if kind == interlock.Uncertain || ctx.Err() != nil {
				kind = interlock.Retryable // no timestamp was returned
			}
			return 0, o.failed(kind, err)
		case ok:
			return first, nil
		case !races.Wait(ctx, lost):
			return 0, o.failed(interlock.Retryable, context.Cause(ctx))
		}
	}
}

// attempt returns false if another process was faster.
func (o *Oracle) attempt(ctx context.Context, n int) (Timestamp, bool, error) {
	kvs, err := o.store.Get(ctx, o.key)
	if err != nil {
		return 0, false, err
	}
	was, mono := stored{}, time.Since(o.start)
	if kvs[0].Revision > 0 {
		if was, err = decode(kvs[0].Value); err != nil {
			return 0, false, &interlock.Error{Op: "read timestamp oracle", Name: o.key, Kind: interlock.Definite, Err: err}
		}
	}
	now := succeed(was, Of(o.wall()), mono, o.ahead, n)
	leads := o.leader.Epoch > 0 && o.leader.Epoch == was.Epoch // no process had taken over at this read
	if leads && !o.unknown {
		o.leader.stored, o.revision = was, kvs[0].Revision // a write without an answer may have raised it
		if first, ok := o.leader.issue(mono, n); ok {
			return first, true, nil
		}
		now = o.leader.raised(mono, n)
	}
	revision, err := o.store.Swap(ctx, driver.Swap{Key: o.key, Revision: kvs[0].Revision, Value: now.encode()})
	if err != nil || revision == 0 {
		return 0, false, err
	}
	o.leader, o.revision, o.unknown = now, revision, false
	if !leads {
		o.since = mono
	}
	first, ok := o.leader.issue(mono, n)
	return first, ok, nil
}
