package twopc

import (
	"errors"
	"strings"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/journal"
)

// answered is what the participants have said to a round of commits.
type answered struct {
	otherwise []journal.Entry // a heuristic record for each
	again     []string        // those that have to be called again
	errs      []error         // why, of each of them
}

// answers sorts what was said to the commits of these branches.
func answers(names []string, errs []error) answered {
	var a answered
	for i, name := range names {
		switch err := errs[i]; {
		case errors.Is(err, driver.ErrHeuristic):
			a.otherwise = append(a.otherwise, heuristic(name, err))
		case err != nil:
			a.again, a.errs = append(a.again, name), append(a.errs, err)
		}
	}
	return a
}

// heuristic is the record of a branch that was finished against the decision.
func heuristic(name string, err error) journal.Entry {
	return record(recordHeuristic, name, why{Text: said(err.Error())})
}

// follow is what is to be recorded after a round: the end if all is done, and nothing
// while some have to be called again. Who has done it is recorded only once a branch is
// heuristic, for the person who has to look. Each round tells the branches that the
// last one has left, so those that are neither recorded nor called again are done.
func (m *machine) follow(a answered) []journal.Entry {
	if len(a.otherwise) == 0 && m.state == Committing {
		if len(a.again) == 0 {
			return []journal.Entry{end()}
		}
		return nil
	}
	entries := a.otherwise
	for _, name := range m.left() {
		if !contains(a.again, entries, name) {
			entries = append(entries, journal.Entry{Kind: recordDone, Step: name})
		}
	}
	return entries
}

func contains(names []string, entries []journal.Entry, name string) bool {
	for _, n := range names {
		if n == name {
			return true
		}
	}
	for _, e := range entries {
		if e.Step == name {
			return true
		}
	}
	return false
}

// complaint is what participants have said about heuristic branches.
func (m *machine) complaint() string {
	var all []string
	for _, p := range m.branches {
		if p.fate == otherwise {
			all = append(all, p.name+": "+p.err)
		}
	}
	return strings.Join(all, "; ")
}
