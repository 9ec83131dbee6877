// Package driver defines the interfaces that a backend implements. It contains no logic for
// users of locks, who use claim/lock and guard/fence.
//
// A driver sends requests, renews its grants, and reports their loss. The portable types above
// it queue goroutines, retry, count hand-overs, end contexts and release. To write one, start
// from driver/memory, the executable specification, and run driver/drivertest against the real
// system. The interfaces may change until version 1.
//
// # Obligations of every driver
//
//   - Atomicity: a check and the write that depends on it are one atomic step of the backend.
//   - Tokens: they rise in the order of grants, across processes and restarts; see [Fenced]. A
//     store rejects tokens that are lower than a stored one, or implausible; see [Fence].
//   - Clocks: a deadline is monotonic, on package boottime, and starts when the request was
//     sent; see [Lease]. What expires in a store expires by the store's clock.
//   - Unknown outcomes: a lost reply is Uncertain, never Definite or Retryable. Each error has
//     an interlock.Kind, and errors.As reaches the backend's native error. A driver never
//     retries a request, nor does its client library: a write that is sent twice unnoticed can
//     look like another owner's. The caller repeats a call, which converges by its owner, id,
//     position or stamp. What no caller requested is not a retry: a renewal, the opening of a
//     session, clean-up.
//   - Contexts: a method returns soon after ctx is done, with an error that wraps
//     context.Cause(ctx). If something that was sent by then may take effect, the error is
//     Uncertain. If nothing was sent, or the store refused it, the error is Definite.
//   - Goroutines: every method is safe for concurrent use. No goroutine outlives Close. After a
//     call of Release no callback of its request is called; see [Events].
//   - Release is idempotent: it removes the grant, the place in the queue or the attempt with
//     an unknown outcome, and never affects another owner; see [Advisory].
//   - Close ends all renewal and every goroutine, and waits for them. Held leases expire. Later
//     calls return interlock.ErrClosed.
//   - Names are data: they are never spliced into a script, a statement or a log line. If the
//     backend cannot store a name, the error is interlock.ErrName, and the name is not changed.
//   - Guarantees states only what a test shows.
//
// Each method documents its further obligations. Locks: [Advisory], [Fenced], and the optional
// [Batch], [Inspector], [Watcher] and [Breaker]. Stores: [Fence], [Values], [Versions], [Stock],
// [Once], [Idempotency], [KeyValues], [Lattices], and [Limiter], whose calls do not converge.
// Transactions: [Journal], [Barrier], [Preparer], [Participant]. Messages: [Queue], [Sink],
// [Notifier].
package driver

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/interlock-dev/interlock"
)

// CheckText returns an error unless text has least to most bytes of UTF-8 without NUL. All
// stores apply it to ids, names and types. The error wraps [interlock.ErrName] and describes
// the text as what; the caller adds the operation and the kind Bug.
func CheckText(what, text string, least, most int) error {
	if len(text) < least || len(text) > most || !utf8.ValidString(text) || strings.IndexByte(text, 0) >= 0 {
		return fmt.Errorf("%w: %s has %d to %d bytes of UTF-8 without NUL", interlock.ErrName, what, least, most)
	}
	return nil
}

// CheckName applies [CheckText] to a name of 1 to most bytes. Its error is a Bug of op and
// includes the first 64 bytes of the name.
func CheckName(op, what, name string, most int) error {
	if err := CheckText(what, name, 1, most); err != nil {
		return &interlock.Error{Op: op, Name: strings.ToValidUTF8(name[:min(len(name), 64)], "\uFFFD"), Kind: interlock.Bug, Err: err}
	}
	return nil
}
