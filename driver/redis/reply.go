package redis

import (
	"errors"
	"fmt"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
)

// What contend.lua answers for a name.
const (
	statusGranted = "granted"
	statusHeld    = "held"
	statusWaiting = "waiting"
	statusGone    = "gone" // no place and no grant
	statusFailed  = "failed"
)

// reply is what the server says about one contender.
type reply struct {
	status  string
	counter int64  // of the grant
	why     string // of a failure

	holder string
	since  time.Time     // zero if a foreign client holds the name
	asked  time.Time     // the server's clock
	left   time.Duration // of the holder's time to live; negative if there is none
	ahead  int           // waiters before this one; -1 without a place
}

var errReply = errors.New("the server's answer is not that of the script")

// parseReplies reads the answers for n contenders.
func parseReplies(m rueidis.RedisMessage, n int) ([]reply, error) {
	items, err := m.ToArray()
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
	case (r.status == statusHeld || r.status == statusWaiting) && len(fields) == 7:
		err = r.parseRefusal(fields)
	default:
		err = fmt.Errorf("%w: %q with %d fields", errReply, r.status, len(fields))
	}
	return r, err
}

func (r *reply) parseRefusal(fields []rueidis.RedisMessage) error {
	var err error
	if r.holder, err = fields[2].ToString(); err != nil {
		return err
	}
	var since, asked, left, ahead int64
	for i, into := range []*int64{&since, &asked, &left, &ahead} {
		if *into, err = fields[3+i].AsInt64(); err != nil {
			return err
		}
	}
	r.since, r.asked = serverTime(since), serverTime(asked)
	r.left, r.ahead = time.Duration(left)*time.Millisecond, int(ahead)
	return nil
}

// serverTime reads milliseconds since 1970; 0 is not known.
func serverTime(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// heldError tells who holds name.
func (r reply) heldError(name string) error {
	e := &interlock.HeldError{Name: name, Owner: r.holder, Since: r.since}
	if r.left > 0 {
		e.Until = r.asked.Add(r.left)
	}
	return problem(request{op: "acquire", name: name}, interlock.Retryable, e)
}

// failure is the error of a name that the script could not handle.
func (r reply) failure(asked request) error {
	return problem(asked, kindOf(r.why), Answer(r.why))
}
