package driver

import (
	"context"
	"errors"
)

// Batch is an optional ability of a fenced lock driver: it takes several names in
// one step. It is for callers that would otherwise hold some of them while they
// wait for the others.
type Batch interface {
	// AcquireAll takes every name for its owner now, or nothing, in one atomic
	// step of the backend; grants are in the order of requests. It waits for
	// nobody, whatever NoWait says, and Events.Waiting is not called. No request
	// at all, a name or an owner that comes twice is a Bug.
	//
	// If somebody else holds or awaits any of the names the error is a
	// *interlock.HeldError with that name, and none of these owners has or
	// awaits anything. Names that cannot be taken in one step are refused with
	// [ErrNotInOneStep] before anything was sent or done. After any other error
	// some of them may be held, as after an Acquire: the caller repeats it
	// with the same requests, which converges, or calls Release for each owner.
	// A repetition that finds the grants of the first returns their tokens; one
	// that finds some of them gone takes those again, or gives back the others.
	//
	// Each grant has a token, is renewed, lost and released by itself, as that
	// of an Acquire is. Two names of one call may have equal tokens, if no guard
	// could tell which came first.
	AcquireAll(ctx context.Context, requests []Request) ([]Grant, error)
}

// ErrNotInOneStep is the refusal of names that a backend cannot take together:
// there are too many of them, or they are in each other's way. They can be taken
// one by one.
var ErrNotInOneStep = errors.New("these names cannot be taken in one step")

// Distinct reports that there are requests, each for another name and by another
// owner, as [Batch] demands.
func Distinct(requests []Request) bool {
	names, owners := map[string]bool{}, map[string]bool{}
	for _, r := range requests {
		names[r.Name], owners[r.Owner] = true, true
	}
	return len(requests) > 0 && len(names) == len(requests) && len(owners) == len(requests)
}
