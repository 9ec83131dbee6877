package idempotency

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/report"
	"github.com/interlock-dev/interlock/observe"
)

// Defaults of [Options].
const (
	DefaultLease     = 30 * time.Second
	DefaultRetention = 48 * time.Hour
	DefaultMaxAnswer = 1 << 20
)

// Options configure a [Store]; nil and the zero value are valid.
type Options struct {
	// Lease is how long an attempt excludes others without renewal; 0 means [DefaultLease],
	// otherwise 100 ms to an hour. It is renewed every third of that time. After a crash a
	// retry waits for up to a lease.
	Lease time.Duration
	// Retention is the minimum time for which an answer is stored; 0 means [DefaultRetention],
	// otherwise a second or more. After the answer is removed, its key belongs to a new
	// request. Redis removes answers itself; other stores need a [Reaper].
	Retention time.Duration
	// MaxAnswer is the maximum length of a stored body, in bytes; 0 means [DefaultMaxAnswer].
	// For a longer body only the digest is stored, and a retry receives a [NotKeptError].
	MaxAnswer int
	// Hooks receive events; nil logs failures, see package observe.
	Hooks *observe.Idempotency
}

func (o *Options) orDefault() (Options, error) {
	options := *cmp.Or(o, &Options{})
	options.Lease = cmp.Or(options.Lease, DefaultLease)
	options.Retention = cmp.Or(options.Retention, DefaultRetention)
	options.MaxAnswer = cmp.Or(options.MaxAnswer, DefaultMaxAnswer)
	options.Hooks = options.Hooks.WithDefaults()
	switch {
	case options.Lease < 100*time.Millisecond || options.Lease > time.Hour:
		return options, failure.Bug("open store", "", "a lease of %v; 100 ms to an hour are allowed", options.Lease)
	case options.Retention < time.Second:
		return options, failure.Bug("open store", "", "a retention of %v; a second or more is required", options.Retention)
	case options.MaxAnswer < 0:
		return options, failure.Bug("open store", "", "MaxAnswer is %d: it must not be negative", options.MaxAnswer)
	}
	return options, nil
}

// A Store lets each request take effect once, and sends the same answer to its retries. It is
// safe for concurrent use.
type Store struct {
	records driver.Idempotency
	options Options
	reports report.Queue // of Hooks.Renewed
	opened  *opened      // nil if the records are the caller's
}

// New returns a store on records: an [SQL], or a type of a key-value driver. Invalid options
// are a Bug.
func New(records driver.Idempotency, o *Options) (*Store, error) {
	options, err := o.orDefault()
	if err != nil {
		return nil, err
	}
	if records == nil {
		return nil, failure.Bug("open store", "", "records are required")
	}
	return &Store{records: records, options: options}, nil
}

// A Func executes a request. Its context ends with the context of Do and with the attempt's
// lease. The cause is then [interlock.ErrLost] if another attempt has begun, or
// [interlock.ErrExpired] if that is unknown. [From] returns the request from the context.
type Func func(ctx context.Context) (Response, error)

// Do executes a request by fn, unless it was executed before: then Do returns the stored
// answer, with Replayed set. Do returns an answer of fn only after it is durable.
//
// If fn returns an error or panics, the request is unfinished. A retry can begin at once, and
// continues after the last completed phase; see [Phase]. Otherwise the error is one of:
//
//   - an [*InFlightError]: another attempt is running, and fn did not run
//   - a [*MismatchError]: the key was used for another request, and fn did not run
//   - a [*NotKeptError]: the request was executed, with an answer too large to be stored
//   - an [interlock.ErrLost]: fn ran, but another attempt began meanwhile, and its answer
//     counts. Phases of this attempt that were not committed by then are not committed
//   - an Uncertain error: fn may have run, and its answer may have been stored; a retry finds out
//   - any other error of the store: fn did not run
//
// If ctx ends, the context of fn ends. Records that follow are still written.
func (s *Store) Do(ctx context.Context, call Call, fn Func) (Response, error) {
	began := time.Now()
	event := observe.IdempotencyAnswered{Scope: call.Scope, Operation: call.Operation, Key: call.Key}
	response, err := s.do(ctx, call, fn, &event)
	event.Replayed, event.Err, event.Took = response.Replayed, err, time.Since(began)
	report.Now(s.options.Hooks.Answered, event)
	return response, err
}

