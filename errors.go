package interlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// ErrorKind is what a caller may conclude from an error. See [Kind].
type ErrorKind int

const (
	// Uncertain means that the operation may or may not have happened. Repeating it with the
	// same owner or request id converges. An error of unknown origin is Uncertain, because that
	// is the weakest conclusion.
	Uncertain ErrorKind = iota
	// Definite means that the operation did not happen, and that repeating it unchanged will
	// not help.
	Definite
	// Retryable means that the operation did not happen, and that the same call may succeed
	// later.
	Retryable
	// Bug means that the caller or Interlock broke a rule; nothing was done.
	Bug
)

// String returns the kind's name in lower case.
func (k ErrorKind) String() string {
	switch k {
	case Definite:
		return "definite"
	case Retryable:
		return "retryable"
	case Bug:
		return "bug"
	}
	return "uncertain"
}

// Sentinel errors, to be tested with [errors.Is]. The first four are the causes with which a
// claim's context ends.
var (
	// ErrReleased means that the holder released the claim.
	ErrReleased = errors.New("claim released")
	// ErrExpired means that no renewal was confirmed in time. Another process may hold the
	// claim from now on.
	ErrExpired = errors.New("claim expired: no renewal was confirmed in time")
	// ErrLost means that the backend no longer names this process as the holder.
	ErrLost = errors.New("claim lost: the backend no longer names this process as the holder")
	// ErrSessionEnded means that the session of the claim has ended.
	ErrSessionEnded = errors.New("session ended, and the claim with it")

	// ErrHeld means that another process holds the name, and that the call did not wait or
	// waited long enough. The error is a [*HeldError].
	ErrHeld = errors.New("held by another process")
	// ErrUncertain means that a reply was lost; the operation may have happened.
	ErrUncertain = errors.New("outcome unknown")
	// ErrStaleToken means that a guard has seen a higher token. The error is a
	// [*StaleTokenError].
	ErrStaleToken = errors.New("stale token")
	// ErrImplausibleToken means that the token is further in the future than any counter can
	// be; a guard refuses to store it.
	ErrImplausibleToken = errors.New("implausible token")
	// ErrUnmet means that a backend does not promise what the caller requires. The error is an
	// [*UnmetError].
	ErrUnmet = errors.New("requirement not met")
	// ErrReentered means that the caller's context already holds this name.
	ErrReentered = errors.New("already held by the caller's own context")
	// ErrName means that a name is empty, too long or not allowed by the backend.
	ErrName = errors.New("name not allowed")
	// ErrClosed means that the lock or driver was closed.
	ErrClosed = errors.New("closed")
)

// Kind returns what the caller may conclude from err. It returns:
//
//   - the kind of an error of Interlock, wherever the error is in the chain
//   - Definite for the bare error of a context or the cause of a claim's end: the call that
//     returned it had not begun
//   - [Uncertain] for everything else, also for such an error that another package wrapped,
//     because clients wrap it whatever they have sent
//   - Definite for nil, without meaning
func Kind(err error) ErrorKind {
	var k interface{ ErrorKind() ErrorKind }
	switch {
	case err == nil:
		return Definite
	case errors.As(err, &k):
		return k.ErrorKind()
	case errors.Is(err, ErrUncertain):
		return Uncertain
	case errors.Is(err, ErrReentered), errors.Is(err, ErrClosed), errors.Is(err, ErrName):
		return Bug
	}
	for _, e := range []error{ErrReleased, ErrExpired, ErrLost, ErrSessionEnded, ErrImplausibleToken,
		context.Canceled, context.DeadlineExceeded} {
		if err == e {
			return Definite
		}
	}
	return Uncertain
}

// An Error names the operation, its object, the cause and the kind. The backend's native error
// is in its chain, for [errors.As].
type Error struct {
	Op     string    // what was tried, in the infinitive: "acquire", "raise mark"
	Driver string    // "redis", "etcd", …; empty where no backend took part
	Name   string    // the lock or resource; empty where there is none
	Kind   ErrorKind // what the caller may conclude
	Err    error     // why; never nil
}

// Error returns one line: driver: op "name": cause.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Driver != "" {
		b.WriteString(e.Driver + ": ")
	}
	b.WriteString(e.Op)
	if e.Name != "" {
		fmt.Fprintf(&b, " %q", e.Name)
	}
	switch {
	case e.Kind == Uncertain && endOfClaim(e.Err): // what ran under it is not ours to repeat
		b.WriteString(": outcome unknown")
	case e.Kind == Uncertain:
		b.WriteString(": outcome unknown, repeating is safe")
	}
	return b.String() + ": " + e.Err.Error()
}

// endOfClaim reports whether work ended because its claim did.
func endOfClaim(err error) bool {
	return errors.Is(err, ErrExpired) || errors.Is(err, ErrLost) || errors.Is(err, ErrSessionEnded) || errors.Is(err, ErrReleased)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// ErrorKind returns what the caller may conclude.
func (e *Error) ErrorKind() ErrorKind { return e.Kind }

// Is reports that every error of kind [Uncertain] is an [ErrUncertain].
func (e *Error) Is(target error) bool { return e.Kind == Uncertain && target == ErrUncertain }

// A HeldError names the holder of a name. It is an [ErrHeld] and Retryable.
type HeldError struct {
	Name  string
	Owner string    // empty if unknown
	Since time.Time // by the backend's clock; zero if unknown
	Until time.Time // when it expires unless it is renewed; zero if it does not expire, or if unknown
}

// Error names the holder if it is known.
func (e *HeldError) Error() string {
	if e.Owner == "" {
		return fmt.Sprintf("%q is held by another process", e.Name)
	}
	return fmt.Sprintf("%q is held by %s", e.Name, e.Owner)
}

// Unwrap returns [ErrHeld].
func (e *HeldError) Unwrap() error { return ErrHeld }

// ErrorKind returns [Retryable].
func (e *HeldError) ErrorKind() ErrorKind { return Retryable }

// A StaleTokenError means that a guard rejected a token. It is an [ErrStaleToken] and Definite.
type StaleTokenError struct {
	Resource string
	Seen     Token // the highest token that has entered
	Got      Token // the token that was refused
}

// Error names both tokens.
func (e *StaleTokenError) Error() string {
	return fmt.Sprintf("stale token for %q: got %d, but %d has entered", e.Resource, e.Got, e.Seen)
}

// Unwrap returns [ErrStaleToken].
func (e *StaleTokenError) Unwrap() error { return ErrStaleToken }

// ErrorKind returns [Definite].
func (e *StaleTokenError) ErrorKind() ErrorKind { return Definite }

// An UnmetError lists every requirement that a backend does not meet. It is an [ErrUnmet] and
// Definite.
type UnmetError struct {
	Driver string
	Unmet  []string // one sentence each: what was required, what is promised
}

// Error lists all of them.
func (e *UnmetError) Error() string {
	return e.Driver + " does not meet what is required: " + strings.Join(e.Unmet, "; ")
}

// Unwrap returns [ErrUnmet].
func (e *UnmetError) Unwrap() error { return ErrUnmet }

// ErrorKind returns [Definite].
func (e *UnmetError) ErrorKind() ErrorKind { return Definite }
