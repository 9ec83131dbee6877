package percolator

import (
	"errors"
	"fmt"

	"github.com/interlock-dev/interlock"
)

var (
	// ErrConflict means that another transaction has written, or is writing, a key that this one
	// wrote or, if serializable, read. Nothing was written. It is Retryable.
	ErrConflict = errors.New("conflict with another transaction")
	// ErrTooOld means that a version that the snapshot needs may have been collected: the
	// transaction is below the safe point, or reads a key that is written often. Or the
	// transaction is older than [MaxAge] at its commit. Nothing was written. It is Retryable by
	// a transaction that begins later.
	ErrTooOld = errors.New("the transaction is too old")
	// ErrTooLarge means that a key, a value, a record or a transaction exceeds its bound.
	// Nothing was written.
	ErrTooLarge = errors.New("too large")
	// ErrStores means that a key has no store, or that a lock was placed by a process that maps
	// its primary key to another store. Or a collection or a long snapshot lacks a store that
	// another process has. Give all processes the same Stores.
	ErrStores = errors.New("the stores of the keys do not agree")
	// ErrDone means that the transaction was committed or rolled back before.
	ErrDone = errors.New("the transaction has ended")

	errAborted   = errors.New("its locks expired, and another transaction rolled it back")
	errCollected = errors.New("its record was collected before it could be asked")
)

func failed(op, key string, kind interlock.ErrorKind, err error) error {
	return &interlock.Error{Op: op, Name: key, Kind: kind, Err: err}
}

// because returns the error of a transaction that wrote nothing.
func because(op, key string, a answer) error {
	switch a.outcome {
	case conflict:
		return failed(op, key, interlock.Retryable, fmt.Errorf("%w: a version of %v", ErrConflict, a.at.Time()))
	case locked, alive, missing:
		return failed(op, key, interlock.Retryable, fmt.Errorf("%w: a lock of one that began at %v", ErrConflict, a.lock.Start.Time()))
	case tooOld:
		return failed(op, key, interlock.Retryable, fmt.Errorf("%w: versions before %v were dropped", ErrTooOld, a.at.Time()))
	case aborted:
		return failed(op, key, interlock.Retryable, errAborted)
	case notPrimary:
		return failed(op, key, interlock.Definite, fmt.Errorf("%w: its lock names %q as primary", ErrStores, a.lock.Primary))
	}
	return failed(op, key, interlock.Uncertain, fmt.Errorf("unexpected state %d of the record", a.outcome))
}
