package fence

import (
	"context"
	"fmt"
	"strings"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

const rebaseSuffix = "_rebase"

// rebaseTable sets the mark and writes the audit row in one statement.
const rebaseTable = `
with rebased as (
	insert into %[1]s as mark (resource, token, previous, source, raised_at)
	select $1::text, $2::bigint, 0, $3::text, clock_timestamp() where $2::bigint <= %[3]s
	on conflict (resource) do update set
		previous = mark.token, token = excluded.token, source = excluded.source, raised_at = excluded.raised_at
	returning previous)
insert into %[2]s (resource, from_token, to_token, reason, rebased_by, rebased_at)
select $1::text, previous, $2::bigint, $4::text, $5::text, clock_timestamp() from rebased
returning from_token`

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
	old, err := t.read(ctx, db, "rebase", resource, "for update")
	if err != nil {
		return driver.Mark{}, err
	}
	marks, _ := t.quoted("") // read has checked the name
	audit, _ := t.quoted(rebaseSuffix)
	done := false
	err = db.Query(ctx, fmt.Sprintf(rebaseTable, marks, audit, tokenLimit),
		[]any{resource, int64(to), label(driver.RebaseSource(by, reason)), label(reason), label(by)},
		func(scan func(...any) error) error {
			done = true
			return scan((*int64)(&old.Token))
		})
	switch {
	case err != nil:
		return driver.Mark{}, t.failed("rebase", resource, err)
	case !done:
		return driver.Mark{}, implausible("rebase", resource, to)
	}
	return old, nil
}

// answerable checks that somebody answers for a rebase.
func answerable(resource string, to interlock.Token, reason, by string) error {
	switch {
	case strings.TrimSpace(reason) == "":
		return bug("rebase", resource, "a reason is required")
	case strings.TrimSpace(by) == "":
		return bug("rebase", resource, "it must be said who rebases")
	case to < 0 || to > 0 && !to.Valid():
		return bug("rebase", resource, "%d is no token", to)
	}
	return nil
}
