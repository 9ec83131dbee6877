// Package sweep deletes rows that the tables of guards no longer need, in the background. Each
// table decides by its own rule which rows these are. Several processes may sweep the same
// tables. A sweeper ends with its process.
//
//	sweeper, err := sweep.Start(ctx, "postgres://127.0.0.1/shop", nil,
//		stock.Table{}, once.Inbox{Consumer: "billing"})
//	...
//	defer sweeper.Close(ctx)
package sweep

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/transact"
	"github.com/interlock-dev/interlock/observe"
)

// A Table deletes rows that it no longer needs. Examples are stock.Table, once.Inbox and
// idempotency.Table.
type Table interface {
	// Sweep deletes up to limit rows, and returns how many. Several processes may call it
	// concurrently, each in its own transaction.
	Sweep(ctx context.Context, db interlock.SQL, limit int) (deleted int, err error)
}

// Func is a function that implements [Table], for example to call Purge of a version.Table with
// an age.
type Func func(ctx context.Context, db interlock.SQL, limit int) (deleted int, err error)

// Sweep calls f.
func (f Func) Sweep(ctx context.Context, db interlock.SQL, limit int) (int, error) {
	return f(ctx, db, limit)
}

// Options configure a sweeper; nil and the zero value are valid.
type Options struct {
	// Every is the time between two passes; 0 means 10 minutes. Each pause is up to a quarter
	// longer, at random. The first pass is at the start.
	Every time.Duration
	// Batch is how many rows one transaction deletes; 0 means 500. A table may have a lower
	// limit.
	Batch int
	// Failed is called if a table cannot be swept. The next pass tries again. While Failed runs,
	// nothing is swept. Nil logs a warning, up to 20 in a second.
	Failed func(error)
}

// timeout bounds the pass over one table.
const timeout = 5 * time.Minute

// A Sweeper sweeps tables in the background until Close.
type Sweeper struct {
	options Options
	pass    []func(ctx context.Context) error // one for each table
	backend *backend.Backend                  // nil if the database is the caller's
	logged  observe.LogLimit
	stop    context.CancelFunc
	ended   chan struct{}
}

// Start sweeps tables of the database at a URL, such as postgres://127.0.0.1/shop, until
// [Sweeper.Close]. It does not create the tables. The program must import the driver of the
// URL's scheme (see lock.Open). ctx bounds only the opening.
func Start(ctx context.Context, url string, o *Options, tables ...Table) (*Sweeper, error) {
	b, db, err := backend.OpenSQL(ctx, url)
	if err != nil {
		return nil, err
	}
	s, err := New(db, o, tables...)
	if err != nil {
		return nil, errors.Join(err, b.Close(context.WithoutCancel(ctx)))
	}
	s.backend = b
	return s, nil
}

// New is [Start] on the user's own pool, which stays open.
func New[T any](db interlock.Beginner[T], o *Options, tables ...Table) (*Sweeper, error) {
	s := &Sweeper{ended: make(chan struct{})}
	s.options = *cmp.Or(o, &Options{})
	s.options.Every = cmp.Or(s.options.Every, 10*time.Minute)
	s.options.Batch = cmp.Or(s.options.Batch, 500)
	if db == nil || s.options.Every < 0 || s.options.Batch < 0 {
		return nil, failure.Bug("start sweeper", "", "it needs a database, and an interval and a batch above zero")
	}
	for _, t := range tables {
		if t == nil {
			return nil, failure.Bug("start sweeper", "", "a table is nil")
		}
		s.pass = append(s.pass, func(ctx context.Context) error { return sweep(ctx, db, t, s.options.Batch) })
	}
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	go s.run(ctx)
	return s, nil
}

// run makes a pass every Options.Every until ctx ends.
func (s *Sweeper) run(ctx context.Context) {
	defer close(s.ended)
	for ctx.Err() == nil {
		for _, pass := range s.pass {
			if err := pass(ctx); err != nil && ctx.Err() == nil {
				s.failed(err)
			}
		}
		_ = backoff.Sleep(ctx, s.options.Every) && backoff.Sleep(ctx, rand.N(s.options.Every/4+1))
	}
}

// sweep deletes from a table until a batch is empty.
func sweep[T any](ctx context.Context, db interlock.Beginner[T], t Table, batch int) (err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	defer func() {
		if r := recover(); r != nil {
			err = failure.Bug("sweep", "", "panic: %v", r)
		}
	}()
	for n := 1; n > 0 && err == nil; {
		err = transact.Do(ctx, transact.Preferably(db, interlock.ReadCommitted), "sweep", func(tx driver.Tx[T]) error {
			n, err = t.Sweep(ctx, tx, batch)
			return err
		})
	}
	return err
}

func (s *Sweeper) failed(err error) {
	if f := s.options.Failed; f != nil {
		f(err)
		return
	}
	if suppressed, ok := s.logged.Admit(); ok {
		slog.Warn("a table could not be swept", "error", err, "suppressed", suppressed)
	}
}

// Close stops the sweeper and, after [Start], disconnects. It waits for the running statement,
// or until ctx ends. Close of a nil Sweeper does nothing.
func (s *Sweeper) Close(ctx context.Context) error {
	if s == nil {
		return nil
	}
	s.stop()
	select {
	case <-s.ended:
	case <-ctx.Done():
	}
	return s.backend.Close(ctx)
}
