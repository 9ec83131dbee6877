// Package redis is a lock on one Redis server. It does not promise mutual
// exclusion: a paused holder goes on when it wakes, a failover to a replica
// loses the last grants, and anybody can delete a key. Guard what the lock
// protects with its token (package guard/fence, or [Fence] for data in the same
// Redis).
//
//	client, err := redis.Dial("redis://localhost:6379")
//	d, err := redis.Open(ctx, client, nil)
//	defer d.Close(ctx)
//	locks, err := lock.NewFenced(d, nil)
//
// # Guarantees
//
// They are computed from what the server says when [Open] asks it. Exclusion
// survives a crash of the server only with appendonly yes and appendfsync
// always. It never survives a failover to a replica, a step of the server's
// clock (Redis expires keys by wall clock) or a deletion by hand. With
// maxmemory and a policy other than noeviction the server may drop a lock at
// any time, so nothing is promised about exclusion, and CrossProcess is false.
//
// Redis Cluster is refused: the layout keeps the keys of a name in one hash
// slot, but it is not tested there.
//
// # Token
//
// One counter for each hash slot, which never expires. A grant draws it in the
// script that grants: the previous counter plus one, or the microseconds of the
// server's clock since 2020 if that is more. So it rises for all names of the
// slot, costs no request, leaves no key behind for a name, and after a loss of
// data goes on above what was issued if the server's clock was not set back.
// After a failover the other machine's clock may be behind, which is why that
// is not promised.
//
// # Liveness
//
// A key with a time to live, renewed every third of it, up to 100 names in one
// request. After a failed renewal the next comes within a second, until the
// time is over. While the server answers, a holder learns of a deleted key
// within a third of the TTL and about a second; while it does not, at the end
// of its lease. Guarantees.Blind is therefore the TTL.
//
// A request may arrive late: bytes of a connection that was given up can still
// be read by a server that was stopped. If an acquire request overtakes the
// release after it in this way, the name stays taken until the TTL is over, by
// an owner that nobody uses; it never is granted twice.
//
// # Waiting
//
// A queue in the order of arrival, one place for each owner. A release grants
// to the first live waiter and publishes that on the channel of its process; it
// confirms at once, and if it does not, the grant ends after a second. Waiters
// say every 500 ms that they live, up to 100 in one request; that also finds
// pushes that were lost, and locks that expired or were deleted. A waiter that
// was not heard of for 1.5 s loses its place. A wait whose heartbeats are not
// answered for so long ends with an Uncertain error; acquiring again with the
// same owner finds the place or the grant, if it is still there.
//
// The order is that of arrival at the server. It is not promised while other
// kinds of clients use the name (driver.Contender.Foreign shows them): they
// barge, and a waiter finds out by its heartbeat.
//
// # Interoperation
//
// The lock is the string key Options.Prefix + name with the owner as its value
// and a time to live: what SET NX PX writes. Clients that do the same and
// delete only their own value (redis-py's Lock, redsync with one server,
// bsm/redislock, our own [Plain]) exclude us and are excluded. Companion keys
// start with "interlock:{"; names that would are refused.
//
// # Escape hatch
//
// Deleting the lock's key frees the name; its holder is told, the next waiter
// is served by a heartbeat. Everything else expires. Keys of a name:
// interlock:{TAG}:hold:NAME, …:queue:NAME and …:wait:NAME, where TAG is a short
// text of the same hash slot; the counter is interlock:{TAG}:counter.
package redis

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/boottime"
)

// DefaultTTL is how long a claim lives without renewal if Options do not say.
const DefaultTTL = 30 * time.Second

// MinTTL and MaxTTL bound Options.TTL.
const (
	MinTTL = 100 * time.Millisecond
	MaxTTL = 24 * time.Hour
)

