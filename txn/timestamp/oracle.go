package timestamp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	waiting []chan<- issued
	busy    bool // a goroutine serves

	leader leader // the serving goroutine's; its epoch is 0 before it first led
}

// issued is the answer to one request.
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
	answer := make(chan issued, 1)
	o.mu.Lock()
	o.waiting = append(o.waiting, answer)
	if !o.busy {
		o.busy = true
		go o.serve()
	}
	o.mu.Unlock()
	select {
	case a := <-answer:
		return a.at, a.err
	case <-ctx.Done():
		return 0, o.failed(interlock.Retryable, context.Cause(ctx))
	}
}

func (o *Oracle) failed(kind interlock.ErrorKind, err error) error {
	return &interlock.Error{Op: "get timestamp", Name: o.key, Kind: kind, Err: err}
}

// serve answers batch after batch until no request waits.
func (o *Oracle) serve() {
	for {
		o.mu.Lock()
		batch := o.waiting
		if len(batch) == 0 {
			o.busy = false
			o.mu.Unlock()
			return
		}
		o.waiting = batch[min(len(batch), maxBatch):]
		o.mu.Unlock()
		batch = batch[:min(len(batch), maxBatch)]
		first, err := o.issue(len(batch))
		for i, answer := range batch {
			answer <- issued{first + Timestamp(i), err}
		}
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
	if o.leader.Epoch > 0 && o.leader.Epoch == was.Epoch { // no process had taken over at this read
		o.leader.stored = was // a write without an answer may have raised it
		if first, ok := o.leader.issue(mono, n); ok {
			return first, true, nil
		}
		now = o.leader.raised(mono, n)
	}
	revision, err := o.store.Swap(ctx, driver.Swap{Key: o.key, Revision: kvs[0].Revision, Value: now.encode()})
	if err != nil || revision == 0 {
		return 0, false, err
	}
	o.leader = now
	first, ok := o.leader.issue(mono, n)
	return first, ok, nil
}
