package main

import (
	"context"
	"iter"

	"github.com/interlock-dev/interlock/history"
)

// race is one fault of code that looks correct, and its remedy. Both twins run the
// same plot in the same order of steps, as far as the fixed one does not block. The
// checker distinguishes them only by the history.
type race struct {
	name    string
	symptom string // what users observe
	remedy  string // the package and the part of it
	system  system

	// prepare creates the missing tables; nil if none are needed.
	prepare func(ctx context.Context, s systems) error
	broken  twin
	fixed   twin
	judge   func(iter.Seq2[history.Event, error]) (history.Verdict, error)
	rule    history.Rule // what the broken twin violates
}

// twin runs the plot once. It records the operations, and returns only errors that
// are not part of the plot.
type twin func(ctx context.Context, s *scene) error

// races are all races, in reading order.
var races = []race{
	lostUpdate, writeSkew, dirtyRead, // transactions
	oversold, doubleBooking, // conditional writes
	resurrected, replay, outOfTurn, twoOwners, duplicate, // events
	lateCommit, stalled, // the outbox
	lostReply, // requests
}

func find(name string) (race, bool) {
	for _, r := range races {
		if r.name == name {
			return r, true
		}
	}
	return race{}, false
}
