package twopc

import (
	"slices"
	"time"
)

// verdict is what is to be done with a branch in doubt.
type verdict string

const (
	leave    verdict = "leave" // somebody may be at work on it
	commit   verdict = "commit"
	rollBack verdict = "roll back"
	presume  verdict = "decide to abort" // and follow the journal
	blocked  verdict = "blocked"         // the journal does not answer
	tooOld   verdict = "too old"         // its decision may have been forgotten: for a person
	foreign  verdict = "foreign"         // not to be touched: for a person
)

// doubt is a branch in doubt, and what is known of it here.
type doubt struct {
	run     run
	branch  string
	age     time.Duration // since it was prepared, or seen here first
	life    time.Duration // since its run began
	running bool          // in this process
}

// limits are the options that a judgement needs.
type limits struct{ patience, retention time.Duration }

// judge says what is to be done with a branch in doubt by what the journal says;
// m is nil if the journal has no such transaction. It presumes an abort only of what
// is too young to have been forgotten. It is pure.
func (d doubt) judge(m *machine, l limits) verdict {
	switch {
	case d.running:
		return leave
	case m == nil && d.life >= l.retention:
		return tooOld
	case m == nil && d.age < l.patience:
		return leave
	case m == nil:
		return presume
	case m.of(d.run) == Abort:
		return rollBack
	case m.what.Actor == "" && !slices.Contains(m.what.Branches, d.branch): // a person may have missed it
		return foreign
	case m.halted != "": // a person has it go on
		return leave
	case d.age < l.patience: // who owns the shard is about to
		return leave
	}
	return commit
}
