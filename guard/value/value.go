// Package value keeps one small value under the name of a claim, such as a
// configuration that only its holder may write and that everyone else watches.
// It does not make readers see a change at the same moment, and does not keep
// values: a watcher sees the last one in the end, and may miss some
// before. What it gives: once a value was stored under a token, none is stored
// under a lower one, and no reader sees tokens fall.
//
//	values, err := value.New(etcd.NewValues(client, "config/"), nil)
//	err = locks.Do(ctx, "limits", func(ctx context.Context, c interlock.Claim) error {
//		return values.Put(ctx, c, []byte("100 per second"))
//	})
//	…
//	for v, err := range values.Watch(ctx, "limits") {
//		// v.Data is how it is now, v.Token says under which claim it was written
//	}
//
// A value is read and written as bytes; [JSON] is a view of it as a Go type.
//
// # What a late request can do
//
// The store orders values by their tokens, and those of one token by when they
// arrive. A request that was given up, because no answer came, can still arrive
// behind a later one of the same claim and bring back what that had replaced.
// Where this matters, put whatever is decided into one value and take a new
// claim after an error that is [interlock.ErrUncertain].
package value

import (
	"cmp"
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
)

// DefaultAttempts is how many requests in a row may fail if Options do not say.
const DefaultAttempts = 6

// retries is how long to wait between requests that failed.
var retries = backoff.Policy{First: 100 * time.Millisecond, Max: 2 * time.Second}

// Options of a [Store]; nil and the zero value work.
type Options struct {
	// Attempts is how many requests in a row may fail before Put and Get give
	// up, waiting between them with capped exponential backoff and jitter
	// (about 5 s in all by default); 0 means [DefaultAttempts].
	Attempts int
	// Interrupted is called each time that a watch of name was interrupted and is
	// about to be opened again; nil disables it. It must return at once.
	Interrupted func(name string, err error)
}

// Store keeps values that only holders of their claims write. It is safe for
// concurrent use.
type Store struct {
	values  driver.Values
	options Options

	mu     sync.Mutex
	random *rand.Rand
}

// New makes a store of v, which a driver package provides. It does not block. It
// fails, with an error of kind Bug, if the options are impossible.
func New(v driver.Values, o *Options) (*Store, error) {
	s := &Store{values: v}
	if o != nil {
		s.options = *o
	}
	if s.options.Attempts < 0 {
		return nil, &interlock.Error{Op: "make store of values", Kind: interlock.Bug, Err: errors.New("a negative number of Attempts")}
	}
	s.options.Attempts = cmp.Or(s.options.Attempts, DefaultAttempts)
	var seed [16]byte
	_, _ = crand.Read(seed[:]) // it never fails
	s.random = rand.New(rand.NewPCG(binary.LittleEndian.Uint64(seed[:8]), binary.LittleEndian.Uint64(seed[8:])))
	return s, nil
}

// Put stores data, at most [driver.MaxValue] bytes, as the value of what c
// claims, and is done when the store has it. It refuses a claim that has ended,
// with the cause, before anything is sent. That saves a request and protects
// nothing: a claim can end right afterwards. What protects is the store, which
// refuses a token below that of the value with an [interlock.StaleTokenError].
//
// It retries what is Retryable or Uncertain, which converges, until Attempts, c
// or ctx are at an end. If one of its requests had no answer and none after it
// worked, the error is Uncertain, whatever the last one said.
func (s *Store) Put(ctx context.Context, c interlock.Claim, data []byte) error {
	const op = "put value"
	if err := writable(op, c, data); err != nil {
		return err
	}
	ctx, cancel := whileHeld(ctx, c)
	defer cancel(nil)
	v := driver.Value{Data: data, Token: c.Token(), Source: c.Owner()}
	doubt := false
	err := s.retry(ctx, func() error {
		if !c.Valid() {
			return over(op, c)
		}
		err := s.values.Put(ctx, c.Name(), v)
		doubt = doubt || err != nil && interlock.Kind(err) == interlock.Uncertain
		return err
	})
	if err != nil && doubt && interlock.Kind(err) != interlock.Uncertain {
		err = &interlock.Error{Op: op, Name: c.Name(), Kind: interlock.Uncertain, Err: err}
	}
	return err
}

// Get reads the value of name with the token that it was written under, as it is
// at some instant during the call. If nothing was ever written it is the zero
// Value. It retries as Put does.
func (s *Store) Get(ctx context.Context, name string) (v driver.Value, err error) {
	if err := named("get value", name); err != nil {
		return v, err
	}
	err = s.retry(ctx, func() error {
		v, err = s.values.Get(ctx, name)
		return err
	})
	return v, err
}

// retry tries until it works, must not be repeated, or was tried often enough.
func (s *Store) retry(ctx context.Context, try func() error) error {
	for n := 1; ; n++ {
		err := try()
		if err == nil || !repeatable(err) || n == s.options.Attempts {
			return err
		}
		if !s.pause(ctx, n) {
			return fmt.Errorf("%w; then %w", err, context.Cause(ctx))
		}
	}
}

func repeatable(err error) bool {
	kind := interlock.Kind(err)
	return kind == interlock.Retryable || kind == interlock.Uncertain
}

// pause waits before the next attempt, after n have failed. It is false if ctx
// ends first.
func (s *Store) pause(ctx context.Context, n int) bool {
	s.mu.Lock()
	delay := retries.Delay(n, s.random.Float64())
	s.mu.Unlock()
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// writable refuses what is not worth a request.
func writable(op string, c interlock.Claim, data []byte) error {
	if err := named(op, c.Name()); err != nil {
		return err
	}
	switch {
	case !c.Token().Valid():
		return bug(op, c.Name(), fmt.Errorf("token %d was never issued", int64(c.Token())))
	case len(data) > driver.MaxValue:
		return bug(op, c.Name(), fmt.Errorf("it has %d bytes, at most %d are allowed", len(data), driver.MaxValue))
	}
	return nil
}

func named(op, name string) error {
	if name != "" && len(name) <= driver.MaxName {
		return nil
	}
	return bug(op, name, fmt.Errorf("%w: it has %d bytes, 1 to %d are allowed", interlock.ErrName, len(name), driver.MaxName))
}

func bug(op, name string, err error) error {
	return &interlock.Error{Op: op, Name: name, Kind: interlock.Bug, Err: err}
}

// over says why a claim has ended. Its timer may not have run yet.
func over(op string, c interlock.Claim) error {
	cause := context.Cause(c.Context())
	if cause == nil {
		cause = interlock.ErrExpired
	}
	return &interlock.Error{Op: op, Name: c.Name(), Kind: interlock.Definite, Err: cause}
}

// whileHeld is ctx until the claim ends.
func whileHeld(ctx context.Context, c interlock.Claim) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.Context(), func() { cancel(context.Cause(c.Context())) })
	return ctx, func(cause error) {
		stop()
		cancel(cause)
	}
}
