package fence

import (
	"context"
	"strings"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

// Rebase sets the mark of resource to exactly `to`, which may be lower than the current mark,
// or 0. In the same transaction it records from, to, reason and by in the table whose name ends
// in "_rebase". reason and by must not be blank. It returns the replaced mark.
//
// An operator uses it to correct a wrong mark. The operator must know that no holder with a
// token between the two marks is still at work: the guard no longer rejects such a holder.
func (t Table) Rebase(ctx context.Context, db driver.SQL, resource string, to interlock.Token, reason, by string) (driver.Mark, error) {
	if err := validateRebase(resource, to, reason, by); err != nil {
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

// rebase is a request to set a mark.
type rebase struct {
	resource   string
	to         interlock.Token
	reason, by string
}

// validateRebase checks that a rebase has a reason and an author.
func validateRebase(resource string, to interlock.Token, reason, by string) error {
	switch {
	case strings.TrimSpace(reason) == "":
		return failure.Bug("rebase", resource, "a reason is required")
	case strings.TrimSpace(by) == "":
		return failure.Bug("rebase", resource, "by is required: who rebases")
	case to < 0 || to > 0 && !to.Valid():
		return failure.Bug("rebase", resource, "%d is not a token", to)
	}
	return nil
}
