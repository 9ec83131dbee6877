package sequence

import (
	"context"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// State is where a key is.
type State struct {
	Position       // all events up to here were delivered, or recorded as missing
	Holes    int64 // holes that are open
}

// A Move takes a key from one position to a later one.
type Move struct {
	Stream, Key string
	From, To    Position
	// Hole is recorded as open in the same step, unless it is nil. It ends at To.
	Hole *Hole
}

// Store keeps, durably and for each key of a stream, its position and its holes. T
// is what a handler works with: [InTx] lends it the transaction that moves the key,
// so that an effect in the same database happens once; a [Memory] lends nothing. A
// Store is safe for concurrent use, also by several processes, and retries nothing.
type Store[T any] interface {
	// Load tells where a key is; a key that nothing is known of has the zero State.
	Load(ctx context.Context, stream, key string) (State, error)
	// Advance makes a move in one atomic step with what fn does with T: all of it,
	// or nothing if there is an error, unless that is Uncertain. It fails with
	// [ErrConflict], and does not run fn, if the key is not at m.From. It keeps
	// others from moving the key until it returns.
	Advance(ctx context.Context, m Move, fn func(ctx context.Context, in T) error) error
	// Fill takes one position out of the open hole that it is in, in one atomic
	// step with fn, and returns the State that it leaves. It fails with
	// [ErrNoHole], and does not run fn, if there is none.
	Fill(ctx context.Context, stream, key string, at Position, fn func(ctx context.Context, in T) error) (State, error)
}

// maxStream is the longest name of a stream, in bytes.
const maxStream = 255

// named refuses what cannot be the name of a stream or a key.
func named(op, what, name string, most int) error {
	return driver.CheckName(op, "a "+what, name, most)
}

// both refuses what cannot be a stream and a key.
func both(op, stream, key string) error {
	if err := named(op, "stream", stream, maxStream); err != nil {
		return err
	}
	return named(op, "key", key, driver.MaxName)
}

// moved is ErrConflict of a key.
func moved(key string, from Position) error {
	return &interlock.Error{Op: "advance", Name: key, Kind: interlock.Retryable, Err: fmt.Errorf("it is not at %v: %w", from, ErrConflict)}
}

// noHole is ErrNoHole of a key.
func noHole(key string, at Position) error {
	return &interlock.Error{Op: "fill", Name: key, Kind: interlock.Definite, Err: fmt.Errorf("%v: %w", at, ErrNoHole)}
}