func (s *Store) do(ctx context.Context, call Call, fn Func, event *observe.IdempotencyAnswered) (Response, error) {
	if fn == nil {
		return Response{}, failure.Bug("claim request", call.Key, "a function is required")
	}
	if err := call.validate(); err != nil {
		return Response{}, err
	}
	c := driver.IdempotencyClaim{ID: call.id(), Fingerprint: call.Fingerprint, Owner: rand.Text(),
		Lease: s.options.Lease, Input: call.Input}
	r, outcome, err := s.await(ctx, c, call.Wait)
	switch {
	case err != nil:
		return Response{}, err
	case outcome == inFlight:
		return Response{}, &InFlightError{Key: call.Key, Attempt: r.record.Attempt, Remaining: min(r.record.Remaining, s.options.Lease)}
	case outcome == mismatch:
		return Response{}, &MismatchError{Key: call.Key}
	case outcome == answered:
		event.Kept = true
		return replay(call.Key, r.record.Answer)
	}
	event.Attempt = r.record.Attempt
	response, kept, err := s.run(ctx, r, fn)
	event.Kept = kept
	return response, err
}

// cleanup bounds a claim, and the writing of records after the end of the caller's
// context.
const cleanup = 10 * time.Second

// Attempts and delays of a step that failed and can be retried.
const attempts = 5

var retries = backoff.Policy{First: 20 * time.Millisecond, Max: 500 * time.Millisecond}

// record applies an update that must happen even if ctx has ended. It retries.
func (s *Store) record(ctx context.Context, u driver.IdempotencyUpdate) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	return s.persist(ctx, func(int) (bool, error) {
		err := s.records.Update(ctx, u)
		return again(err) || errors.Is(err, interlock.ErrUncertain), err
	})
}

// persist retries until try reports that a retry is useless, or up to the number of attempts.
func (s *Store) persist(ctx context.Context, try func(n int) (again bool, err error)) error {
	for n := 1; ; n++ {
		repeat, err := try(n)
		if err == nil || !repeat || n == attempts || ctx.Err() != nil {
			return err
		}
		if !retries.Wait(ctx, n) {
			return err
		}
	}
}

// again reports whether err is a Retryable error of this module. Errors of user code have no
// kind and are not retried.
func again(err error) bool {
	var e *interlock.Error
	return errors.As(err, &e) && e.Kind == interlock.Retryable
}

// opened is the state that Close ends.
type opened struct {
	tables  *SQL[interlock.SQL] // nil without a database
	backend *backend.Backend
	stop    context.CancelFunc
	ended   chan struct{}
}

// Open connects to the system at a URL, such as postgres://127.0.0.1/shop or redis://127.0.0.1,
// and keeps records there. In a database it uses a [Table] with the default name, and creates
// the table unless it exists. A [Reaper] with the default options runs until [Store.Close]. The
// program must import the driver of the URL's scheme (see lock.Open). ctx bounds only the
// opening.
func Open(ctx context.Context, url string, o *Options) (*Store, error) {
	u, err := backend.Parse(url)
	if err != nil {
		return nil, err
	}
	var b *backend.Backend
	var tables *SQL[interlock.SQL]
	var records driver.Idempotency
	if u.Has(backend.Tables) {
		var db driver.BeginnerAt[interlock.SQL]
		if b, db, err = backend.OpenSQL(ctx, url, Table{}); err == nil {
			tables = NewSQL(db, Table{})
			records = tables
		}
	} else if b, err = u.Open(ctx); err == nil {
		var ok bool
		if records, ok = b.Requests(""); !ok {
			err = &backend.URLError{Reason: u.Kind() + " keeps no requests; use a postgres://, mysql:// or redis:// URL"}
		}
	}
	var s *Store
	if err == nil {
		s, err = New(records, o)
	}
	if err != nil {
		_ = b.Close(context.WithoutCancel(ctx)) // the first error says more
		return nil, err
	}
	background, stop := context.WithCancel(context.Background())
	s.opened = &opened{tables: tables, backend: b, stop: stop, ended: make(chan struct{})}
	go func() {
		defer close(s.opened.ended)
		_ = NewReaper(s, nil).Run(background) // until Close
	}()
	return s, nil
}

// Tables returns the records of a store that [Open] opened in a database, for [Phase] and
// [LastPhase]. Otherwise it returns nil: use [Step].
func (s *Store) Tables() *SQL[interlock.SQL] {
	if s.opened == nil {
		return nil
	}
	return s.opened.tables
}

// Close stops the reaper and disconnects. It waits for a running pass of the reaper, and for events
// of Hooks.Renewed that are not reported, or until ctx ends. For a store of [New] it only waits for
// the events.
func (s *Store) Close(ctx context.Context) error {
	if s.opened == nil {
		return s.reports.Wait(ctx)
	}
	s.opened.stop()
	select {
	case <-s.opened.ended:
	case <-ctx.Done():
	}
	return errors.Join(s.reports.Wait(ctx), s.opened.backend.Close(ctx))
}
