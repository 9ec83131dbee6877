package version

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// On PostgreSQL one statement reads the stamp in its snapshot and, unless that is enough to refuse,
// raises it. Once it has the row's lock, it compares again with the last commit. So a replay of old
// changes writes nothing. If the read found no reason to refuse and the raise did, another
// transaction was faster. Only then a second statement reads its stamp.

// replaces returns Versioned.Judge in SQL: whether a stored state may be replaced by the one of $2,
// $3 and $4. The arguments are the columns of the stored version, tie and terminal; wins is
// TerminalWins.
func replaces(version, tie, terminal string, wins bool) string {
	return fmt.Sprintf(`(not %[3]s and (%[1]s, %[2]s collate "C") <> ($2::bigint, $3::text)
		and ($4::boolean and %[4]t or (%[1]s, %[2]s collate "C") < ($2::bigint, $3::text)))`, version, tie, terminal, wins)
}

func (s stamps) applyPostgres(ctx context.Context, c Change) (Outcome, error) {
	var stored driver.Versioned
	var raised bool
	_, err := s.Row(ctx, `
with stored as (
	select version, tie, terminal from {stamps} where entity = $1::text),
raised as (
	insert into {stamps} as kept (entity, version, tie, terminal, deleted, changed_at)
	select $1::text, $2::bigint, $3::text, $4::boolean, $5::boolean, {now}
	where not exists (select from stored where not `+replaces("version", "tie", "terminal", c.TerminalWins)+`)
	on conflict (entity) do update set
		version = excluded.version, tie = excluded.tie, terminal = excluded.terminal,
		deleted = excluded.deleted, changed_at = excluded.changed_at
	where `+replaces("kept.version", "kept.tie", "kept.terminal", c.TerminalWins)+`
	returning 1)
select coalesce(version, 0), coalesce(tie, ''), coalesce(terminal, false), exists (select from raised)
from (values (1)) as always left join stored on true`, []any{c.Entity, c.Stamp.Version, c.Stamp.Tie, c.Terminal, c.Deleted},
		&stored.Stamp.Version, &stored.Stamp.Tie, &stored.Terminal, &raised)
	if err != nil || raised {
		return Applied, err
	}
	return judge(stored, c, func() (driver.Versioned, error) {
		s, err := s.showPostgres(ctx, c.Entity)
		return driver.Versioned{Stamp: s.Stamp, Terminal: s.Terminal}, err
	})
}

// judge returns why c was not applied, from stored or, if stored is outdated, from a second
// read.
func judge(stored driver.Versioned, c Change, again func() (driver.Versioned, error)) (Outcome, error) {
	o := c.state().Judge(stored)
	if o != Applied {
		return o, nil
	}
	stored, err := again()
	if err != nil {
		return Stale, err
	}
	if o = c.state().Judge(stored); o == Applied {
		return Stale, errMoved
	}
	return o, nil
}

func (s stamps) showPostgres(ctx context.Context, entity string) (state State, err error) {
	_, err = s.Row(ctx, `select version, tie, deleted, terminal, changed_at from {stamps} where entity = ?`,
		[]any{entity}, &state.Stamp.Version, &state.Stamp.Tie, &state.Deleted, &state.Terminal, &state.Changed)
	state.Changed = state.Changed.UTC()
	return state, err
}

func (r protected) applyPostgres(ctx context.Context, c Change) (rows int, o Outcome, err error) {
	version, tie, terminal := `coalesce({version}, 0)::bigint`, `''::text`, `false`
	set := `{version} = $2::bigint`
	if r.Tie != "" {
		tie, set = `coalesce({tie}::text, '')`, set+`, {tie} = $3::text`
	}
	if r.Terminal != "" {
		terminal, set = `coalesce({terminal}, false)`, set+`, {terminal} = $4::boolean`
	}
	look := `select ` + version + ` as version, ` + tie + ` as tie, ` + terminal + ` as terminal from {rows} where {key} = $1`
	var stored driver.Versioned
	var raised bool
	err = r.Each(ctx, `
with stored as (
	`+look+`),
raised as (
	update {rows} set `+set+` where {key} = $1 and `+replaces(version, tie, terminal, c.TerminalWins)+`
	returning 1)
select version, tie, terminal, (select count(*) from raised) > 0 from stored`,
		[]any{c.Entity, c.Stamp.Version, c.Stamp.Tie, c.Terminal}, func(scan func(...any) error) error {
			rows++
			return scan(&stored.Stamp.Version, &stored.Stamp.Tie, &stored.Terminal, &raised)
		})
	if err != nil || raised || rows != 1 {
		return rows, Applied, err
	}
	o, err = judge(stored, c, func() (now driver.Versioned, err error) {
		found, err := r.Row(ctx, look, []any{c.Entity}, &now.Stamp.Version, &now.Stamp.Tie, &now.Terminal)
		if err == nil && !found {
			err = noRow("apply change", r.Quoted("rows"), c.Entity)
		}
		return now, err
	})
	return rows, o, err
}

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
// TerminalWins. The text of a terminal change is above all that are not terminal.
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
