package etcd

import (
	"fmt"
	"math"

	"github.com/interlock-dev/interlock"
)

// An OverdrawnError rejects an amount that would make a balance negative, or larger
// than a balance can be. It is Definite, and leaves the branch unchanged.
type OverdrawnError struct {
	Account string
	Balance int64 // as the branch sees it
	Amount  int64 // to be added
}

// Error includes both numbers.
func (e *OverdrawnError) Error() string {
	return fmt.Sprintf("%d added to the %d of account %q is not between 0 and %d", e.Amount, e.Balance, e.Account, int64(math.MaxInt64))
}

// ErrorKind returns Definite.
func (e *OverdrawnError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// A ChangedError rejects a branch whose reads are outdated. Like an
// interlock.HeldError it is Retryable, by another branch, which reads again.
type ChangedError struct {
	Name  string
	Read  int64 // the version that the branch read, 0 if there was none
	Found int64 // the current version
}

// Error includes both versions.
func (e *ChangedError) Error() string {
	return fmt.Sprintf("%q was changed: version %d was read, and version %d is stored", e.Name, e.Read, e.Found)
}

// ErrorKind returns Retryable.
func (e *ChangedError) ErrorKind() interlock.ErrorKind { return interlock.Retryable }
