package outbox

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
)

// On MariaDB texts are stored as bytes, without a collation. The code does not use the number of
// affected rows, which depends on the client.

// stripes is the number of rows to lock, which are never deleted. Two keys share one with a
// probability of 1/262144; then they wait for each other.
const stripes = 1 << 18

// insertMaria locks first, in a statement of its own. It locks an existing row by an update to the
// same value, which InnoDB does not write.
func (s store) insertMaria(ctx context.Context, a add) error {
	if len(a.lanes) > 0 {
		locked := make([]int64, len(a.lanes))
		for i, lane := range a.lanes {
			locked[i] = spread(lane) % stripes
		}
		slices.Sort(locked)
		locked = slices.Compact(locked)
		query := `insert into {stripes} (stripe) values (` + strings.ReplaceAll(list(locked), ",", "),(") +
			`) on duplicate key update stripe = values(stripe)`
		if _, err := s.Exec(ctx, query); err != nil {
			return err
		}
	}
	// The lock prevents a change of the number until the transaction ends.
	which := ``
	if s.table.Slices != 0 {
		which = ` and abs(slices) = ` + strconv.Itoa(s.table.Slices)
	}
	layout := `(select abs(slices) from {layout} where one = 1` + which + ` {share})`
	row := `(?, coalesce(mod(?, ` + layout + `), -1), ?, ?, {?}, {?}, {?}, ?, {micros start})`
	args := make([]any, 0, 8*len(a.messages))
	for _, m := range a.messages {
		args = append(args, m.ID, spread(m.lane), m.lane, m.Topic, m.Key, m.headers, m.Payload, a.notBefore)
	}
	query := `insert into {messages} (message_id, slice, lane, topic, msg_key, headers, payload, not_before, added) values ` +
		strings.TrimSuffix(strings.Repeat(row+",", len(a.messages)), ",")
	return s.refused(ctx, s.exec(ctx, query, args...))
}

// refused finds out which constraint rejected an insert. On MariaDB the transaction can continue.
func (s store) refused(ctx context.Context, err error) error {
	var state interface{ SQLState() string }
	if !errors.As(err, &state) || state.SQLState() != "23000" {
		return err
	}
	if _, err := s.layout(ctx, ""); err != nil {
		return err
	}
	return &DuplicateError{Table: s.table.name()}
}

// without returns the condition that excludes rows of a table by their ids.
func without(table string, ids []int64) string {
	if len(ids) == 0 {
		return ""
	}
	return ` and ` + table + `.id not in (` + list(ids) + `)`
}

// among joins a table, as m, with a list of its primary keys, one by one and in order. For an IN list
// InnoDB may scan a small table, and would wait for every locked row.
func among(table, key, ids string) string {
	return `json_table(` + ids + `, '$[*]' columns (id bigint path '$')) d straight_join ` + table +
		` m force index (primary) on m.` + key + ` = d.id`
}
