package redis

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/backoff"
)

// Plain is the lock that most Redis clients implement: SET NX PX acquires it,
// compare and delete releases it. It has no token and no order, and waiters poll.
// Use it to exclude programs that use the same key, and [Driver] otherwise. It is
// safe for concurrent use and keeps two goroutines.
type Plain struct{ *keyspace }

// polls bounds the first and the longest wait between polls.
var polls = backoff.Policy{First: 25 * time.Millisecond, Max: 500 * time.Millisecond}

// OpenPlain checks the server and computes the guarantees; see [Open].
func OpenPlain(ctx context.Context, client rueidis.Client, o *Options) (*Plain, error) {
	k, err := open(ctx, client, o, plainGuarantees, plainAcquireScript, plainReleaseScript)
	if err != nil {
		return nil, err
	}
	return &Plain{k}, nil
}

// Acquire polls until r.Owner holds r.Name, at growing, random intervals of up to
// half a second, and when the holder's lease ends; see driver.Advisory.
func (p *Plain) Acquire(ctx context.Context, r driver.Request) (driver.Lease, error) {
	lock, err := p.layout.key(r.Name, r.Owner)
	if err != nil {
		return nil, err
	}
	if err := p.evicts.permit(ctx, request{op: "acquire", name: r.Name}, whenever); err != nil {
		return nil, err
	}
	p.held.StopEvents(r.Owner)
	known := ""
	for failed := 1; ; failed++ {
		sent := boottime.Sent()
		answer, err := p.try(ctx, r, lock)
		switch {
		case err != nil:
			return nil, err
		case answer.holder == r.Owner:
			return p.held.Add(r, sent), nil
		case r.NoWait:
			return nil, answer.heldError(r.Name)
		}
		if r.Events.Waiting != nil && answer.holder != known {
			r.Events.Waiting(driver.Place{Ahead: -1, Holder: answer.holder})
		}
		known = answer.holder
		delay := polls.Delay(failed, rand.Float64())
		if answer.left >= 0 {
			delay = min(delay, answer.left+2*time.Millisecond)
		}
		if err := fail.Pause(ctx, p.ended, r.Name, nil, delay); err != nil {
			return nil, err
		}
	}
}

// try sends one request for the lock.
func (p *Plain) try(ctx context.Context, r driver.Request, lock string) (reply, error) {
	asked := request{op: "acquire", name: r.Name, owner: r.Owner}
	m, err := p.conn.eval(ctx, asked, plainAcquireScript,
		batch{keys: []string{lock}, args: []string{r.Owner, milliseconds(r.Lease(p.ttl))}})
	if err != nil {
		return reply{}, err
	}
	fields, err := m.ToArray()
	if err != nil || len(fields) != 3 {
		return reply{}, uncertain(asked, errReply)
	}
	var answer reply
	if err := answer.parsePlain(fields); err != nil {
		return reply{}, uncertain(asked, err)
	}
	return answer, nil
}

// parsePlain parses the holder, the time to live, and the server's clock.
func (r *reply) parsePlain(fields []rueidis.RedisMessage) error {
	var left, asked int64
	err := r.scan(fields, &left, &asked)
	r.holder, r.left, r.asked = ownerIn(r.holder), time.Duration(left)*time.Millisecond, serverTime(asked)
	return err
}

// Release releases the lock if owner holds it; see driver.Advisory.
func (p *Plain) Release(ctx context.Context, name, owner string) error {
	lock, err := p.layout.key(name, owner)
	if err != nil {
		return err
	}
	p.held.Remove(owner)
	_, err = p.conn.eval(ctx, request{op: "release", name: name, owner: owner}, plainReleaseScript,
		batch{keys: []string{lock}, args: []string{owner}})
	return err
}

// Close stops renewals and ends every goroutine. Held locks expire. A repeated
// Close waits again.
func (p *Plain) Close(ctx context.Context) error {
	p.conn.close()
	p.stop()
	return p.conn.wait(ctx, &p.loops)
}
