package version

import (
	"context"
	"fmt"

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

func (s stamps) showPostgres(ctx context.Context, entity string) (is State, err error) {
	_, err = s.Row(ctx, `select version, tie, deleted, terminal, changed_at from {stamps} where entity = ?`,
		[]any{entity}, &is.Stamp.Version, &is.Stamp.Tie, &is.Deleted, &is.Terminal, &is.Changed)
	is.Changed = is.Changed.UTC()
	return is, err
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
