package driver

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
)

// MaxTie is the longest Tie of a [Stamp], in bytes.
const MaxTie = 255

// A Stamp orders the states of one entity: the greater Version is the newer
// state, and of equal Versions the one with the greater Tie. Two states with the
// same Stamp are the same state, told twice. The zero Stamp is that of an entity
// of which nothing is known.
type Stamp struct {
	// Version counts from 1: a version column, a sequence, microseconds, or the
	// time of a hybrid clock.
	Version int64
	// Tie tells producers apart that may give the same Version: the producer's
	// id, UTF-8 without NUL of at most MaxTie bytes. It is compared byte by byte.
	Tie string
}

// Compare is -1 if s is older than t, 1 if it is newer, 0 if they are the same.
func (s Stamp) Compare(t Stamp) int {
	return cmp.Or(cmp.Compare(s.Version, t.Version), strings.Compare(s.Tie, t.Tie))
}

// String is the Version, with the Tie if there is one.
func (s Stamp) String() string {
	if s.Tie == "" {
		return strconv.FormatInt(s.Version, 10)
	}
	return fmt.Sprintf("%d of %q", s.Version, s.Tie)
}

// Check says what is wrong with a Stamp that is to be stored; nil is nothing.
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
	// Deleted makes it a tombstone: there is no data, but the Stamp stays, so that
	// an older state cannot bring the entity back.
	Deleted bool
	// Terminal states stay: no other state replaces one, whatever its Stamp. See
	// [Versioned.Judge].
	Terminal bool
	// TerminalWins applies a terminal state to a newer one that is not terminal:
	// use it where several producers give versions by their clocks, so that the
	// result does not depend on the order of arrival. Without it an older state is
	// stale, terminal or not. It is not stored, and ignored if Terminal is false.
	TerminalWins bool
}

// Check says what is wrong with a state that is to be stored; nil is nothing.
func (v Versioned) Check() error {
	switch {
	case len(v.Data) > MaxValue:
		return fmt.Errorf("it has %d bytes, at most %d are allowed", len(v.Data), MaxValue)
	case v.Deleted && len(v.Data) > 0:
		return fmt.Errorf("it is deleted and has %d bytes of data", len(v.Data))
	}
	return v.Stamp.Check()
}

// Judge returns the outcome of v where stored is. It is the rule of every store:
//
//   - the same Stamp is a duplicate, whatever else differs;
//   - beside a terminal state nothing is applied;
//   - an older state is stale, unless it is terminal with TerminalWins: then it
//     is applied to any state that is not terminal;
//   - else the newer one is applied.
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

// JudgeReplace returns the outcome of v, which is to replace the state of old and
// no other, where stored is: VersionDuplicate means that it is there already.
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

// VersionOutcome is the outcome of writing a state to a store. None is
// an error: a consumer of a queue acknowledges it in every case.
type VersionOutcome int

const (
	// VersionStale: a newer state is stored; nothing was done.
	VersionStale VersionOutcome = iota
	// VersionApplied: it is stored now.
	VersionApplied
	// VersionDuplicate: a state of the same Stamp is stored; nothing was done.
	VersionDuplicate
	// VersionTerminal: it is newer than the stored state, which is terminal;
	// nothing was done. Somebody goes on with what had ended.
	VersionTerminal
)

// String is the outcome in lower case.
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

// Versions keeps the newest state of each entity in a key-value store. States are
// kept for ever, tombstones too.
//
// Names have 1 to MaxName bytes. A name or a state that cannot be stored is a
// Bug, and nothing is sent. Nothing is retried; after an Uncertain error the
// same call converges.
type Versions interface {
	// Apply stores v under name if [Versioned.Judge] lets it, in one atomic step
	// with that judgement, and returns what is stored then.
	Apply(ctx context.Context, name string, v Versioned) (VersionOutcome, Versioned, error)
	// Replace stores v under name if [Versioned.JudgeReplace] lets it: if the
	// state of old is there, and of the zero Stamp if none is. v.Stamp is newer than
	// old, else it is a Bug. It returns what is stored then. To distinguish
	// the states of several writers, give each a Tie of its own.
	Replace(ctx context.Context, name string, old Stamp, v Versioned) (VersionOutcome, Versioned, error)
	// Get reads the state at some instant during the call, never an older one.
	// An entity of which nothing is known has the zero Versioned.
	Get(ctx context.Context, name string) (Versioned, error)
}
