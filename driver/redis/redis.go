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
	"github.com/interlock-dev/interlock/internal/renewal"
)

// DefaultTTL is the default of Options.TTL.
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
		return options, fmt.Errorf("a TTL of %v is invalid: it must be %v to %v", options.TTL, MinTTL, MaxTTL)
	}
	return options, nil
}

// keyspace is what [Driver] and [Plain] have in common: the locks below a prefix.
type keyspace struct {
	conn       *conn
	layout     layout
	ttl        time.Duration
	guarantees interlock.Guarantees
	held       *renewal.Keeper
	evicts     *eviction

	ended context.Context // done when Close is called
	stop  context.CancelFunc
	loops sync.WaitGroup
}

// Driver is a fenced lock with a queue, and a driver.Batch. It is safe for
// concurrent use. It keeps four goroutines, whatever the number of locks, and one
// for each request that waits for a connection, for replicas or for a disk.
type Driver struct {
	*keyspace
	waiting *waiters
	pushes  *subscriber
}

// Open checks the server, computes the guarantees, and subscribes to the channel of pushed grants.
// It fails if the server cannot keep locks: a cluster unknown to the client, a replica, a version
// before 6, no right to run scripts or to subscribe. Make the client with [Dial], or with
// DisableRetry set, and close it after the driver.
func Open(ctx context.Context, client rueidis.Client, o *Options) (*Driver, error) {
	k, err := open(ctx, client, o, queueGuarantees, contendScript, releaseScript)
	if err != nil {
		return nil, err
	}
	d := &Driver{keyspace: k}
	d.waiting = newWaiters(d)
	d.pushes = newSubscriber(client, pushes+rand.Text(), d.waiting, d.evicts.checkNow)
	k.conn.groups = map[*script]*group{
		contendScript: {conn: k.conn, script: contendScript, head: []string{enqueue, d.pushes.channel}},
		releaseScript: {conn: k.conn, script: releaseScript, head: []string{d.pushes.channel}},
	}
	d.loops.Go(func() { d.waiting.run(d.ended) })
	d.pushes.start()
	if err := d.pushes.awaitFirst(ctx); err != nil {
		err = harmless(request{op: "open"}, err)
		return nil, errors.Join(err, d.Close(context.WithoutCancel(ctx)))
	}
	return d, nil
}

// open is common to Open and OpenPlain. It starts to renew leases, and to check the server.
func open(ctx context.Context, client rueidis.Client, o *Options, guarantees func(facts, time.Duration) interlock.Guarantees, own ...*script) (*keyspace, error) {
	options, err := o.orDefault()
	if err == nil && client == nil {
		err = errors.New("a client is needed: make one with Dial")
	}
	if err != nil {
		return nil, problem(request{op: "open"}, interlock.Definite, err)
	}
	c := newConn(client)
	f, err := ask(ctx, c)
	if err == nil {
		err = f.refusal(settingsOf(client))
	}
	if err == nil {
		err = c.load(ctx, append(own, renewScript, showScript, breakScript)...)
	}
	if err != nil {
		return nil, harmless(request{op: "open"}, err)
	}
	k := &keyspace{conn: c, layout: layoutOn(client, options.Prefix), ttl: options.TTL, guarantees: guarantees(f, options.TTL),
		evicts: newEviction(c, keepsAll).checkedNow()}
	k.held = newKeeper(k.extend, options.TTL, settingsOf(client))
	k.ended, k.stop = context.WithCancel(context.Background())
	k.loops.Go(func() { k.held.Run(k.ended) })
	k.loops.Go(func() { k.evicts.run(k.ended) })
	return k, nil
}

// Guarantees returns the guarantees computed when the driver opened.
func (k *keyspace) Guarantees() interlock.Guarantees { return k.guarantees }

// Close stops renewals and ends every goroutine. Held locks expire, and waiters
// soon lose their places. A repeated Close waits again.
func (d *Driver) Close(ctx context.Context) error {
	if d.conn.close() {
		d.waiting.closeAll()
		d.stop()
		d.pushes.loop.Go(func() { d.pushes.stop(ctx) }) // it may wait for a dial of the client
	}
	return d.conn.wait(ctx, &d.loops, &d.pushes.loop)
}
