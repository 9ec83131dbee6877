// Package etcd keeps locks in etcd, in the layout of etcdctl lock and the Go package
// concurrency, so that all of them exclude each other.
//
// It does not make a lock safe by itself: a process that is stopped for longer than
// its lease still believes that it holds the lock when it continues. Only a guard
// that compares tokens rejects its writes, see package guard/fence and [Fence].
//
//	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:2379"}})
//	d, err := etcd.Open(ctx, client, &etcd.Options{Prefix: "locks/"})
//	locks, err := lock.NewFenced(d, nil)
//	err = locks.Do(ctx, "nightly-report", func(ctx context.Context, c interlock.Claim) error {
//		return nil // hand c to a guard
//	})
//
// Beside locks there is [Shard], balances and small values that take part in two-phase
// commit: see package txn/twopc.
//
// # Guarantees
//
// Claims exclude each other through a crash of the servers, a partition and a step of their wall
// clocks. The order is raft's, no member without the last writes can lead, and a claim ends here
// before its lease can end there. Exclusion does not survive the deletion of a contender's key by
// an operator, nor lost data. Then the next contender is served at once, and the former holder
// notices within Guarantees.Blind. That bound is two heartbeats and one request: one heartbeat to
// probe the watch, one to notice its silence, and a read that etcd answers in time. If the watch is
// on a member that is cut off from the others and does not notice it, add a third of the TTL: then
// renewals, which go to the members in turn, show that the others are ahead.
//
// # Token
//
// The counter is base + create revision of the contender's key. Waiters are served by create
// revision, so it rises with every grant. The base is the number under "interlock.base". Every
// session raises it so that the counter is at least the microseconds since 2020. So tokens rise
// over an empty data directory and a restored backup too, given correct clocks. A contender stores
// in its value the base that was valid when it arrived. So its token is the same for every reader
// and does not change while it waits. Never lower the base by hand. [Driver.Token] and
// [Driver.Revision] convert for writers that know only revisions.
//
// # Liveness
//
// A driver has one session: one lease, renewed every third of the TTL, and after a
// failure every tenth of it, at most a second apart. The deadline counts from just
// before the last successful renewal was sent. When the lease ends every claim ends
// with it. The next Acquire opens a new session, which adopts nothing of the old
// one. etcd leases have whole seconds and a minimum of about one and a half
// election timeouts; the granted TTL counts.
//
// A member without a leader refuses requests before it proposes them, Retryable, and the
// client sends the next one to another member. A new leader gives every lease its full TTL
// again: a holder that dies shortly before keeps its locks for the TTL after the election.
//
// A connection that silently drops everything is closed only if the client probes it. Until then
// each request that the client sends there in turn waits for its bound. Set DialKeepAliveTime to
// 10 s, which is gRPC's least, and DialKeepAliveTimeout to 2 s in its Config, as a URL does. Linux
// closes a connection whose packets get no confirmation after the DialKeepAliveTimeout alone.
// Deadlines hold without that.
//
// # Waiting
//
// First come, first served, by one watch over the whole Prefix: no watch and no goroutine per
// lock. It is open while a contender waits, has held for longer than a heartbeat, or
// [Driver.Watch] is called, and for ten heartbeats after. Otherwise etcd would send each
// release back to the process that sent it. So the first waiter after a pause costs a watch
// and a read. If the watch falls silent, the names of interest are read once per heartbeat
// until it answers again.
//
// A waiter whose process died keeps its place until its lease ends. With a TTL of 4 s or
// more, a session with waiters has a second lease for them: a third of the TTL, between 2 s
// and 5 s. A waiter that is cut off for longer loses its place, and acquires again. A claim
// is held under that lease for its first 20 ms and one request, and then under the session's.
//
// With an empty Prefix that watch receives every deletion in the cluster. Set a
// Prefix in a cluster with other users. It should end in "/". Namespaces must not
// be inside each other or inside a lock: with Prefix "a/" no lock named "a" may be
// used outside of it.
//
// # Interoperation
//
// A contender is any key under Prefix + NAME + "/". Names are escaped, "/" as %2F
// and % as %25, so that no lock is inside another; a name without them is the same
// for etcdctl lock. [Options].RawNames passes names unchanged. Other clients have
// no token in their keys; their claims are shown as foreign.
//
// # Rights
//
// With authentication on, the user needs a role that may read and write all keys with
// the Prefix: etcdctl role grant-permission ROLE readwrite PREFIX --prefix. The command
// "interlock doctor" checks that.
//
// # Escape hatch
//
// [Driver.Contender] returns the key, lease and create revision of a claim, for
// your own transactions that compare the create revision. The caller of Open still
// owns the client, and closes it. [Driver.Break] takes a lock away from a dead
// holder, also one of another client.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

