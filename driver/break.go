package driver

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock"
)

// Breaker is an optional ability of a lock driver: it takes a lock away from its
// holder, for an operator who knows that the holder will not come back. It cannot
// stop the holder's work; only a guard refuses what that still writes.
type Breaker interface {
	// Break ends the hold of b.Owner on b.Name and records b durably, in one
	// atomic step where the backend allows (the driver's package says where
	// not: it is then recorded first). The next grant has a higher token; the
	// holder learns of it as of any loss.
	//
	// ok is false if b.Owner does not hold b.Name now: then nothing was done or
	// recorded, and the operator has to look again. After an Uncertain
	// answer it may be repeated; it is over when ok is false.
	Break(ctx context.Context, b Break) (record BreakRecord, ok bool, err error)
	// Breaks shows what was recorded for name, or for every name if it is empty,
	// newest first, at most limit. How long the record is kept is the driver's
	// to say.
	Breaks(ctx context.Context, name string, limit int) ([]BreakRecord, error)
}

// Break asks for a forced release.
type Break struct {
	Name   string
	Owner  string // whom it is taken from, as Inspector shows it
	Reason string // why, for people; 1 to MaxName bytes
	By     string // who says so; 1 to MaxName bytes
}

// A BreakRecord is the record of a forced release.
type BreakRecord struct {
	Break
	Token interlock.Token // of the ended hold; 0 if it had none
	At    time.Time       // by the backend's clock
}
