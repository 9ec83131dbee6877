package countermeasure

import (
	"context"
	"time"
)

// flags is the table of a [SemanticLock], for one resource. Rows stay when they are
// released, since a row that is there can be locked; column changes tells MariaDB's
// snapshots apart.
type flags struct {
	session
	resource string
}

func (f flags) create(ctx context.Context) error {
	return f.session.create(ctx, "semantic lock", []string{
		`create table if not exists {flags} (
			resource text collate "C" primary key,
			owner text collate "C" not null,
			purpose text not null,
			former text collate "C" not null,
			risk text not null,
			changes bigint not null,
			since_at timestamptz not null,
			until_at timestamptz not null)`,
	}, []string{
		`create table if not exists {flags} (
			resource varbinary(512) not null primary key,
			owner varbinary(512) not null,
			purpose longtext not null,
			former varbinary(512) not null,
			risk longtext not null,
			changes bigint not null,
			since_at datetime(6) not null,
			until_at datetime(6) not null,
			index (owner, until_at)) engine = InnoDB default charset = utf8mb4`,
	})
}

// Times are read as microseconds since 1970, which needs no time zone.
const (
	columnsPostgres = `owner, purpose, former, risk, changes, (extract(epoch from since_at) * 1000000)::bigint,
		(extract(epoch from until_at) * 1000000)::bigint, until_at <= clock_timestamp()`
	columnsMaria = `owner, purpose, former, risk, changes, timestampdiff(microsecond, '1970-01-01', since_at),
		timestampdiff(microsecond, '1970-01-01', until_at), until_at <= utc_timestamp(6)`
)

func (f flags) columns() string {
	if f.maria() {
		return columnsMaria
	}
	return columnsPostgres
}

// read runs a query of columns.
func (f flags) read(ctx context.Context, query string, args ...any) (flag Flag, changes int64, found bool, err error) {
	flag.Resource = f.resource
	var since, until int64
	found, err = f.row(ctx, query, args, &flag.Owner, &flag.Purpose, &flag.Former, &flag.Risk, &changes, &since, &until, &flag.Expired)
	if flag.Owner == "" {
		return Flag{Resource: f.resource}, changes, found, err
	}
	flag.Since, flag.Until = time.UnixMicro(since).UTC(), time.UnixMicro(until).UTC()
	return flag, changes, found, err
}

// look reads the flag, and locks it if locking says so.
func (f flags) look(ctx context.Context, locking string) (flag Flag, found bool, err error) {
	flag, _, found, err = f.read(ctx, `select `+f.columns()+` from {flags} where resource = ? `+locking, f.resource)
	return flag, found, err
}

// take flags the resource for w if it is nobody's, its own, ended's, or may be risked.
// Otherwise held is whose it is.
func (f flags) take(ctx context.Context, w Intent, ended string) (held *Flag, err error) {
	if f.maria() {
		return f.takeMaria(ctx, w, ended)
	}
	return f.takePostgres(ctx, w, ended)
}

// takePostgres locks the row whether it may be taken or not, so that what is read
// afterwards is what was refused.
func (f flags) takePostgres(ctx context.Context, w Intent, ended string) (*Flag, error) {
	var changes int64
	taken, err := f.row(ctx, `
		with want (resource, owner, purpose, ended, risk, ttl, now) as (
			select ?::text, ?::text, ?::text, ?::text, ?::text, ?::bigint * interval '1 microsecond', clock_timestamp())
		insert into {flags} as f (resource, owner, purpose, former, risk, changes, since_at, until_at)
		select resource, owner, purpose, '', '', 1, now, now + ttl from want
		on conflict (resource) do update set
			owner = excluded.owner, purpose = excluded.purpose, changes = f.changes + 1,
			former = case f.owner when excluded.owner then f.former else f.owner end,
			risk = case when f.owner = excluded.owner then f.risk when f.owner in ('', (select ended from want)) then '' else (select risk from want) end,
			since_at = case f.owner when excluded.owner then f.since_at else excluded.since_at end,
			until_at = case f.owner when excluded.owner then greatest(f.until_at, excluded.until_at) else excluded.until_at end
		where f.owner in ('', excluded.owner, (select ended from want))
			or f.until_at <= clock_timestamp() and (select risk from want) <> ''
		returning changes`,
		[]any{w.Resource, w.Owner, w.Purpose, ended, w.Risk, w.TTL.Microseconds()}, &changes)
	if err != nil || taken {
		return nil, err
	}
	held, _, err := f.look(ctx, "")
	return &held, err
}