const (
	driverName = "etcd"
	defaultTTL = 30 * time.Second
	maxTTL     = 24 * time.Hour
)

// Options of [Open]. The zero value works.
type Options struct {
	// Prefix begins every key, so that several namespaces can share a cluster.
	// It should be empty or end in "/".
	Prefix string
	// TTL is how long claims outlive this process; 0 means 30 s. It is rounded
	// up to whole seconds, and etcd may grant more. From 1 s to 24 h.
	TTL time.Duration
	// RawNames uses names unescaped, for locks whose names other clients
	// write with slashes. Then a holder or waiter of "a/b" is also in the
	// queue for "a".
	RawNames bool
	// Seed sets where tokens start, for a migration or a repair.
	Seed driver.Seed
	// Now is the wall clock that seeds tokens; nil means time.Now.
	Now func() time.Time
}

func (o *Options) complete() (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	if c.TTL == 0 {
		c.TTL = defaultTTL
	}
	if c.TTL < time.Second || c.TTL > maxTTL {
		return c, problem("open", "", interlock.Bug, fmt.Errorf("the TTL %v is invalid: it must be between 1s and 24h", c.TTL))
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if err := c.Seed.Validate(); err != nil {
		return c, problem("open", "", interlock.Bug, err)
	}
	return c, nil
}

// Driver keeps fenced locks in etcd. It implements driver.Fenced, driver.Batch,
// driver.Inspector, driver.Watcher and driver.Breaker.
type Driver struct {
	client     *clientv3.Client
	keys       keyspace    // for requests that are not of Acquire, Release or the session
	direct     pb.KVClient // see directly
	requests   requests    // of Acquire and Release
	options    Options
	layout     layout
	base       []byte        // the key of the base of tokens
	readBase   *pb.RequestOp // reads it
	pace       pace
	guarantees interlock.Guarantees

	ctx    context.Context // ends at Close
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu         sync.Mutex
	closed     bool
	session    *session // nil while there is none
	arriving   *opening // nil unless one is being opened
	contenders map[identity]*contender
	listeners  map[*driver.Mailbox]bool
}

var (
	_ driver.Fenced    = (*Driver)(nil)
	_ driver.Inspector = (*Driver)(nil)
)

// identity is a contender's lock and owner.
type identity struct{ name, owner string }

// pace is the intervals and bounds, derived from the TTL.
type pace struct {
	seconds   int64         // the TTL asked for
	opening   time.Duration // bound of one request that opens a session
	request   time.Duration // bound of any other request
	retry     time.Duration // between renewals after one failed
	heartbeat time.Duration // between checks of the watch
}

func paceOf(ttl time.Duration) pace {
	return pace{
		seconds:   int64(math.Ceil(ttl.Seconds())),
		opening:   max(5*time.Second, min(ttl, 10*time.Second)),
		request:   clamp(ttl/3, time.Second, 5*time.Second),
		retry:     clamp(ttl/10, 100*time.Millisecond, time.Second),
		heartbeat: clamp(ttl/6, 250*time.Millisecond, time.Second),
	}
}

func clamp(d, low, high time.Duration) time.Duration { return max(low, min(d, high)) }

// Open opens a session: a lease, and the base of tokens. It blocks for two or three
// requests, bounded by ctx and by 5 s to 10 s each. If it fails, nothing stays
// open. The client must outlive the driver; nil options mean the zero Options.
//
// An error of kind Bug names an invalid option. Retryable means that etcd did not
// answer, Definite that it refused.
func Open(ctx context.Context, client *clientv3.Client, options *Options) (*Driver, error) {
	o, err := options.complete()
	if err != nil {
		return nil, err
	}
	d := &Driver{
		client:     client,
		options:    o,
		layout:     layout{prefix: o.Prefix, raw: o.RawNames},
		pace:       paceOf(o.TTL),
		contenders: map[identity]*contender{},
		listeners:  map[*driver.Mailbox]bool{},
	}
	d.keys = keyspace{client, o.Prefix, d.pace.request}
	d.direct, d.base = directly(client), []byte(d.layout.base())
	d.readBase = opRead(d.base, nil)
	d.groupRequests()
	d.ctx, d.cancel = context.WithCancel(context.Background())
	s, err := d.current(ctx)
	if err != nil {
		d.cancel()
		d.tasks.Wait()
		return nil, err
	}
	d.guarantees = guarantees(s.ttl, d.pace)
	return d, nil
}

func guarantees(ttl time.Duration, p pace) interlock.Guarantees {
	const always = interlock.ServerCrash | interlock.Partition | interlock.AsyncFailover | interlock.ServerClockJump
	return interlock.Guarantees{
		Driver:            driverName,
		Class:             interlock.Fenced,
		TokenFrom:         "base of the namespace + create revision of the contender's key",
		Liveness:          interlock.Session,
		Clock:             interlock.ServerClock,
		Order:             interlock.FIFO,
		Wait:              interlock.Push,
		CrossProcess:      true,
		TokensSurvive:     always | interlock.HolderPause | interlock.DataLoss | interlock.OperatorDelete,
		ExclusionSurvives: always,
		TTL:               ttl,
		Blind:             2*p.heartbeat + p.request,
	}
}

// Guarantees returns the guarantees, with the TTL that the first session was granted.
func (d *Driver) Guarantees() interlock.Guarantees { return d.guarantees }

// Close ends the session. If no claim is held, it revokes the lease, which removes
// every waiter of this driver. Otherwise it removes the waiters, and the claims
// expire. It ignores the end of ctx, sends requests for a second at most, and waits
// until every goroutine has ended. It returns nil, and may be repeated.
func (d *Driver) Close(ctx context.Context) error {
	if s := d.beginClose(); s != nil {
		s.cleanUp(context.WithoutCancel(ctx))
	}
	d.requests.Close(interlock.ErrClosed)
	d.cancel()
	d.tasks.Wait()
	return nil
}

// beginClose refuses further calls, stops renewing and wakes every waiting Acquire.
// It returns the session to be ended, if there is one.
func (d *Driver) beginClose() *session {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.session == nil {
		d.closed = true
		return nil
	}
	d.closed = true
	d.session.cancel()
	for _, c := range d.contenders {
		c.wake()
	}
	return d.session
}

// An opening is a session that is being opened; every call that needs one waits for it.
type opening struct {
	done    chan struct{}
	session *session
	err     error
}

// current returns the live session, and opens one if there is none. If it fails, the caller's
// own request was not sent.
func (d *Driver) current(ctx context.Context) (*session, error) {
	s, o, err := d.sessionOrOpening()
	if s != nil || err != nil {
		return s, err
	}
	select {
	case <-o.done:
		return o.session, o.err
	case <-ctx.Done():
		return nil, problem("open session", "", interlock.Definite, context.Cause(ctx))
	}
}

func (d *Driver) sessionOrOpening() (*session, *opening, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, nil, errClosed("open session", "")
	}
	if d.session != nil {
		if d.session.term.Remaining() > 0 {
			return d.session, nil, nil
		}
		d.session.endLocked(errTimeRanOut)
	}
	if d.arriving == nil {
		d.arriving = &opening{done: make(chan struct{})}
		d.tasks.Go(func() { d.open(d.arriving) })
	}
	return nil, d.arriving, nil
}

