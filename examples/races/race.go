package main

import (
	"context"
	"iter"

	"github.com/interlock-dev/interlock/history"
)

// A race is one way in which correct-looking code goes wrong, and its remedy.
// Both twins run the same plot in the same order of steps, as far as the fixed
// one lets itself be driven; judge tells them apart by nothing but the history.
type race struct {
	name    string
	symptom string // what users see
	remedy  string // the package, and what of it
	system  system

	// prepare makes the tables, if they are not there; nil if none are needed.
	prepare func(ctx context.Context, s systems) error
	broken  twin
	fixed   twin
	judge   func(iter.Seq2[history.Event, error]) (history.Verdict, error)
	rule    history.Rule // what the broken twin violates
}

// A twin plays one run. It records what happens, and returns only errors that
// are no part of the plot.
type twin func(ctx context.Context, s *scene) error

// races are all of them, in the order in which they are best read.
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