// takeMaria locks the row, which makes one if there is none, looks whether the
// transaction reads from before its last change, and only then writes.
func (f flags) takeMaria(ctx context.Context, w Intent, ended string) (*Flag, error) {
	was, changes, err := f.touch(ctx)
	if err != nil {
		return nil, err
	}
	own, risk := was.Owner == w.Owner, ""
	switch {
	case own:
		risk = was.Risk
	case was.Owner == "" || was.Owner == ended:
	case was.Expired && w.Risk != "":
		risk = w.Risk
	default:
		return &was, nil
	}
	if err := f.upToDate(ctx, changes); err != nil {
		return nil, err
	}
	times, former := `since_at = utc_timestamp(6), until_at = utc_timestamp(6) + interval ? microsecond`, was.Owner
	if own {
		times, former = `until_at = greatest(until_at, utc_timestamp(6) + interval ? microsecond)`, was.Former
	}
	_, err = f.exec(ctx, `update {flags} set owner = ?, purpose = coalesce(?, x''), former = coalesce(?, x''), risk = coalesce(?, x''),
		changes = changes + 1, `+times+` where resource = ?`, w.Owner, w.Purpose, former, risk, w.TTL.Microseconds(), w.Resource)
	return nil, err
}

// touch locks the row on MariaDB and shows it, as it was committed last. A look FOR
// UPDATE at a row that is not there would lock a gap, and two who look would keep each
// other from filling it. An empty text is written in hexadecimal digits, since there
// is a sql_mode that makes it NULL.
func (f flags) touch(ctx context.Context) (flag Flag, changes int64, err error) {
	flag, changes, _, err = f.read(ctx, `
		insert into {flags} (resource, owner, purpose, former, risk, changes, since_at, until_at)
		values (?, x'', x'', x'', x'', 0, utc_timestamp(6), utc_timestamp(6))
		on duplicate key update resource = values(resource) returning `+columnsMaria, f.resource)
	return flag, changes, err
}

// upToDate refuses a transaction whose snapshot is from before the last change.
func (f flags) upToDate(ctx context.Context, changes int64) error {
	if changes == 0 {
		return nil // there was none
	}
	var seen int64
	_, err := f.row(ctx, `select changes from {flags} where resource = ?`, []any{f.resource}, &seen)
	if err == nil && seen != changes {
		err = f.outdated()
	}
	return err
}

// hold shows the flag, and keeps it as it is until the transaction ends.
func (f flags) hold(ctx context.Context) (Flag, error) {
	if f.maria() {
		flag, changes, err := f.touch(ctx)
		if err != nil {
			return flag, err
		}
		return flag, f.upToDate(ctx, changes)
	}
	flag, found, err := f.look(ctx, "for share")
	if err != nil || found {
		return flag, err
	}
	// What is not there cannot be locked.
	_, err = f.exec(ctx, `insert into {flags} (resource, owner, purpose, former, risk, changes, since_at, until_at)
		values (?, '', '', '', '', 0, clock_timestamp(), clock_timestamp()) on conflict do nothing`, f.resource)
	if err != nil {
		return flag, err
	}
	flag, _, err = f.look(ctx, "for share")
	return flag, err
}

func (f flags) release(ctx context.Context, owner string) (was bool, err error) {
	now, none := "clock_timestamp()", "''"
	if f.maria() {
		now, none = "utc_timestamp(6)", "x''"
	}
	n, err := f.exec(ctx, `update {flags} set owner = `+none+`, changes = changes + 1, until_at = `+now+`
		where resource = ? and owner = ?`, f.resource, owner)
	return n > 0, err
}
