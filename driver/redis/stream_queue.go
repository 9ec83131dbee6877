package redis

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/leasequeue"
)

// Defaults of [QueueOptions].
const (
	DefaultGroup  = "interlock"
	DefaultWindow = 10 * time.Minute
)

// queueMark is in every Redis key of a queue except its stream.
const queueMark = "queue:"

// maxDelay bounds the delay of a message.
const maxDelay = 10 * 365 * 24 * time.Hour

// QueueOptions of a Queue; nil and the zero value work.
type QueueOptions struct {
	// Prefix begins the names of the streams; the name of the queue is the rest.
	Prefix string
	// Group is the consumer group, without a slash; empty means [DefaultGroup]. Each group
	// handles all messages of a stream.
	Group string
	// Keep leaves handled messages in the stream, for other groups. Then trim it, as with
	// XTRIM or StreamOptions.MaxLen. A message that is trimmed before it is handled is lost.
	Keep bool
	// Window is for how long Add remembers the id of a message, to add it once; 0 means
	// [DefaultWindow], a negative value disables it.
	Window time.Duration
}

// Queue consumes streams, each as the queue of its name. It implements driver.Queue with leased
// keys: messages of one key are handled one at a time, in order. It needs Redis 7 or Valkey.
//
// An entry has the fields of a [Stream]'s entries, so a [Stream] can add them, and so can any
// other client by XADD: payload, and optionally id, key, headers (a JSON object), delay
// (milliseconds) and priority (-1, 0, 1). The default id is that of the entry. Unique messages
// need Add.
//
// Entries that a queue has read and not finished, including dead letters, are pending in the
// consumer group. Finished ones are acknowledged and deleted. A queue is in one hash slot of a
// cluster.
//
// Redis may lose acknowledged writes: a failover those that the replica did not have, a crash
// those that appendfsync had not written. A message lost this way is gone. A settlement lost this
// way causes a second delivery, under a higher token.
type Queue struct {
	conn    *conn
	options QueueOptions
}

var _ driver.Queue = (*Queue)(nil)

// NewQueue returns a queue; it sends nothing. The caller closes the client.
func NewQueue(client rueidis.Client, o *QueueOptions) *Queue {
	q := &Queue{conn: newGuardConn(client, keepsMarks)}
	if o != nil {
		q.options = *o
	}
	q.options.Group = cmp.Or(q.options.Group, DefaultGroup)
	q.options.Window = cmp.Or(q.options.Window, DefaultWindow)
	return q
}

// Join starts to consume a stream, from its beginning if the group has not read it yet; see
// [driver.Queue]. It sends nothing. A consumer keeps one connection on which it waits for entries.
func (q *Queue) Join(_ context.Context, name string, o driver.QueueOptions) (driver.QueueConsumer, error) {
	keys, err := q.keys("join queue", name)
	if err != nil {
		return nil, err
	}
	s := &streamStore{q, name, keys}
	notifier := driver.NewSharedNotifier(driver.NotifierTransport{Subscribe: s.subscribe})
	c, err := leasequeue.Join(s, name, o, notifier)
	if err != nil {
		return nil, err
	}
	return &streamConsumer{c, notifier}, nil
}

type streamConsumer struct {
	*leasequeue.Consumer
	notifier *driver.SharedNotifier
}

// Close leaves the queue; see [driver.QueueConsumer].
func (c *streamConsumer) Close(ctx context.Context) error {
	err := c.Consumer.Close(ctx)
	return cmp.Or(c.notifier.Close(ctx), err)
}

// keys returns those of the scripts, in their order.
func (q *Queue) keys(op, name string) ([]string, error) {
	if err := driver.CheckName(op, "a queue", name, 255); err != nil {
		return nil, err
	}
	stream, group := q.options.Prefix+name, q.options.Group
	if strings.Contains(group, "/") || strings.HasPrefix(stream, reserved) {
		return nil, problem(request{op: op, name: name}, interlock.Bug,
			fmt.Errorf("%w: the stream is %q and the group %q; streams that begin with %s are reserved, and groups have no slash", interlock.ErrName, stream, group, reserved))
	}
	own := ownKeys(stream)
	keys := []string{stream}
	for _, part := range []string{"lanes", "index", "ready", "waiting", "notes", "dead", "unique", "audit"} {
		keys = append(keys, own+queueMark+part+":"+group+"/"+stream)
	}
	return append(keys, own+"counter"), nil
}

// Add appends messages to the queue of a name, 128 or 1 MiB of payload in one script. A message
// without an ID gets a random one. A message whose id was added within [QueueOptions].Window is
// skipped, so a call may be repeated; so is a Unique one while the group has an unfinished one.
// After an error some of the messages may have been added, in order.
func (q *Queue) Add(ctx context.Context, name string, messages ...driver.QueueMessage) error {
	asked := request{op: "add to queue", name: name}
	keys, err := q.keys(asked.op, name)
	if err != nil {
		return err
	}
	rows := make([][]string, len(messages))
	for i, m := range messages {
		if rows[i], err = q.row(m); err != nil {
			return problem(asked, interlock.Definite, fmt.Errorf("message %d: %w", i, err))
		}
	}
	for len(rows) > 0 {
		n, size := 0, 0
		for n < min(len(rows), streamRows) && (n == 0 || size+len(messages[n].Payload) <= streamBytes) {
			size += len(messages[n].Payload)
			n++
		}
		if _, err := q.conn.eval(ctx, asked, streamPutScript, q.put(keys, rows[:n])); err != nil {
			return err
		}
		rows, messages = rows[n:], messages[n:]
	}
	return nil
}

// row returns the arguments of a message.
func (q *Queue) row(m driver.QueueMessage) ([]string, error) {
	id := cmp.Or(m.ID, rand.Text())
	for _, f := range []struct {
		what, text string
		most       int
	}{{"an id", id, 255}, {"a key", m.Key, driver.MaxName}, {"a unique key", m.Unique, 255}} {
		if err := driver.CheckText(f.what, f.text, 0, f.most); err != nil {
			return nil, err
		}
	}
	if m.Delay < 0 || m.Delay > maxDelay || m.Priority < driver.LowPriority || m.Priority > driver.HighPriority {
		return nil, fmt.Errorf("a delay of %v and priority %d: 0 to %v, and %d to %d", m.Delay, m.Priority, maxDelay, driver.LowPriority, driver.HighPriority)
	}
	headers, delay, priority := "", "", ""
	if len(m.Headers) > 0 {
		text, _ := json.Marshal(m.Headers) // strings cannot fail
		headers = string(text)
	}
	if m.Delay > 0 {
		delay = milliseconds(m.Delay + time.Millisecond - 1)
	}
	if m.Priority != 0 {
		priority = strconv.Itoa(int(m.Priority))
	}
	return []string{id, m.Key, headers, m.Unique, delay, priority, string(m.Payload)}, nil
}

// put returns one run of the script.
func (q *Queue) put(keys []string, rows [][]string) batch {
	b := batch{slices.Clone(keys), []string{milliseconds(max(0, q.options.Window+time.Millisecond-1)), q.options.Group}}
	for _, r := range rows {
		b.args = append(b.args, r...)
		if q.options.Window > 0 {
			b.keys = append(b.keys, ownKeys(keys[0])+queueMark+"id:"+strconv.Itoa(len(keys[0]))+":"+keys[0]+":"+r[0])
		}
	}
	return b
}
