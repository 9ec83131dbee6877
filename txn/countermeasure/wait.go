package countermeasure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/transact"
)

// Patience bounds [Wait]. The zero value and nil work.
type Patience struct {
	// For bounds the repetitions; 0 means 5 seconds.
	For time.Duration
	// First and Max bound the pauses. A pause is random below a bound that doubles from First
	// to Max. 0 means 10 ms and 500 ms.
	First, Max time.Duration
	// Random returns a number in [0, 1); nil means the process's generator.
	Random func() float64
}

func (p *Patience) filled() (Patience, error) {
	var f Patience
	if p != nil {
		f = *p
	}
	if f.For < 0 || f.First < 0 || f.Max < 0 {
		return f, failure.Bug("wait for flag", "", "a negative time in %+v", [...]time.Duration{f.For, f.First, f.Max})
	}
	f.For = cmp.Or(f.For, 5*time.Second)
	f.First, f.Max = cmp.Or(f.First, 10*time.Millisecond), cmp.Or(f.Max, 500*time.Millisecond)
	if f.Random == nil {
		f.Random = rand.Float64
	}
	return f, nil
}

// Wait runs fn in a transaction and commits it. While fn returns a [HeldError], Wait rolls back,
// pauses and runs it in another transaction, until p.For is over; then it returns that error.
// Nothing is locked during pauses, so the flag's owner can continue. It retries nothing else:
// other errors may be permanent, and an Uncertain error means that COMMIT got no answer.
//
// Two sagas that wait for each other's flags both fail, because the wait is bounded. Flag
// resources in one order, or treat the HeldError as a reason to undo.
func Wait[T any](ctx context.Context, db driver.Beginner[T], p *Patience, fn func(ctx context.Context, tx T) error) error {
	patience, err := p.filled()
	if err != nil {
		return err
	}
	if db == nil || fn == nil {
		return failure.Bug("wait for flag", "", "a database and a function are required")
	}
	waiting, cancel := context.WithTimeout(ctx, patience.For)
	defer cancel()
	for n := 1; ; n++ {
		err := transact.Do(ctx, db.Begin, "", func(tx driver.Tx[T]) error { return tx.Classify(fn(ctx, tx.Native())) })
		var held *HeldError
		if !errors.As(err, &held) {
			return err
		}
		if !backoff.Sleep(waiting, backoff.Policy{First: patience.First, Max: patience.Max}.Delay(n, patience.Random())) {
			if ctx.Err() != nil {
				err = fmt.Errorf("%w; then %w", err, context.Cause(ctx))
			}
			return err
		}
	}
}
