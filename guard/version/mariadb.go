package version

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// On MariaDB a table keeps the stamp as one text of bytes: "0", or "1" if the state
// is terminal, the version in 19 digits, and the tie. Texts are ordered as stamps
// are, and one column can be assigned last: an assignment may see those before
// it, or not, as the sql_mode has it. Column repeated counts how often the stored
// change came again, and so tells a change that was applied from one that was
// there.
//
// No count of affected rows is relied on: whether it counts the rows that were
// found or those that were changed is an option of the client. No empty text is
// written into a table of ours: there is a sql_mode that makes it NULL. A column
// of the user's may have that NULL, which is read as no tie.

// letsMaria is Versioned.Judge in SQL, and winsMaria that of a change with
// TerminalWins: the text of a terminal change is above all that are not.
const (
	letsMaria = `stamp < '1' and substr(stamp, 2) < substr(values(stamp), 2)`
	winsMaria = `stamp < '1' and stamp < values(stamp) and substr(stamp, 2) <> substr(values(stamp), 2)`
)

func (s stamps) applyMaria(ctx context.Context, c Change) (Outcome, error) {
	var text string
	var repeated int64
	lets := letsMaria
	if c.TerminalWins {
		lets = winsMaria
	}
	_, err := s.Row(ctx, `
insert into {stamps} (entity, stamp, deleted, repeated, changed_at)
values (?, ?, ?, 0, {now})
on duplicate key update
	deleted = if(`+lets+`, values(deleted), deleted),
	changed_at = if(`+lets+`, values(changed_at), changed_at),
	repeated = if(`+lets+`, 0, repeated + if(substr(stamp, 2) = substr(values(stamp), 2), 1, 0)),
	stamp = if(`+lets+`, values(stamp), stamp)
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
	return Applied, nil // it was the same for the first time
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

// applyMaria locks the row by a look, which sees what was committed last.
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
