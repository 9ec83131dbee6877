package interlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// ErrorKind says what a caller may conclude from an error. See [Kind].
type ErrorKind int

const (
	// Uncertain: the operation may or may not have happened. Repeating it with
	// the same owner or request id converges. An error of unknown origin is
	// Uncertain, because that is the weakest thing to say.
	Uncertain ErrorKind = iota
	// Definite: it did not happen, and repeating it unchanged will not help.
	Definite
	// Retryable: it did not happen; the same call may succeed later.
	Retryable
	// Bug: the caller or Interlock broke a rule; nothing was done.
	Bug
)

// String is the kind's name in lower case.
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

// The sentinels, to be tested with [errors.Is]. The first four are the causes
// with which a claim's context ends.
var (
	// ErrReleased: the holder gave the claim up.
	ErrReleased = errors.New("claim released")
	// ErrExpired: no renewal was confirmed in time. The claim may belong to
	// someone else from now on.
	ErrExpired = errors.New("claim expired: no renewal was confirmed in time")
	// ErrLost: the backend says that the claim is not ours any more.
	ErrLost = errors.New("claim lost: the backend no longer names us as the holder")
	// ErrSessionEnded: the session that carried the claim is gone.
	ErrSessionEnded = errors.New("session ended: the claim went with it")

	// ErrHeld: someone else holds the name, and the call was not to wait.
	// The error is a [*HeldError].
	ErrHeld = errors.New("held by another")
	// ErrUncertain: a reply was lost; the operation may have happened.
	ErrUncertain = errors.New("outcome unknown")
	// ErrStaleToken: a guard has seen a higher token. The error is a
	// [*StaleTokenError].
	ErrStaleToken = errors.New("stale token")
	// ErrImplausibleToken: the token lies further in the future than any
	// counter can be; a guard refuses to store it.
	ErrImplausibleToken = errors.New("implausible token")
	// ErrUnmet: a backend does not promise what was required of it. The error
	// is an [*UnmetError].
	ErrUnmet = errors.New("requirement not met")
	// ErrReentered: the caller's context already holds this name.
	ErrReentered = errors.New("already held by the caller's own context")
	// ErrName: a name is empty, too long or not allowed by the backend.
	ErrName = errors.New("name not allowed")
	// ErrClosed: the lock or driver was closed.
	ErrClosed = errors.New("closed")
)

// Kind says what the caller may conclude from err. Errors of this project
// answer for themselves, wherever they stand in the chain. The bare error of a
// context, or the cause of a claim's end, is Definite: the call that found it had not begun.
// Wrapped by somebody else it is not, because clients wrap it whatever they have sent.
// Everything else is [Uncertain]. Kind(nil) is Definite, and not worth asking.
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

// An Error says what was tried, on what, and what may be concluded. The native
// error of the backend is in its chain, for [errors.As].
type Error struct {
	Op     string    // what was tried, in the infinitive: "acquire", "raise mark"
	Driver string    // "redis", "etcd", …; empty where no backend took part
	Name   string    // the lock or resource; empty where there is none
	Kind   ErrorKind // what the caller may conclude
	Err    error     // why; never nil
}

// Error is one line: driver: op "name": why.
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

// Unwrap gives the reason.
func (e *Error) Unwrap() error { return e.Err }

// ErrorKind is what the caller may conclude.
func (e *Error) ErrorKind() ErrorKind { return e.Kind }

// Is makes every error of kind [Uncertain] answer to [ErrUncertain].
func (e *Error) Is(target error) bool { return e.Kind == Uncertain && target == ErrUncertain }

// A HeldError tells who holds a name. It is an [ErrHeld] and Retryable.
type HeldError struct {
	Name  string
	Owner string    // empty if the backend does not tell
	Since time.Time // zero if the backend does not tell; the backend's clock
	Until time.Time // when it expires if not renewed; zero if it does not expire by itself or is not known
}

// Error names the holder where it is known.
func (e *HeldError) Error() string {
	if e.Owner == "" {
		return fmt.Sprintf("%q is held by another", e.Name)
	}
	return fmt.Sprintf("%q is held by %s", e.Name, e.Owner)
}

// Unwrap makes it an [ErrHeld].
func (e *HeldError) Unwrap() error { return ErrHeld }

// ErrorKind is [Retryable].
func (e *HeldError) ErrorKind() ErrorKind { return Retryable }

// A StaleTokenError is a guard's refusal. It is an [ErrStaleToken] and Definite.
type StaleTokenError struct {
	Resource string
	Seen     Token // the highest token that has entered
	Got      Token // the token that was refused
}

// Error shows both tokens.
func (e *StaleTokenError) Error() string {
	return fmt.Sprintf("stale token for %q: got %d, but %d has entered", e.Resource, e.Got, e.Seen)
}

// Unwrap makes it an [ErrStaleToken].
func (e *StaleTokenError) Unwrap() error { return ErrStaleToken }

// ErrorKind is [Definite].
func (e *StaleTokenError) ErrorKind() ErrorKind { return Definite }

// An UnmetError lists every requirement that a backend does not promise to
// meet. It is an [ErrUnmet] and Definite.
type UnmetError struct {
	Driver string
	Unmet  []string // one sentence each: what was required, what is promised
}

// Error lists them all.
func (e *UnmetError) Error() string {
	return e.Driver + " does not meet what is required: " + strings.Join(e.Unmet, "; ")
}

// Unwrap makes it an [ErrUnmet].
func (e *UnmetError) Unwrap() error { return ErrUnmet }

// ErrorKind is [Definite].
func (e *UnmetError) ErrorKind() ErrorKind { return Definite }
