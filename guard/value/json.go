package value

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

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
		return bug("put value", c.Name(), err)
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
