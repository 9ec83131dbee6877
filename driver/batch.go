package driver

import (
	"context"
	"errors"
)

// Batch is an optional interface of a fenced lock driver that acquires several names in one
// step. With it, a caller never holds some of the names while it waits for the others.
type Batch interface {
	// AcquireAll acquires every name for its owner, or none, in one atomic step of the backend.
	// Grants are in the order of requests. It never waits, whatever NoWait says, and never
	// calls Events.Waiting. If there is no request, or a name or an owner occurs twice, the
	// error is a Bug.
	//
	// If another owner holds or waits for one of the names, the error is a *interlock.HeldError
	// with that name. Then none of the requests has a grant or a place in the queue. If the
	// backend cannot take the names in one step, the error is [ErrNotInOneStep], and nothing
	// was sent. After any other error some of the names may be held, as after an Acquire. Then
	// the caller repeats the call with the same requests, which converges, or calls Release for
	// each owner. If the repetition finds all grants, it returns their tokens. If it finds only
	// some, it acquires the missing names again, or releases the rest.
	//
	// Each grant has its own token, and is renewed, lost and released independently, as a grant
	// of Acquire. Two names of one call may have equal tokens if no guard can observe their
	// order.
	AcquireAll(ctx context.Context, requests []Request) ([]Grant, error)
}

// ErrNotInOneStep is returned if a backend cannot acquire the names in one step, because there
// are too many or they conflict with each other. They can be acquired one by one.
var ErrNotInOneStep = errors.New("these names cannot be taken in one step")

// Distinct reports whether requests is not empty and no name and no owner occurs twice, as
// [Batch] requires.
func Distinct(requests []Request) bool {
	names, owners := map[string]bool{}, map[string]bool{}
	for _, r := range requests {
		names[r.Name], owners[r.Owner] = true, true
	}
	return len(requests) > 0 && len(names) == len(requests) && len(owners) == len(requests)
}
