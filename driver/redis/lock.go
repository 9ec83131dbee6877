package redis

import (
	"context"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// This file is the protocol of a lock: that of a single Redis in "Distributed Locks with Redis" (redis.io), SET
// NX PX and compare and delete, with a queue and a counter in other keys, which scripts change in the same step
// (docs/adr/003-redis-layout.md). The scripts are in the directory script. queue.lua describes the keys.
//
//	acquire  contend.lua grants a free name, or gives the owner a place in the queue. contend_one.lua does it
//	         with fewer commands in the usual cases. conn.go chooses the connection.
//	token    draw.lua: the last counter plus one, and at least the server's microseconds since 2020.
//	wait     waiting.go: heartbeats keep the place. A release publishes the grant to the process of the first
//	         waiter (subscriber.go), which confirms it. A heartbeat finds a grant whose message was lost.
//	renewal  renew.go extends the time to live of all leases that are due, in one request.
//	loss     a renewal finds another value, or the lease's time is over.
//	release  release.lua deletes the key, or grants the name to the first waiter.
//
// If the outcome of an acquire is unknown, the caller repeats it: the same owner finds its place or its grant. A
// repeated release finds nothing to do. What a late request leaves expires.

// Modes of contend.lua.
const (
	enqueue = "enqueue"
	noWait  = "nowait"
	refresh = "refresh"
	// together is the mode of AcquireAll.
	together = "together"
)

// Acquire waits until r.Owner holds r.Name; see driver.Fenced.
func (d *Driver) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	lock, err := d.layout.key(r.Name, r.Owner)
	if err != nil {
		return driver.Grant{}, err
	}
	if err := d.evicts.permit(ctx, request{op: "acquire", name: r.Name}, whenever); err != nil {
		return driver.Grant{}, err
	}
	d.held.StopEvents(r.Owner)
	w := d.waiting.enter(r, lock)
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
			d.waiting.recordPlace(w, sent, reply)
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

// granted adds the lease that w was granted to those that are renewed.
func (d *Driver) granted(w *waiter, n wakeup) (driver.Grant, error) {
	token, err := interlock.NewToken(n.counter, 0)
	if err != nil {
		return driver.Grant{}, err
	}
	return driver.Grant{Lease: d.held.AddFor(w.request, n.sent, n.lease, n.due), Token: token}, nil
}

// Release ends the grant or the wait of owner on name; see driver.Fenced.
func (d *Driver) Release(ctx context.Context, name, owner string) error {
	lock, err := d.layout.key(name, owner)
	if err != nil {
		return err
	}
	d.held.Remove(owner)
	words := []string{lock, d.pushes.channel, owner}
	_, err = d.conn.eval(ctx, request{op: "release", name: name, owner: owner}, releaseScript,
		batch{keys: words[:1], args: words[1:]})
	return err
}

// contention returns the arguments of one request for several contenders.
func (d *Driver) contention(mode string, chunk ...*waiter) batch {
	b := batch{keys: make([]string, 0, len(chunk)), args: make([]string, 0, 2+2*len(chunk))}
	b.args = append(b.args, mode, d.pushes.channel)
	for _, w := range chunk {
		b.keys = append(b.keys, w.keys[0])
		b.args = append(b.args, w.request.Owner, milliseconds(w.request.Lease(d.ttl)))
	}
	return b
}

// refreshes returns the heartbeats of waiters, a batch for each part.
func (d *Driver) refreshes(parts [][]*waiter) []batch {
	batches := make([]batch, len(parts))
	for i, part := range parts {
		batches[i] = d.contention(refresh, part...)
	}
	return batches
}

// contend sends a request for one name. Only the goroutine of w may call it.
func (d *Driver) contend(ctx context.Context, w *waiter, mode string) (reply, error) {
	w.args = [...]string{mode, d.pushes.channel, w.request.Owner, milliseconds(w.request.Lease(d.ttl))}
	m, err := d.conn.eval(ctx, w.operation(), contendScript, batch{keys: w.keys[:], args: w.args[:]})
	if err != nil {
		return reply{}, err
	}
	answer, err := parseReply(m)
	switch {
	case err != nil:
		return reply{}, uncertain(w.operation(), err)
	case answer.status == statusFailed:
		return reply{}, answer.failure(w.operation())
	}
	return answer, nil
}
