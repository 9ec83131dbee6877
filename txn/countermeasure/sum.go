package countermeasure

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/txn/branch"
)

// Sum is a number in a user's row that changes by differences only, and is never set to a
// computed value: the commutative update. Differences of concurrent sagas, and their reversals,
// yield the same number in any order. So none is lost and no saga waits. A difference that would
// exceed a bound is rejected.
//
// It does not report what the number was when a saga read it. The reversal of an increase can be
// rejected by Min if others have used the increase meanwhile, so put increases after the pivot:
// see [CheckOrder].
type Sum struct {
	// Table is the table, or schema.table. Key is a unique column, by which a row is found. Its
	// text is converted to the column's type; on MariaDB it must be the text that the database
	// writes for the key. Column has 64-bit integers, not NULL. All names are trusted: never
	// take them from a request.
	Table, Key, Column string
	// Min is the lowest value: the zero Sum does not fall below 0. Use math.MinInt64 for no
	// bound.
	Min int64
	// Max is the highest value; 0 means the maximum of the type. Below Min it is a Bug.
	Max int64
}

// A BoundError reports that a difference would exceed a bound. Nothing was done. It is Definite:
// retrying helps only after others have changed the number.
type BoundError struct {
	Table, Key string
	Value      int64 // the current number; 0 if Again is set
	Delta      int64 // of the rejected call
	Min, Max   int64 // the bounds
	// Again means that an earlier call was rejected, and that the rejection stays: see
	// [Sum.Apply].
	Again bool
}

// Error returns all fields.
func (e *BoundError) Error() string {
	if e.Again {
		return fmt.Sprintf("adding %d to %q of table %s was refused before, by bounds of %d and %d", e.Delta, e.Key, e.Table, e.Min, e.Max)
	}
	return fmt.Sprintf("%q of table %s is %d: adding %d would pass the bounds of %d and %d", e.Key, e.Table, e.Value, e.Delta, e.Min, e.Max)
}

// ErrorKind is [interlock.Definite].
func (e *BoundError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// A NoRowError reports that no row has the key. It is Definite.
type NoRowError struct {
	Table, Key string
}

// Error names the table and the key.
func (e *NoRowError) Error() string { return fmt.Sprintf("table %s has no row %q", e.Table, e.Key) }

// ErrorKind is [interlock.Definite].
func (e *NoRowError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// Add adds delta, which must not be 0, to the number of a key. Every call adds, so it must be
// behind the step's barrier; [Sum.Apply] needs none. The undo adds -delta. Errors are a
// [BoundError] and a [NoRowError]; others are the database's. The row stays locked until the
// transaction ends: call it late. It costs one statement, and up to two more if rejected.
func (s Sum) Add(ctx context.Context, db driver.SQL, key string, delta int64) error {
	const op = "add"
	switch {
	case delta == 0 || delta == math.MinInt64:
		return failure.Bug(op, key, "%d is not a difference that can be reversed", delta)
	case s.max() < s.Min:
		return failure.Bug(op, key, "bounds of %d and %d", s.Min, s.Max)
	}
	r, err := findRow(op, db, s.Table, s.Key, s.Column, key)
	if err != nil {
		return err
	}
	low, high, possible := s.between(delta)
	if possible {
		if done, err := r.add(ctx, delta, low, high); done || err != nil {
			return err
		}
	}
	value, err := r.lock(ctx)
	if err != nil {
		return err
	}
	if possible && value >= low && value <= high { // another transaction has changed it since
		if done, err := r.add(ctx, delta, low, high); done || err != nil {
			return err
		}
	}
	return &BoundError{Table: s.Table, Key: key, Value: value, Delta: delta, Min: s.Min, Max: s.max()}
}

func (s Sum) max() int64 {
	if s.Max == 0 {
		return math.MaxInt64
	}
	return s.Max
}

// between returns the bounds of the number before delta is added, so that no sum overflows the type. A
// number that is already beyond a bound may move towards it.
func (s Sum) between(delta int64) (low, high int64, possible bool) {
	if delta > 0 {
		return math.MinInt64, s.max() - delta, s.max() >= math.MinInt64+delta
	}
	return s.Min - delta, math.MaxInt64, s.Min <= math.MaxInt64+delta
}

// Apply adds delta for a call, and subtracts it for the call's Undo or Cancel: each once, for any
// repetition and order of calls. It logs the call in file, on a record named by the table, the
// column and the key, and needs no barrier. Operations other than Do, Try, Undo and Cancel are a
// Bug.
//
// A [BoundError] with the verdict [Refused] is one for branch.Fail. Commit it: a repeated call is
// then rejected again, even if there is room, and its undo does nothing. After any other error,
// including the BoundError of an undo, the transaction must be rolled back, so that the call is
// not logged.
func (s Sum) Apply(ctx context.Context, db driver.SQL, file VersionFile, c branch.Call, key string, delta int64) (Verdict, error) {
	if c.Transaction == "" || c.Branch == "" {
		return 0, failure.Bug("add", key, "a call of transaction %q and branch %q", c.Transaction, c.Branch)
	}
	record, id := short(s.Table+"/"+s.Column+"/"+key), OperationID(c)
	switch c.Operation {
	case branch.Do, branch.Try:
		verdict, err := file.Log(ctx, db, Operation{Record: record, ID: id, Data: strconv.AppendInt(nil, delta, 10)})
		switch {
		case err == nil && verdict == Apply:
			return s.apply(ctx, db, file, record, id, key, delta)
		case err == nil && verdict == Refused:
			err = &BoundError{Table: s.Table, Key: key, Delta: delta, Min: s.Min, Max: s.max(), Again: true}
		}
		return verdict, err
	case branch.Undo, branch.Cancel:
		verdict, data, err := file.Cancel(ctx, db, record, id)
		if err != nil || verdict != Reverse {
			return verdict, err
		}
		logged, err := driver.ParseInt(string(data))
		if err != nil {
			return 0, failure.Bug("subtract", key, "the version file has %q for a difference", data)
		}
		return verdict, s.Add(ctx, db, key, -logged)
	}
	return 0, failure.Bug("add", key, "operation %q is neither a do nor an undo", string(c.Operation))
}

// apply adds a logged difference, or logs its rejection.
func (s Sum) apply(ctx context.Context, db driver.SQL, file VersionFile, record, id, key string, delta int64) (Verdict, error) {
	err := s.Add(ctx, db, key, delta)
	var passed *BoundError
	if !errors.As(err, &passed) {
		return Apply, err
	}
	if err := file.Refuse(ctx, db, record, id); err != nil {
		return 0, err
	}
	return Refused, err
}
