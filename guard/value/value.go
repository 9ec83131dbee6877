// Package value stores one small value under the name of a claim. An example is a configuration
// that only the holder may write and that all others watch. Readers do not see a change at the
// same moment. It keeps no history: a watcher always sees the last value, and may miss earlier
// ones. Its promise: once a value was stored under a token, none is stored under a lower one.
// No reader sees tokens decrease.
//
//	values, err := value.New(etcd.NewValues(client, "config/"), nil)
//	err = locks.Do(ctx, "limits", func(ctx context.Context, c interlock.Claim) error {
//		return values.Put(ctx, c, []byte("100 per second"))
//	})
//	…
//	for v, err := range values.Watch(ctx, "limits") {
//		// v.Data is the current value, v.Token is the token of its write
//	}
//
// Values are bytes; [JSON] is a view of them as a Go type.
//
// # Delayed requests
//
// The store orders values by their tokens, and values of one token by arrival. If a request had
// no reply and was abandoned, it can still arrive after a later one of the same claim. Then it
// restores the value that the later one had replaced. If this matters, put everything that is
// decided into one value, and acquire a new claim after an error that is
// [interlock.ErrUncertain].
package value

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/join"
)

// DefaultAttempts is the default of Options.Attempts.
const DefaultAttempts = 6

// retries is the delay between requests that failed.
var retries = backoff.Policy{First: 100 * time.Millisecond, Max: 2 * time.Second}

// Options configure a [Store]; nil and the zero value are valid.
type Options struct {
	// Attempts is how many requests in a row may fail before Put and Get return the error; 0
	// means [DefaultAttempts]. Between them is a capped exponential backoff with jitter, about
	// 5 s in all by default.
	Attempts int
	// Interrupted is called each time that a watch of name was interrupted and is about to be
	// opened again; nil disables it. It must return at once.
	Interrupted func(name string, err error)
}

// Store keeps values that only holders of their claims can write. It is safe for concurrent
// use.
type Store struct {
	values  driver.Values
	options Options
}

// New returns a store on v, which a driver package provides. It does not block. If the options
// are invalid, the error is of kind Bug.
func New(v driver.Values, o *Options) (*Store, error) {
	s := &Store{values: v}
	s.options = *cmp.Or(o, &Options{})
	if s.options.Attempts < 0 {
		return nil, failure.Bug("make store of values", "", "a negative number of Attempts")
	}
	s.options.Attempts = cmp.Or(s.options.Attempts, DefaultAttempts)
	return s, nil
}

// Put stores data, at most [driver.MaxValue] bytes, as the value of c's name. It returns once
// the store has stored the data. If c has ended, it returns the cause and sends nothing. That
// check only saves a request, because a claim can end right afterwards. The store protects the
// value: it rejects a token below that of the value with an [interlock.StaleTokenError].
//
// Put retries after Retryable and Uncertain errors, which converges, until Attempts are used
// up, c ends or ctx ends. If a request had no reply and none after it succeeded, the error is
// Uncertain, whatever the last one was.
func (s *Store) Put(ctx context.Context, c interlock.Claim, data []byte) error {
	const op = "put value"
	if err := writable(op, c, data); err != nil {
		return err
	}
	ctx, leave := join.Context(ctx, c.Context())
	defer leave()
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

// Get reads the value of name and its token at some instant during the call. If nothing was
// ever written, it returns the zero Value. It retries as Put does.
func (s *Store) Get(ctx context.Context, name string) (v driver.Value, err error) {
	if err := checkName("get value", name); err != nil {
		return v, err
	}
	err = s.retry(ctx, func() error {
		v, err = s.values.Get(ctx, name)
		return err
	})
	return v, err
}

// retry repeats try until it succeeds, must not be repeated, or has no attempts left.
func (s *Store) retry(ctx context.Context, try func() error) error {
	for n := 1; ; n++ {
		err := try()
		if err == nil || !repeatable(err) || n == s.options.Attempts {
			return err
		}
		if !retries.Wait(ctx, n) {
			return fmt.Errorf("%w; then %w", err, context.Cause(ctx))
		}
	}
}

func repeatable(err error) bool {
	kind := interlock.Kind(err)
	return kind == interlock.Retryable || kind == interlock.Uncertain
}

// writable returns an error for arguments that no store accepts.
func writable(op string, c interlock.Claim, data []byte) error {
	if err := checkName(op, c.Name()); err != nil {
		return err
	}
	switch {
	case !c.Token().Valid():
		return failure.Bug(op, c.Name(), "token %d was never issued", int64(c.Token()))
	case len(data) > driver.MaxValue:
		return failure.Bug(op, c.Name(), "it has %d bytes, at most %d are allowed", len(data), driver.MaxValue)
	}
	return nil
}

func checkName(op, name string) error {
	if name != "" && len(name) <= driver.MaxName {
		return nil
	}
	return failure.Bug(op, name, "%w: it has %d bytes, 1 to %d are allowed", interlock.ErrName, len(name), driver.MaxName)
}

// over returns the error for a claim that has ended. Its context may not have ended yet.
func over(op string, c interlock.Claim) error {
	cause := context.Cause(c.Context())
	if cause == nil {
		cause = interlock.ErrExpired
	}
	return &interlock.Error{Op: op, Name: c.Name(), Kind: interlock.Definite, Err: cause}
}

// JSON is a view of a [Store] whose values are of type T, stored as JSON. It has no state of
// its own; create one wherever it is needed.
type JSON[T any] struct{ Store *Store }

// Of is a decoded value.
type Of[T any] struct {
	Data    T               // the zero T if nothing was ever written
	Token   interlock.Token // of the write; 0 if nothing was ever written
	Source  string          // the writer, for people
	Written time.Time       // by the store's clock; zero if not known
}

// Put stores data as [Store.Put] does. If data cannot be encoded as JSON, the error is a Bug.
func (j JSON[T]) Put(ctx context.Context, c interlock.Claim, data T) error {
	text, err := json.Marshal(data)
	if err != nil {
		return failure.Bug("put value", c.Name(), "%w", err)
	}
	return j.Store.Put(ctx, c, text)
}

// Get reads the value as [Store.Get] does. If the value is not a T, the error is Definite, and
// the result has only its token, source and time.
func (j JSON[T]) Get(ctx context.Context, name string) (Of[T], error) {
	v, err := j.Store.Get(ctx, name)
	if err != nil {
		return Of[T]{}, err
	}
	return decode[T](name, v)
}

// Watch yields values as [Store.Watch] does. If a value is not a T, Watch yields its token with
// a Definite error and continues.
func (j JSON[T]) Watch(ctx context.Context, name string) iter.Seq2[Of[T], error] {
	return func(yield func(Of[T], error) bool) {
		for v, err := range j.Store.Watch(ctx, name) {
			var of Of[T]
			if err == nil {
				of, err = decode[T](name, v)
			}
			if !yield(of, err) {
				return
			}
		}
	}
}

func decode[T any](name string, v driver.Value) (Of[T], error) {
	of := Of[T]{Token: v.Token, Source: v.Source, Written: v.Written}
	if v.Token == 0 {
		return of, nil
	}
	if err := json.Unmarshal(v.Data, &of.Data); err != nil {
		var none T
		of.Data = none
		return of, &interlock.Error{Op: "decode value", Name: name, Kind: interlock.Definite,
			Err: fmt.Errorf("the value that %s wrote with token %d is not a %T: %w", v.Source, v.Token, none, err)}
	}
	return of, nil
}
