package memory

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Values keeps one small value for each name in memory. It is the executable
// specification of driver.Values: a Put is one step under a mutex, by this
// process's clock. Use [Space.Values].
type Values struct {
	mu     sync.Mutex
	values map[string]driver.Value
	next   map[string]chan struct{} // by name: closed by the next Put
}

var _ driver.Values = (*Values)(nil)

func newValues() *Values {
	return &Values{values: map[string]driver.Value{}, next: map[string]chan struct{}{}}
}

// Values returns the space's one store of values.
func (s *Space) Values() *Values { return s.values }

// Put stores a value if its token is not below the stored one; see driver.Values.
func (v *Values) Put(ctx context.Context, name string, value driver.Value) error {
	const op = "put value"
	if err := asking(ctx, op, name); err != nil {
		return err
	}
	if !value.Token.Valid() {
		return noToken(op, name, value.Token)
	}
	if len(value.Data) > driver.MaxValue {
		return fail.New(op, name, interlock.Bug, fmt.Errorf("it has %d bytes, at most %d are allowed", len(value.Data), driver.MaxValue))
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	now, seen := time.Now(), v.values[name].Token
	if seen > value.Token {
		return fail.New(op, name, interlock.Definite,
			&interlock.StaleTokenError{Resource: name, Seen: seen, Got: value.Token})
	}
	if err := plausible(op, name, value.Token, now); err != nil {
		return err
	}
	value.Data, value.Written = slices.Clone(value.Data), now
	v.values[name] = value
	if next := v.next[name]; next != nil {
		delete(v.next, name)
		close(next)
	}
	return nil
}

// Get reads a value; see driver.Values. The caller owns the data.
func (v *Values) Get(ctx context.Context, name string) (driver.Value, error) {
	if err := asking(ctx, "get value", name); err != nil {
		return driver.Value{}, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.get(name), nil
}

// Watch calls each with the present value and with later ones, of which it may skip
// some; see driver.Values.
func (v *Values) Watch(ctx context.Context, name string, each func(driver.Value)) error {
	for {
		if err := asking(ctx, "watch value", name); err != nil {
			return err
		}
		value, next := v.follow(name)
		each(value)
		select {
		case <-next:
		case <-ctx.Done():
		}
	}
}

// follow returns the value, and a channel that is closed when there is a later one.
func (v *Values) follow(name string) (driver.Value, <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.next[name] == nil {
		v.next[name] = make(chan struct{})
	}
	return v.get(name), v.next[name]
}

// get copies the value. The caller holds the mutex.
func (v *Values) get(name string) driver.Value {
	value := v.values[name]
	value.Data = slices.Clone(value.Data)
	return value
}
