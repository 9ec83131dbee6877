package redis

import (
	"context"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// Modes of contend.lua.
const (
	enqueue = "enqueue"
	noWait  = "nowait"
	refresh = "refresh"
	// together is that of AcquireAll.
	together = "together"
)

var aliveForText = milliseconds(aliveFor)

// Acquire waits until r.Owner holds r.Name; see driver.Fenced.
func (d *Driver) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	k, err := d.layout.keys(r.Name, r.Owner)
	if err != nil {
		return driver.Grant{}, err
	}
	if err := d.evicts.permit(ctx, request{op: "acquire", name: r.Name}, whenever); err != nil {
		return driver.Grant{}, err
	}
	d.held.hush(r.Owner)
	w := d.waiting.enter(r, k)
	defer d.waiting.leave(w)
	mode := enqueue
	if r.NoWait {
		mode = noWait
	}
	for {
		sent := boottime.Sent()
		reply, err := d.contend(ctx, w, mode)
		if err != nil {
			return driver.Grant{}, err
		}
		switch reply.status {
		case statusGranted:
			return d.granted(w, sent, reply.counter)
		case statusHeld:
			return driver.Grant{}, reply.heldError(r.Name)
		case statusWaiting:
			d.waiting.placed(w, sent, reply)
		case statusGone:
			mode = enqueue
			continue
		}
		n, err := d.waiting.await(ctx, w)
		switch {
		case err != nil:
			return driver.Grant{}, err
		case n.granted:
			return d.granted(w, n.sent, n.counter)
		}
		mode = n.mode
	}
}

// granted starts to keep the lease that was asked for at sent.
func (d *Driver) granted(w *waiter, sent boottime.Instant, counter int64) (driver.Grant, error) {
	token, err := interlock.NewToken(counter, 0)
	if err != nil {
		return driver.Grant{}, err
	}
	lease, err := d.held.add(w.request, w.keys.timed(), sent)
	if err != nil {
		return driver.Grant{}, err
	}
	return driver.Grant{Lease: lease, Token: token}, nil
}

// Release gives up whatever owner has on name; see driver.Fenced.
func (d *Driver) Release(ctx context.Context, name, owner string) error {
	k, err := d.layout.keys(name, owner)
	if err != nil {
		return err
	}
	d.held.remove(owner)
	_, err = d.conn.eval(ctx, request{op: "release", name: name, owner: owner}, releaseScript,
		batch{keys: k.all(), args: []string{owner}})
	return err
}

// contention makes the arguments of one contending request.
func (d *Driver) contention(mode string, chunk ...*waiter) batch {
	b := batch{keys: make([]string, 0, 7*len(chunk)), args: make([]string, 0, 3+2*len(chunk))}
	b.args = append(b.args, mode, aliveForText, d.pushes.channel)
	for _, w := range chunk {
		k := w.keys
		b.keys = append(b.keys, k.lock, k.hold, k.queue, k.wait, k.counter, k.names, k.ends)
		b.args = append(b.args, w.request.Owner, milliseconds(w.request.Lease(d.ttl)))
	}
	return b
}

// contend asks for one name.
func (d *Driver) contend(ctx context.Context, w *waiter, mode string) (reply, error) {
	m, err := d.conn.eval(ctx, w.asks(), contendScript, d.contention(mode, w))
	if err != nil {
		return reply{}, err
	}
	answers, err := parseReplies(m, 1)
	switch {
	case err != nil:
		return reply{}, uncertain(w.asks(), err)
	case answers[0].status == statusFailed:
		return reply{}, answers[0].failure(w.asks())
	}
	return answers[0], nil
}
