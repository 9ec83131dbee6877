package fence

import (
	"context"
	"strings"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

// Rebase sets the mark of resource to exactly `to`, which may be lower than it
// is, or 0, and records from, to, reason and by in the table whose name ends in
// "_rebase", in the same transaction. reason and by must not be blank. It
// returns the mark that it replaced.
//
// It is the way out of a wrong mark, by an operator who knows that no holder
// with a token between the two is still at work: nothing refuses that holder
// any more.
func (t Table) Rebase(ctx context.Context, db driver.SQL, resource string, to interlock.Token, reason, by string) (driver.Mark, error) {
	if err := answerable(resource, to, reason, by); err != nil {
		return driver.Mark{}, err
	}
	m, err := t.open("rebase", resource, db)
	if err != nil {
		return driver.Mark{}, err
	}
	set := m.rebasePostgres
	if m.Maria() {
		set = m.rebaseMaria
	}
	old, plausible, err := set(ctx, rebase{resource: resource, to: to, reason: reason, by: by})
	switch {
	case err != nil:
		return driver.Mark{}, err
	case !plausible:
		return driver.Mark{}, implausible("rebase", resource, to)
	}
	return old, nil
}

// rebase is a wish to set a mark.
type rebase struct {
	resource   string
	to         interlock.Token
	reason, by string
}

// answerable checks that somebody answers for a rebase.
func answerable(resource string, to interlock.Token, reason, by string) error {
	switch {
	case strings.TrimSpace(reason) == "":
		return failure.Bug("rebase", resource, "a reason is required")
	case strings.TrimSpace(by) == "":
		return failure.Bug("rebase", resource, "it must be said who rebases")
	case to < 0 || to > 0 && !to.Valid():
		return failure.Bug("rebase", resource, "%d is no token", to)
	}
	return nil
}
