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
			return d.granted(w, w.grantedAt(sent, reply.counter, d.ttl))
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
		case n.granted && boottime.Deadline(n.sent, n.lease) > boottime.Now():
			return d.granted(w, n)
		}
		mode = n.mode
	}
}

// granted starts to keep the lease that w was granted.
func (d *Driver) granted(w *waiter, n news) (driver.Grant, error) {
	token, err := interlock.NewToken(n.counter, 0)
	if err != nil {
		return driver.Grant{}, err
	}
	lease, err := d.held.addFor(w.request, w.keys.timed(), n.sent, n.lease, n.due)
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
		batch{keys: k.all(), args: []string{d.pushes.channel, owner}})
	return err
}

// contention makes the arguments of one contending request.
func (d *Driver) contention(mode string, chunk ...*waiter) batch {
	b := batch{keys: make([]string, 0, 6*len(chunk)), args: make([]string, 0, 2+2*len(chunk))}
	b.args = append(b.args, mode, d.pushes.channel)
	for _, w := range chunk {
		k := w.keys
		b.keys = append(b.keys, k.lock, k.hold, k.queue, k.wait, k.counter, k.names)
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
	answer, err := parseReply(m)
	switch {
	case err != nil:
		return reply{}, uncertain(w.asks(), err)
	case answer.status == statusFailed:
		return reply{}, answer.failure(w.asks())
	}
	return answer, nil
}
