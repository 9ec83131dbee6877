package version

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// On MariaDB a table stores the stamp as one text of bytes: "1" if the state is terminal or "0",
// the version in 19 digits, and the tie. Texts sort as stamps do, and one column can be assigned
// last. An assignment may or may not see those before it, depending on the sql_mode. Column
// repeated counts how often the stored change arrived again. So it distinguishes a change that was
// applied from one that was stored before.
//
// Counts of affected rows are not used: a client option decides whether they count found or
// changed rows. No empty text is written into this package's tables, because one sql_mode turns it
// into NULL. A user's column may contain that NULL, which counts as no tie.

// replacesMaria is Versioned.Judge in SQL, and winsMaria is the same for a change with
// TerminalWins: the text of a terminal change is above all that are not terminal.
const (
	replacesMaria = `stamp < '1' and substr(stamp, 2) < substr(values(stamp), 2)`
	winsMaria     = `stamp < '1' and stamp < values(stamp) and substr(stamp, 2) <> substr(values(stamp), 2)`
)

func (s stamps) applyMaria(ctx context.Context, c Change) (Outcome, error) {
	var text string
	var repeated int64
	replaces := replacesMaria
	if c.TerminalWins {
		replaces = winsMaria
	}
	_, err := s.Row(ctx, `
insert into {stamps} (entity, stamp, deleted, repeated, changed_at)
values (?, ?, ?, 0, {now})
on duplicate key update
	deleted = if(`+replaces+`, values(deleted), deleted),
	changed_at = if(`+replaces+`, values(changed_at), changed_at),
	repeated = if(`+replaces+`, 0, repeated + if(substr(stamp, 2) = substr(values(stamp), 2), 1, 0)),
	stamp = if(`+replaces+`, values(stamp), stamp)
returning stamp, repeated`, []any{c.Entity, stampText(c), asInt(c.Deleted)}, &text, &repeated)
	if err != nil {
		return Stale, err
	}
	stored, err := parseStamp(text)
	if err != nil {
		return Stale, err
	}
	if o := c.state().Judge(stored); o != Duplicate || repeated > 0 {
		return o, nil
	}
	return Applied, nil // the row is new
}

func stampText(c Change) string {
	return strconv.Itoa(asInt(c.Terminal)) + driver.FormatPadded(c.Stamp.Version) + c.Stamp.Tie
}

func parseStamp(text string) (v driver.Versioned, err error) {
	if len(text) < 20 {
		return v, fmt.Errorf("%q is not a stamp", text)
	}
	v.Stamp.Version, err = driver.ParsePadded(text[1:20])
	v.Stamp.Tie, v.Terminal = text[20:], strings.HasPrefix(text, "1")
	if err == nil && stampText(Change{Stamp: v.Stamp, Terminal: v.Terminal}) != text {
		err = fmt.Errorf("%q is not a stamp", text)
	}
	return v, err
}

func asInt(set bool) int {
	if set {
		return 1
	}
	return 0
}

func (s stamps) showMaria(ctx context.Context, entity string) (State, error) {
	var text string
	var deleted bool
	var changed int64
	found, err := s.Row(ctx, `select stamp, deleted, {micros changed_at} from {stamps} where entity = ?`,
		[]any{entity}, &text, &deleted, &changed)
	if err != nil || !found {
		return State{}, err
	}
	v, err := parseStamp(text)
	return State{Stamp: v.Stamp, Deleted: deleted, Terminal: v.Terminal, Changed: time.UnixMicro(changed).UTC()}, err
}

// applyMaria locks the row by a read, which sees the last commit.
func (r protected) applyMaria(ctx context.Context, c Change) (rows int, o Outcome, err error) {
	tie, terminal := `null`, `0`
	set, args := `{version} = ?`, []any{c.Stamp.Version}
	if r.Tie != "" {
		tie = `convert({tie} using utf8mb4)`
		set, args = set+`, {tie} = ?`, append(args, c.Stamp.Tie)
	}
	if r.Terminal != "" {
		terminal = `if({terminal}, 1, 0)`
		set, args = set+`, {terminal} = ?`, append(args, asInt(c.Terminal))
	}
	this, key := r.Exactly("key", c.Entity)
	var stored driver.Versioned
	var was *string
	err = r.Each(ctx, `select coalesce({version}, 0), `+tie+`, `+terminal+` from {rows} where `+this+` for update`, key,
		func(scan func(...any) error) error {
			rows++
			return scan(&stored.Stamp.Version, &was, &stored.Terminal)
		})
	if was != nil {
		stored.Stamp.Tie = *was
	}
	if o = c.state().Judge(stored); err != nil || rows != 1 || o != Applied {
		return rows, o, err
	}
	_, err = r.Exec(ctx, `update {rows} set `+set+` where `+this, append(args, key...)...)
	return rows, o, err
}