func (d *Driver) open(o *opening) {
	s, err := d.newSession()
	d.mu.Lock()
	d.arriving = nil
	if err == nil && d.closed {
		s.cancel()
		err = errClosed("open session", "")
	}
	if err == nil {
		d.session, o.session = s, s
		for _, c := range d.contenders {
			if c.state == leaving {
				s.queues.inherit(c)
			}
		}
	}
	o.err = err
	d.mu.Unlock()
	close(o.done)
}

// opening limits one request that opens a session. It takes longer, because many
// may open one at once.
func (d *Driver) opening(ctx context.Context) (context.Context, context.CancelFunc) {
	bounded, cancel := context.WithTimeoutCause(ctx, d.pace.opening, errSlow)
	return clientv3.WithRequireLeader(bounded), cancel
}

// patiently repeats a request that opens a session, with bounds that double, until etcd answers or ctx
// ends: a member that is cut off does not answer, and the client picks another one.
func (d *Driver) patiently(ctx context.Context, request func(context.Context) error) error {
	for bound := d.pace.heartbeat; ; bound *= 2 {
		attempt, cancel := context.WithTimeout(ctx, bound)
		err := request(attempt)
		expired := attempt.Err() != nil
		cancel()
		if err == nil || !expired || ctx.Err() != nil {
			return err
		}
	}
}

// bounded limits one request.
func (d *Driver) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	bounded, cancel := context.WithTimeoutCause(ctx, d.pace.request, errSlow)
	return unannounced{bounded}, cancel
}

// unannounced is a context whose deadline is not sent with the request. gRPC would send
// it as a header that differs each time, and etcd would start a timer.
type unannounced struct{ context.Context }

// Deadline reports none.
func (unannounced) Deadline() (at time.Time, ok bool) { return at, false }

var (
	errSlow       = errors.New("etcd did not answer in time")
	errTimeRanOut = errors.New("no renewal was confirmed in time")
)
