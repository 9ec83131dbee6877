package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

var inboxLua = lua("inbox")

// ErrRefused: an effect called refuse(why), and changed nothing.
var ErrRefused = errors.New("the effect refused")

// Inbox applies the effects of messages to data in Redis, each once. One script runs
// the effect, a [Body], and records it, so that no crash, lost answer or second
// delivery can separate them. [Once] serves effects elsewhere, and cannot guarantee
// that.
//
// A record is the hash interlock:{TAG}:inbox:LENGTH:CONSUMER:ID, which expires after
// its retention. It is in the hash slot of the consumer's name, and the keys of every
// effect must be too: a consumer billing{shop} is for keys such as balance:{shop}:7. A
// crash without appendfsync always, or a failover to a replica, loses records together
// with effects.
type Inbox struct {
	conn     *conn
	consumer string
	keep     time.Duration
}

// NewInbox returns the inbox of a consumer, a name of 1 to 255 bytes. It remembers
// each message for keep, which must be longer than any redelivery takes. It sends
// nothing. The caller closes the client.
func NewInbox(client rueidis.Client, consumer string, keep time.Duration) *Inbox {
	return &Inbox{conn: newGuardConn(client, keepsAll), consumer: consumer, keep: keep}
}

// Apply runs the effect of a message, unless it ran before. It returns ClaimedNow,
// also if d.Owner repeats the call after a lost answer; ClaimedDone after another
// delivery; ClaimedOther if the message has another hash than before. The result is
// that of the effect's first run. d.Consumer is the inbox's.
//
// An effect that returns refuse(why) before it has written anything is an [ErrRefused],
// Definite, and not remembered. An effect that fails half way is a Definite error for
// every later delivery, because Redis does not undo its writes: repair the data, then
// [Inbox.Forget] the message.
func (i *Inbox) Apply(ctx context.Context, d driver.Delivery, effect Body) (driver.Claimed, []byte, error) {
	asked := request{op: "apply message", name: d.ID}
	d.Consumer = i.consumer
	if err := i.check(asked, d, effect.Keys); err != nil {
		return driver.Unclaimed, nil, err
	}
	answer, err := i.conn.texts(ctx, asked, effect.script(inboxLua()), batch{
		keys: append([]string{i.key(d.ID)}, effect.Keys...),
		args: append([]string{d.Owner, string(d.Hash), milliseconds(i.keep)}, effect.Args...),
	})
	if err != nil {
		return driver.Unclaimed, nil, err
	}
	if len(answer) != 2 {
		return driver.Unclaimed, nil, uncertain(asked, errReply)
	}
	switch answer[0] {
	case "now":
		return driver.ClaimedNow, []byte(answer[1]), nil
	case "done":
		return driver.ClaimedDone, []byte(answer[1]), nil
	case "other":
		return driver.ClaimedOther, nil, nil
	case "refused":
		return driver.Unclaimed, nil, problem(asked, interlock.Definite, fmt.Errorf("%w: %s", ErrRefused, answer[1]))
	case "failed":
		return driver.Unclaimed, nil, problem(asked, interlock.Definite,
			fmt.Errorf("the effect failed, what it wrote before stays; repair it and call Forget: %s", answer[1]))
	}
	return driver.Unclaimed, nil, uncertain(asked, errReply)
}

// Forget removes the record of a message, so that its next delivery runs the effect
// again. It may be repeated.
func (i *Inbox) Forget(ctx context.Context, id string) error {
	asked := request{op: "forget message", name: id}
	_, err := do(ctx, i.conn, asked, func(ctx context.Context) (int64, error) {
		return i.conn.client.Do(ctx, i.conn.client.B().Del().Key(i.key(id)).Build()).AsInt64()
	})
	return err
}

func (i *Inbox) key(id string) string {
	return ownKeys(i.consumer) + "inbox:" + strconv.Itoa(len(i.consumer)) + ":" + i.consumer + ":" + id
}

func (i *Inbox) check(asked request, d driver.Delivery, keys []string) error {
	if err := d.Check(); err != nil {
		return err
	}
	if i.keep < time.Millisecond || i.keep > driver.MaxKeep {
		return problem(asked, interlock.Bug, fmt.Errorf("a retention of %v is invalid: it must be 1ms to %v", i.keep, driver.MaxKeep))
	}
	return checkBody(asked, "consumer", i.consumer, keys)
}

// checkBody rejects reserved keys, and keys outside the slot of their owner.
func checkBody(asked request, what, owner string, keys []string) error {
	for _, key := range keys {
		switch {
		case key == "" || strings.HasPrefix(key, reserved):
			return problem(asked, interlock.Bug, fmt.Errorf("the key %q is invalid: it is empty, or begins with %s", key, reserved))
		case slotOf(key) != slotOf(owner):
			return problem(asked, interlock.Bug, fmt.Errorf("the key %q is of another hash slot than the %s %q: give both the same {tag}", key, what, owner))
		}
	}
	return nil
}