// Options of a driver; nil and the zero value work.
type Options struct {
	// TTL is how long a claim lives without renewal; 0 means [DefaultTTL],
	// otherwise [MinTTL] to [MaxTTL]. Claims are renewed every third of it.
	TTL time.Duration
	// Prefix is put before every name to make the lock's key. Clients that
	// share locks must agree on the key.
	Prefix string
}

func (o *Options) orDefault() (Options, error) {
	var options Options
	if o != nil {
		options = *o
	}
	if options.TTL == 0 {
		options.TTL = DefaultTTL
	}
	if options.TTL < MinTTL || options.TTL > MaxTTL {
		return options, fmt.Errorf("a TTL of %v is impossible: it must be %v to %v", options.TTL, MinTTL, MaxTTL)
	}
	return options, nil
}

// Driver is a fenced lock with a queue. It is safe for concurrent use, and
// keeps three goroutines, whatever the number of locks.
type Driver struct {
	conn       *conn
	layout     layout
	ttl        time.Duration
	guarantees interlock.Guarantees

	held    *keeper
	waiting *waiters
	pushes  *subscriber

	stop  context.CancelFunc
	loops sync.WaitGroup
}

// Open asks the server what it is, computes the guarantees, and subscribes to
// the channel on which grants arrive. It fails if the server cannot keep locks:
// a cluster, a replica, a version before 6, no right to run scripts or to
// subscribe. The client stays the caller's, who closes it after the driver;
// make it with [Dial], or with DisableRetry set.
func Open(ctx context.Context, client rueidis.Client, o *Options) (*Driver, error) {
	options, facts, c, err := open(ctx, client, o, contendScript, releaseScript, renewScript, showScript)
	if err != nil {
		return nil, err
	}
	d := &Driver{
		conn: c, layout: layout{prefix: options.Prefix}, ttl: options.TTL,
		guarantees: queueGuarantees(facts, options.TTL),
		held:       newKeeper(c, options.TTL),
	}
	d.waiting = newWaiters(d)
	d.pushes = newSubscriber(client, "interlock:push:"+rand.Text(), d.waiting)
	loops, stop := context.WithCancel(context.Background())
	d.stop = stop
	d.loops.Go(func() { d.held.run(loops) })
	d.loops.Go(func() { d.waiting.run(loops) })
	d.pushes.start()
	if err := d.pushes.awaitFirst(ctx); err != nil {
		return nil, errors.Join(err, d.Close(context.WithoutCancel(ctx)))
	}
	return d, nil
}

// open is what Open and OpenPlain have in common.
func open(ctx context.Context, client rueidis.Client, o *Options, scripts ...*script) (Options, facts, *conn, error) {
	options, err := o.orDefault()
	if err != nil {
		return options, facts{}, nil, &interlock.Error{Op: "open", Driver: "redis", Kind: interlock.Definite, Err: err}
	}
	c := newConn(client)
	f, err := ask(ctx, c)
	if err == nil {
		err = f.refusal()
	}
	if err == nil {
		err = c.load(ctx, scripts...)
	}
	return options, f, c, err
}

// Guarantees says what is promised, as computed when the driver opened.
func (d *Driver) Guarantees() interlock.Guarantees { return d.guarantees }

// Acquire waits until r.Owner holds r.Name; see driver.Fenced.
func (d *Driver) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	k, err := d.layout.keys(r.Name, r.Owner)
	if err != nil {
		return driver.Grant{}, err
	}
	w := d.waiting.enter(r, k)
	defer d.waiting.leave(w)
	mode := enqueue
	if r.NoWait {
		mode = noWait
	}
	for {
		sent := boottime.Now()
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

// Close stops renewing and ends every goroutine. What is held is left to
// expire, what waits loses its place soon. Closing again waits again.
func (d *Driver) Close(ctx context.Context) error {
	if d.conn.close() {
		d.waiting.closeAll()
		d.stop()
		d.pushes.stop(ctx)
	}
	return d.conn.wait(ctx, &d.loops, &d.pushes.loop)
}
