package redis

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Answers of contend.lua for a name.
const (
	statusGranted = "granted"
	statusHeld    = "held"
	statusWaiting = "waiting"
	statusGone    = "gone" // no place and no grant
	statusFailed  = "failed"
)

// reply is the server's answer for one contender.
type reply struct {
	status  string
	counter int64  // of the grant
	why     string // of a failure

	holder string
	since  time.Time     // zero if a foreign client holds the name
	asked  time.Time     // the server's clock
	left   time.Duration // of the holder's time to live; negative if it has none
	place  int64         // the number of the place
	ahead  int           // waiters before this one; -1 without a place
}

var errReply = errors.New("the server's answer is not that of the script")

// parseReplies parses the answers for n contenders.
func parseReplies(m rueidis.RedisMessage, n int) ([]reply, error) {
	items, err := []rueidis.RedisMessage{m}, error(nil)
	if n != 1 {
		items, err = m.ToArray()
	}
	if err != nil || len(items) != n {
		return nil, errors.Join(errReply, err)
	}
	replies := make([]reply, n)
	for i, item := range items {
		if replies[i], err = parseReply(item); err != nil {
			return nil, err
		}
	}
	return replies, nil
}

func parseReply(m rueidis.RedisMessage) (reply, error) {
	if m.IsInt64() { // contend_one.lua and contend_free.lua
		counter, err := m.AsInt64()
		return reply{status: statusGranted, counter: counter, ahead: -1}, err
	}
	fields, err := m.ToArray()
	if err != nil || len(fields) == 0 {
		return reply{}, errors.Join(errReply, err)
	}
	r := reply{ahead: -1}
	if r.status, err = fields[0].ToString(); err != nil {
		return r, errors.Join(errReply, err)
	}
	switch {
	case r.status == statusGranted && len(fields) == 2:
		r.counter, err = fields[1].AsInt64()
	case r.status == statusFailed && len(fields) == 2:
		r.why, err = fields[1].ToString()
	case r.status == statusGone:
	case r.status == statusHeld && len(fields) == 5:
		err = r.parseHeld(fields)
	case r.status == statusWaiting && len(fields) == 5:
		err = r.parseWaiting(fields)
	default:
		err = fmt.Errorf("%w: %q with %d fields", errReply, r.status, len(fields))
	}
	return r, err
}

// parseHeld parses the holder, its start, the server's time, and the time to live.
func (r *reply) parseHeld(fields []rueidis.RedisMessage) error {
	var since, asked, left int64
	err := r.scan(fields[1:], &since, &asked, &left)
	r.since, r.asked, r.left = serverTime(since), serverTime(asked), time.Duration(left)*time.Millisecond
	return err
}

// parseWaiting parses the holder, the place, the time to live, and the waiters before.
func (r *reply) parseWaiting(fields []rueidis.RedisMessage) error {
	var left, ahead int64
	err := r.scan(fields[1:], &r.place, &left, &ahead)
	r.left, r.ahead = time.Duration(left)*time.Millisecond, int(ahead)
	return err
}

// scan parses the holder and the numbers after it.
func (r *reply) scan(fields []rueidis.RedisMessage, numbers ...*int64) (err error) {
	r.holder, err = fields[0].ToString()
	for i, into := range numbers {
		if err == nil {
			*into, err = fields[1+i].AsInt64()
		}
	}
	return err
}

// push is a grant that arrived on the channel of the process.
type push struct {
	counter, place int64
	owner          string
}

func parsePush(message string) (p push, err error) {
	counter, rest, _ := strings.Cut(message, " ")
	place, owner, ok := strings.Cut(rest, " ")
	if p.owner = owner; !ok || owner == "" {
		return p, errReply
	}
	if p.counter, err = driver.ParseInt(counter); err == nil {
		p.place, err = driver.ParseInt(place)
	}
	return p, err
}

// serverTime converts milliseconds since 1970; 0 means unknown.
func serverTime(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// heldError returns the error that names the holder of name.
func (r reply) heldError(name string) error {
	e := &interlock.HeldError{Name: name, Owner: r.holder, Since: r.since}
	if r.left > 0 {
		e.Until = r.asked.Add(r.left)
	}
	return problem(request{op: "acquire", name: name}, interlock.Retryable, e)
}

// failure returns the error of a name that the script could not handle.
func (r reply) failure(asked request) error {
	return problem(asked, kindOf(r.why), Answer(r.why))
}
