package twopc

import (
	"errors"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// ballot is what a participant said to prepare.
type ballot struct {
	name string
	vote driver.Vote
	err  error
}

// tally is what follows from the ballots of a transaction.
type tally struct {
	against error    // why it is aborted; nil if it is not
	yes     []string // voted so
	perhaps []string // gave no clear answer, and may be prepared
}

// count is the pure heart of the first phase: one that is not for it is against it.
func count(ballots []ballot) tally {
	var t tally
	var against []error
	for _, b := range ballots {
		switch {
		case b.err != nil:
			against = append(against, fmt.Errorf("%s voted no: %w", b.name, b.err))
			if interlock.Kind(b.err) == interlock.Uncertain {
				t.perhaps = append(t.perhaps, b.name)
			}
		case b.vote == driver.VoteYes:
			t.yes = append(t.yes, b.name)
		case b.vote != driver.VoteReadOnly:
			against = append(against, fmt.Errorf("%s voted no", b.name))
		}
	}
	t.against = errors.Join(against...)
	return t
}
