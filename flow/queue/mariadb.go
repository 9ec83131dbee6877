package queue

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// lockMaria locks the rows of keys, which are never deleted.
func (q tables) lockMaria(ctx context.Context, locks []int64) error {
	if len(locks) == 0 {
		return nil
	}
	text, _ := json.Marshal(locks) // numbers always marshal
	_, err := q.Exec(ctx, `insert into {stripes} (stripe) values (`+strings.ReplaceAll(strings.Trim(string(text), "[]"), ",", "),(")+
		`) on duplicate key update stripe = values(stripe)`)
	return err
}

// insertMaria inserts messages, and returns those that were not dropped.
func (q tables) insertMaria(ctx context.Context, name string, rows []row) ([]row, error) {
	one := `(?, ?, {?}, {?}, {?}, {?}, nullif({?}, {empty}), ?, 0, {empty}, {micros start} + ?, {micros start})`
	var args []any
	uniques := []any{name}
	for _, r := range rows {
		args = append(args, name, r.lane, r.ID, r.Key, r.headers, r.Payload, r.Unique, int(r.Priority), r.Delay.Microseconds())
		if r.Unique != "" {
			uniques = append(uniques, r.Unique)
		}
	}
	_, err := q.Exec(ctx, `insert into {messages} `+columns+` values `+strings.TrimSuffix(strings.Repeat(one+`, `, len(rows)), `, `)+
		` on duplicate key update lane = lane`, args...)
	if err != nil || len(uniques) == 1 {
		return rows, err
	}
	kept, err := sqltable.Column[string](ctx, q.Tables, `select message_id from {messages} where queue = ? and unique_key in (`+
		strings.Repeat(`?, `, len(uniques)-2)+`?)`, uniques...)
	return slices.DeleteFunc(slices.Clone(rows), func(r row) bool { return r.Unique != "" && !slices.Contains(kept, r.ID) }), err
}

// createMaria creates the groups that do not exist. readyAt is SQL; x.c in it is the delay of a group.
func (q tables) createMaria(ctx context.Context, name string, groups announced, readyAt string) error {
	if len(groups.lanes) == 0 {
		return nil
	}
	x, args := q.numbered(groups.lanes, groups.classes, groups.delays)
	_, err := q.Exec(ctx, `insert into {groups} (queue, lane, state, class, ready_at, token, owner)
		select ?, x.a, 0, x.b, `+readyAt+`, 0, {empty} from `+x+` where true order by x.a {leave lane}`, append([]any{name}, args...)...)
	return err
}

// admitMaria is admit in several statements.
func (q tables) admitMaria(ctx context.Context, name string) error {
	arrivals, err := sqltable.List(ctx, q.Tables, `select id, lane, class from {arrivals} where queue = ? order by id limit `+strconv.Itoa(maxArrivals)+` for update skip locked`,
		[]any{name}, func(a *arrival) []any { return []any{&a.id, &a.lane, &a.class} })
	if err != nil || len(arrivals) == 0 {
		return err
	}
	class := map[int64]int64{}
	for _, a := range arrivals {
		class[a.lane] = a.class // the last one counts
	}
	lanes := slices.Sorted(maps.Keys(class))
	of, args := q.of(name, lanes)
	known, err := sqltable.Column[int64](ctx, q.Tables, `select lane from {groups} where `+of, args...)
	if err != nil {
		return err
	}
	var missing announced
	for _, lane := range lanes {
		if !slices.Contains(known, lane) {
			missing.lanes, missing.classes, missing.delays = append(missing.lanes, lane), append(missing.classes, class[lane]), append(missing.delays, 0)
		}
	}
	if err := q.createMaria(ctx, name, missing, never); err != nil {
		return err
	}
	locked, err := sqltable.Column[int64](ctx, q.Tables, `select lane from {groups} where `+of+` for update skip locked`, args...)
	if err != nil || len(locked) == 0 {
		return err
	}
	if err := q.makeReady(ctx, name, locked, class); err != nil {
		return err
	}
	var done []int64
	for _, a := range arrivals {
		if slices.Contains(locked, a.lane) {
			done = append(done, a.id)
		}
	}
	these, args := q.among("id", done)
	_, err = q.Exec(ctx, `delete from {arrivals} where `+these, args...)
	return err
}

// arrival is a row that announces messages of a group.
type arrival struct{ id, lane, class int64 }

// makeReady makes groups ready that are neither leased nor parked.
func (q tables) makeReady(ctx context.Context, name string, lanes []int64, class map[int64]int64) error {
	by := map[int64][]int64{}
	for _, lane := range lanes {
		by[class[lane]] = append(by[class[lane]], lane)
	}
	for class, lanes := range by {
		of, args := q.of(name, lanes)
		if _, err := q.Exec(ctx, `update {groups} set class = ?, ready_at = case when state = 0 and ready_at > {micros start} then {micros start} else ready_at end where `+of,
			append([]any{class}, args...)...); err != nil {
			return err
		}
	}
	return nil
}

// leaseMaria is lease in several statements. All groups get one token, above all of their former
// tokens.
func (q tables) leaseMaria(ctx context.Context, name, owner string, most int, lease time.Duration) (all []found, err error) {
	var parts []string
	var args []any
	for class := High; class >= Low; class-- {
		parts = append(parts, `(select lane, `+due(class)+` as due from {groups}
			where queue = ? and class = `+strconv.Itoa(int(class))+` and ready_at <= {micros start} order by ready_at limit `+strconv.Itoa(most)+`)`)
		args = append(args, name)
	}
	lanes, err := sqltable.Column[int64](ctx, q.Tables, `select lane from (`+strings.Join(parts, ` union all `)+`) c order by due limit `+strconv.Itoa(most), args...)
	if err != nil || len(lanes) == 0 {
		return nil, err
	}
	of, args := q.of(name, lanes)
	all, err = sqltable.List(ctx, q.Tables, `select lane, state, greatest(token + 1, {micros start} - `+strconv.Itoa(interlock.EpochUnixMicro)+`), ready_at
		from {groups} where `+of+` and ready_at <= {micros start} for update skip locked`, args, func(f *found) []any { return []any{&f.lane, &f.state, &f.token, &f.since} })
	if err != nil || len(all) == 0 {
		return nil, err
	}
	slices.SortFunc(all, func(a, b found) int { return slices.Index(lanes, a.lane) - slices.Index(lanes, b.lane) })
	lanes = lanes[:0]
	token := int64(0)
	for _, f := range all {
		lanes, token = append(lanes, f.lane), max(token, f.token)
	}
	for i := range all {
		all[i].token = token
	}
	of, args = q.of(name, lanes)
	_, err = q.Exec(ctx, `update {groups} set state = state | `+strconv.Itoa(leased)+`, token = ?, owner = {?}, ready_at = {micros start} + ? where `+of,
		append([]any{token, owner, lease.Microseconds()}, args...)...)
	return all, err
}
