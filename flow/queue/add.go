package queue

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// Limits of a message, in bytes.
const (
	MaxHeaders = 16 << 10 // names and values, as JSON
	MaxPayload = 1 << 20
	maxDelay   = 10 * 365 * 24 * time.Hour
)

// The bounds of one statement. A byte needs up to two on MariaDB, whose max_allowed_packet is 16 MiB
// by default.
const (
	addRows  = 500
	addBytes = 4 << 20 // of payloads and headers, unless one message has more
)

// A MessageError means that a message is invalid.
type MessageError = driver.MessageError

// Add adds messages to a queue in the user's transaction: they are delivered if it commits, and only
// then. A message without an ID gets a random one. A message whose Unique key belongs to an
// unfinished message is not added.
//
// Messages of one key are in the order in which their transactions commit: Add locks the key until
// the transaction ends, and waits for other transactions that added to it. Several calls in one
// transaction lock in the order of the calls, so transactions can deadlock; the database ends one
// of them (Retryable). Consumers do not wait for these locks.
func (t Table) Add(ctx context.Context, db driver.SQL, name string, messages ...Message) error {
	const op = "add to queue"
	if err := driver.CheckName(op, "a queue", name, 255); err != nil {
		return err
	}
	q, err := t.open(op, name, db)
	if err != nil {
		return err
	}
	rows := make([]row, len(messages))
	for i, m := range messages {
		if rows[i], err = prepare(i, name, m); err != nil {
			return err
		}
	}
	locks := q.locks(rows)
	for len(rows) > 0 {
		n, size := 0, 0
		for n < min(len(rows), addRows) && (n == 0 || size+rows[n].size() <= addBytes) {
			size += rows[n].size()
			n++
		}
		if err := q.add(ctx, name, rows[:n], locks); err != nil {
			return err
		}
		rows, locks = rows[n:], nil
	}
	return nil
}

// add locks keys and then adds messages.
func (q tables) add(ctx context.Context, name string, rows []row, locks []int64) error {
	if !q.Maria() {
		return q.addPostgres(ctx, name, rows, locks)
	}
	if err := q.lockMaria(ctx, locks); err != nil {
		return err
	}
	rows, err := q.insertMaria(ctx, name, rows)
	if err != nil {
		return err
	}
	keyed, alone := announcements(rows)
	if err := q.arrive(ctx, name, keyed); err != nil {
		return err
	}
	return q.createMaria(ctx, name, alone, `{micros start} + x.c`) // nobody else knows these
}

// row is a message as it is stored.
type row struct {
	Message
	lane    int64
	headers string // JSON; empty if there are none
}

func (r row) size() int { return len(r.Payload) + len(r.headers) }

func prepare(i int, name string, m Message) (row, error) {
	m.ID = cmp.Or(m.ID, rand.Text())
	refuse := func(format string, args ...any) (row, error) {
		return row{}, &MessageError{Index: i, ID: sqltable.Clean(m.ID[:min(len(m.ID), 64)]), Why: fmt.Sprintf(format, args...)}
	}
	for _, f := range []struct {
		what, text string
		most       int
	}{{"an id", m.ID, 255}, {"a key", m.Key, driver.MaxName}, {"a unique key", m.Unique, 255}} {
		if err := driver.CheckText(f.what, f.text, 0, f.most); err != nil {
			return refuse("%v", err)
		}
	}
	for name, value := range m.Headers {
		if driver.CheckText("a header", name, 1, MaxHeaders) != nil || driver.CheckText("a header", value, 0, MaxHeaders) != nil {
			return refuse("header %q has no name, or is not UTF-8 without NUL", sqltable.Clean(name))
		}
	}
	headers := ""
	if len(m.Headers) > 0 {
		b, _ := json.Marshal(m.Headers) // texts always marshal
		headers = string(b)
	}
	switch {
	case len(headers) > MaxHeaders || len(m.Payload) > MaxPayload:
		return refuse("its headers have %d bytes and its payload %d; at most %d and %d are allowed", len(headers), len(m.Payload), MaxHeaders, MaxPayload)
	case m.Delay < 0 || m.Delay > maxDelay:
		return refuse("a delay of %v: 0 to %v", m.Delay, maxDelay)
	case m.Priority < Low || m.Priority > High:
		return refuse("priority %d: %d to %d", m.Priority, Low, High)
	}
	return row{m, laneIn(name, m), headers}, nil
}

// laneIn returns the number of a key's lane, negative for a message without a key. Two keys share a
// number with a probability of 2^-63; then they wait for each other.
func laneIn(name string, m Message) int64 {
	text := name + "\x00" + m.Key
	if m.Key == "" {
		text = rand.Text()
	}
	sum := sha256.Sum256([]byte("interlock queue\x00" + text))
	lane := int64(binary.BigEndian.Uint64(sum[:8]) >> 1)
	if m.Key == "" {
		return -lane - 1
	}
	return lane
}

// stripes is the number of rows that MariaDB locks for keys.
const stripes = 1 << 16

// locks returns the sorted numbers to lock against other transactions that add to the keys.
func (q tables) locks(rows []row) (lanes []int64) {
	for _, r := range rows {
		switch {
		case r.lane >= 0 && q.Maria():
			lanes = append(lanes, r.lane%stripes)
		case r.lane >= 0:
			lanes = append(lanes, r.lane)
		}
	}
	slices.Sort(lanes)
	return slices.Compact(lanes)
}

const columns = `(queue, lane, message_id, msg_key, headers, payload, unique_key, class, attempts, last_error, not_before, added)`

// announced are groups that have new messages.
type announced struct{ lanes, classes, delays []int64 }

// announcements returns the keys of messages, with the priority of the last message of each run of
// one key, and the messages without a key.
func announcements(rows []row) (keyed, alone announced) {
	for _, r := range rows {
		to := &alone
		if r.lane >= 0 {
			to = &keyed
		}
		if n := len(to.lanes); r.lane >= 0 && n > 0 && to.lanes[n-1] == r.lane {
			to.classes[n-1] = int64(r.Priority)
			continue
		}
		to.lanes, to.classes, to.delays = append(to.lanes, r.lane), append(to.classes, int64(r.Priority)), append(to.delays, r.Delay.Microseconds())
	}
	return keyed, alone
}

// arrive inserts arrivals of groups: a row for each, on PostgreSQL one row for up to 100.
func (q tables) arrive(ctx context.Context, name string, keyed announced) error {
	if len(keyed.lanes) == 0 {
		return nil
	}
	if !q.Maria() {
		_, err := q.Exec(ctx, arrive(`?::text`, `unnest(?::text::bigint[], ?::text::int[]) with ordinality as x (lane, class, n)`),
			name, sqltable.Numbers(keyed.lanes), sqltable.Numbers(keyed.classes))
		return err
	}
	x, args := q.numbered(keyed.lanes, keyed.classes, make([]int64, len(keyed.lanes)))
	_, err := q.Exec(ctx, `insert into {arrivals} (queue, lane, class) select ?, x.a, x.b from `+x+` order by x.n`, append([]any{name}, args...)...)
	return err
}
