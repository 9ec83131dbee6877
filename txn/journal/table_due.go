package journal

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/internal/sqltable"
)

// DueShards lists shards with due transactions; see driver.Journal. It reads one index entry
// for each shard, in one statement; on MariaDB in one for each hundred shards.
func (t *Table[T]) DueShards(ctx context.Context, shards []int, by time.Time) (due []int, err error) {
	all := slices.Compact(slices.Sorted(slices.Values(shards)))
	if len(all) == 0 {
		return nil, nil
	}
	err = t.read(ctx, "list due shards", "", func(n tables) error {
		at := len(all)
		if n.Maria() {
			at = maxBranches
		}
		for some := range slices.Chunk(all, at) {
			query, args := n.due(some, by.UnixMilli())
			found, err := sqltable.Column[int](ctx, n.Tables, query, args...)
			if err != nil {
				return err
			}
			due = append(due, found...)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(due)
	return due, nil
}

// maxBranches bounds the queries of one UNION: each opens the table once more.
const maxBranches = 100

// due returns the query of the shards whose earliest due time is at most by. It must not be
// a join: a database might then read all due rows. MariaDB might read all ended rows as well:
// its indexes sort null first, and only a constant shard bounds the range.
func (n tables) due(shards []int, by int64) (query string, args []any) {
	if !n.Maria() {
		list := strings.Trim(strings.ReplaceAll(fmt.Sprint(shards), " ", ","), "[]")
		return `select s.shard from unnest(string_to_array($1::text, ',')::bigint[]) as s (shard)
			where (select due from {heads} h where h.shard = s.shard and h.due is not null order by h.due limit 1) <= $2`, []any{list, by}
	}
	branch := `(select shard from {heads} where shard = ? and due <= ? order by due limit 1)`
	for _, shard := range shards {
		args = append(args, int64(shard), by)
	}
	return branch + strings.Repeat(` union all `+branch, len(shards)-1), args
}
