package countermeasure

import (
	"fmt"
	"time"

	"github.com/interlock-dev/interlock"
)

// A Flag is what a [SemanticLock] knows of a resource. The zero Flag is nobody's.
type Flag struct {
	Resource string
	Owner    string // the transaction that flagged it; empty if nobody did
	Purpose  string // why, for people
	// Since is when it was flagged, and Until when it expires, by the database's
	// clock; zero if it is nobody's.
	Since, Until time.Time
	// Expired tells that Until has passed. The flag stands nevertheless: its owner
	// may be slow, and what it wrote may yet be undone.
	Expired bool
	// Former is the owner that it was taken over from, and empty if it was free.
	Former string
	// Risk is why it was taken over without knowing that Former had ended.
	Risk string
}

// A HeldError reports that another transaction has flagged the resource, possibly with an expired
// flag. Nothing was done. It is an interlock.ErrHeld and an [*interlock.HeldError], and
// Retryable.
type HeldError struct {
	Flag Flag
}

// Error names the resource, its owner, and until when.
func (e *HeldError) Error() string {
	verb := "expires at"
	if e.Flag.Expired {
		verb = "expired at"
	}
	return fmt.Sprintf("%q is flagged by transaction %q for %q, which %s %s", e.Flag.Resource, e.Flag.Owner, e.Flag.Purpose,
		verb, e.Flag.Until.Format(time.RFC3339))
}

// Unwrap makes it an [*interlock.HeldError].
func (e *HeldError) Unwrap() error {
	return &interlock.HeldError{Name: e.Flag.Resource, Owner: e.Flag.Owner, Since: e.Flag.Since, Until: e.Flag.Until}
}

// ErrorKind is [interlock.Retryable].
func (e *HeldError) ErrorKind() interlock.ErrorKind { return interlock.Retryable }

// A NotOwnerError reports that the transaction does not own the resource's flag any more, or
// never did. It is Definite.
type NotOwnerError struct {
	Owner string // who asked
	Flag  Flag   // as it is
}

// Error tells whose it is.
func (e *NotOwnerError) Error() string {
	if e.Flag.Owner == "" {
		return fmt.Sprintf("%q is not flagged by transaction %q, nor by any other", e.Flag.Resource, e.Owner)
	}
	return fmt.Sprintf("%q is not flagged by transaction %q, but by %q", e.Flag.Resource, e.Owner, e.Flag.Owner)
}

// ErrorKind is [interlock.Definite].
func (e *NotOwnerError) ErrorKind() interlock.ErrorKind { return interlock.Definite }
