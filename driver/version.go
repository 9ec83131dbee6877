package driver

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
)

// MaxTie is the maximum length of the Tie of a [Stamp], in bytes.
const MaxTie = 255

// A Stamp orders the states of one entity: a greater Version is newer, and for equal Versions a
// greater Tie is. Two states with the same Stamp are duplicates of one state. The zero Stamp
// means that no state of the entity is known.
type Stamp struct {
	// Version is at least 1: a version column, a sequence number, microseconds, or the time of
	// a hybrid clock.
	Version int64
	// Tie distinguishes producers that may use the same Version: the producer's id, at most
	// MaxTie bytes of UTF-8 without NUL. Ties are compared byte by byte.
	Tie string
}

// Compare returns -1 if s is older than t, 1 if s is newer, and 0 if they are equal.
func (s Stamp) Compare(t Stamp) int {
	return cmp.Or(cmp.Compare(s.Version, t.Version), strings.Compare(s.Tie, t.Tie))
}

// String returns the Version, and the Tie if there is one.
func (s Stamp) String() string {
	if s.Tie == "" {
		return strconv.FormatInt(s.Version, 10)
	}
	return fmt.Sprintf("%d of %q", s.Version, s.Tie)
}

// Check returns an error if s cannot be stored.
func (s Stamp) Check() error {
	if s.Version < 1 {
		return fmt.Errorf("version %d: versions count from 1", s.Version)
	}
	return CheckText("a tie", s.Tie, 0, MaxTie)
}

// Versioned is one state of an entity.
type Versioned struct {
	Stamp Stamp
	Data  []byte // at most MaxValue bytes; none if Deleted
	// Deleted makes the state a tombstone. It has no data, but its Stamp is kept, so that an
	// older state cannot restore the entity.
	Deleted bool
	// Terminal makes the state final: no other state replaces it, whatever its Stamp. See
	// [Versioned.Judge].
	Terminal bool
	// TerminalWins lets a terminal state replace a newer state that is not terminal. Use it if
	// several producers set versions by their clocks: the result is then independent of the
	// order of arrival. Without it an older state is always stale. It is not stored, and is
	// ignored if Terminal is false.
	TerminalWins bool
}

// Check returns an error if v cannot be stored.
func (v Versioned) Check() error {
	switch {
	case len(v.Data) > MaxValue:
		return fmt.Errorf("it has %d bytes, at most %d are allowed", len(v.Data), MaxValue)
	case v.Deleted && len(v.Data) > 0:
		return fmt.Errorf("it is deleted and has %d bytes of data", len(v.Data))
	}
	return v.Stamp.Check()
}

// Judge returns the outcome of writing v over the stored state. Every store applies these
// rules:
//
//   - A state with the same Stamp is a duplicate, whatever else differs.
//   - Nothing replaces a terminal state.
//   - An older state is stale. If it is terminal with TerminalWins, it still replaces a state
//     that is not terminal.
//   - Otherwise the newer state is applied.
func (v Versioned) Judge(stored Versioned) VersionOutcome {
	order := v.Stamp.Compare(stored.Stamp)
	switch {
	case order == 0:
		return VersionDuplicate
	case order < 0 && (stored.Terminal || !v.Terminal || !v.TerminalWins):
		return VersionStale
	case order > 0 && stored.Terminal:
		return VersionTerminal
	}
	return VersionApplied
}

// JudgeReplace returns the outcome of replacing the state with the Stamp old, and no other, by
// v. If v is stored already, the outcome is VersionDuplicate.
func (v Versioned) JudgeReplace(old Stamp, stored Versioned) VersionOutcome {
	switch {
	case v.Stamp == stored.Stamp:
		return VersionDuplicate
	case stored.Terminal:
		return VersionTerminal
	case stored.Stamp != old:
		return VersionStale
	}
	return VersionApplied
}

// VersionOutcome is the outcome of writing a state. No outcome is an error: a consumer of a
// queue acknowledges the message in every case.
type VersionOutcome int

const (
	// VersionStale means that a newer state is stored; nothing was done.
	VersionStale VersionOutcome = iota
	// VersionApplied means that the state was stored.
	VersionApplied
	// VersionDuplicate means that a state with the same Stamp is stored; nothing was done.
	VersionDuplicate
	// VersionTerminal means that the stored state is older and terminal; nothing was done. A
	// producer has continued an entity that had ended.
	VersionTerminal
)

// String returns the outcome in lower case.
func (o VersionOutcome) String() string {
	switch o {
	case VersionStale:
		return "stale"
	case VersionApplied:
		return "applied"
	case VersionDuplicate:
		return "duplicate"
	case VersionTerminal:
		return "terminal"
	}
	return "outcome " + strconv.Itoa(int(o))
}

// Versions stores the newest state of each entity in a key-value store. States, including
// tombstones, are kept forever.
//
// Names have 1 to MaxName bytes. If a name or a state cannot be stored, the error is a Bug, and
// nothing is sent. Versions never retries; after an Uncertain error, repeating the call
// converges.
type Versions interface {
	// Apply stores v under name if [Versioned.Judge] allows it, in one atomic step. It returns
	// the state that is stored afterwards.
	Apply(ctx context.Context, name string, v Versioned) (VersionOutcome, Versioned, error)
	// Replace stores v under name if [Versioned.JudgeReplace] allows it: the stored state must
	// have the Stamp old. The zero Stamp means that no state may be stored. If v.Stamp is not
	// newer than old, the error is a Bug. Replace returns the state that is stored afterwards.
	// To distinguish the states of several writers, give each its own Tie.
	Replace(ctx context.Context, name string, old Stamp, v Versioned) (VersionOutcome, Versioned, error)
	// Get returns the state at some instant during the call, never an older one. If no state is
	// stored, it returns the zero Versioned.
	Get(ctx context.Context, name string) (Versioned, error)
}
