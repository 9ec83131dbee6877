package zookeeper

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/group"
)

const (
	driverName  = "zookeeper"
	defaultRoot = "/interlock"
	defaultTTL  = 30 * time.Second
	minTTL      = 500 * time.Millisecond
	maxTTL      = 24 * time.Hour

	opOpen = "open session"
)

// Options of [Open]. Only Servers is required.
type Options struct {
	// Servers are the addresses of servers of one ensemble, "host:port".
	Servers []string
	// Root is the parent node of all locks; empty means "/interlock". It is
	// created if it is missing.
	Root string
	// TTL is how long claims outlive this process, from 500 ms to 24 h; 0 means
	// 30 s. The servers may grant another one, within the bounds of their
	// configuration (4 s to 40 s by default). That one counts.
	TTL time.Duration
	// RawNames uses each name as a path, so that "a/b" is the node b below a, as other clients
	// write it. Names with an invalid path segment are then refused. Clients that treat every child
	// as a contender, such as Curator, must not lock "a" meanwhile.
	RawNames bool
	// TolerateKazoo accepts nodes of kazoo as contenders. Every kazoo lock on
	// these paths must have extra_lock_patterns=["lock-"]; otherwise kazoo and
	// this driver hold at the same time.
	TolerateKazoo bool
	// ACL of every node; nil gives every client all permissions.
	ACL []zk.ACL
	// Auth is sent when a session begins, and after every interruption.
	Auth []Auth
	// Dial connects to a server; nil means plain TCP. For TLS pass the
	// DialContext of a tls.Dialer.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Seed sets where tokens start, for a migration or a repair.
	Seed driver.Seed
	// Now is the wall clock that seeds tokens; nil means time.Now.
	Now func() time.Time
}

// Auth is a credential, such as {"digest", []byte("user:password")}.
type Auth struct {
	Scheme      string
	Credentials []byte
}

func (o *Options) complete() (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	if c.TTL == 0 {
		c.TTL = defaultTTL
	}
	if c.Root == "" {
		c.Root = defaultRoot
	}
	if c.ACL == nil {
		c.ACL = zk.WorldACL(zk.PermAll)
	}
	if c.Dial == nil {
		c.Dial = new(net.Dialer).DialContext
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if err := c.Seed.Validate(); err != nil {
		return c, fail.New("open", "", interlock.Bug, err)
	}
	if why := c.fault(); why != "" {
		return c, fail.New("open", "", interlock.Bug, fmt.Errorf("%s", why))
	}
	return c, nil
}

// fault names an invalid option; empty if there is none.
func (o *Options) fault() string {
	switch {
	case len(o.Servers) == 0:
		return "Options.Servers is empty: at least one is required"
	case o.TTL < minTTL || o.TTL > maxTTL:
		return fmt.Sprintf("the TTL %v is invalid: it must be between %v and %v", o.TTL, minTTL, maxTTL)
	case !strings.HasPrefix(o.Root, "/") || rawFault(o.Root[1:]) != "" || o.Root == "/zookeeper":
		return fmt.Sprintf("the root %q is invalid: it must be the path of a node, such as /interlock", o.Root)
	}
	return ""
}

// Driver keeps fenced locks in ZooKeeper. It implements driver.Fenced,
// driver.Inspector, driver.Watcher and driver.Breaker.
type Driver struct {
	options     Options
	layout      layout
	guarantees  interlock.Guarantees
	maintainNow chan struct{} // asks for a heartbeat at once
	entries     group.Group[entry, []string]
	removals    group.Group[removal, struct{}]

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu         sync.Mutex
	closed     bool
	sealed     bool     // no further task may start
	session    *session // nil while there is none
	opening    *opening // nil unless one is being opened
	contenders map[identity]*contender
}

var _ driver.Fenced = (*Driver)(nil)

// identity is a contender's lock and owner.
type identity struct{ name, owner string }

// pace is the intervals and bounds, derived from the TTL.
type pace struct {
	opening   time.Duration // bound of opening a session, which takes some requests
	request   time.Duration // bound of one request
	retry     time.Duration // between renewals after one failed
	heartbeat time.Duration // between reads of what a watch should report
}

func paceOf(ttl time.Duration) pace {
	return pace{
		opening:   clamp(ttl, 2*time.Second, 10*time.Second),
		request:   clamp(ttl/3, time.Second, 5*time.Second),
		retry:     clamp(ttl/10, 100*time.Millisecond, time.Second),
		heartbeat: clamp(ttl/6, 250*time.Millisecond, 5*time.Second),
	}
}

func clamp(d, low, high time.Duration) time.Duration { return max(low, min(d, high)) }

// Open opens a session and creates the namespace. It blocks until a server
// answers, bounded by ctx and by the TTL (2 s to 10 s). If it fails, nothing stays
// open.
//
// An error of kind Bug names an invalid option. Retryable means that no server
// answered, Definite that one refused.
func Open(ctx context.Context, options *Options) (*Driver, error) {
	o, err := options.complete()
	if err != nil {
		return nil, err
	}
	d := &Driver{
		options:     o,
		layout:      layout{root: o.Root, raw: o.RawNames},
		maintainNow: make(chan struct{}, 1),
		contenders:  map[identity]*contender{},
	}
	d.groupRequests()
	d.ctx, d.cancel = context.WithCancel(context.Background())
	s, err := d.current(ctx)
	if err != nil {
		_ = d.Close(ctx) // always nil
		return nil, err
	}
	d.guarantees = guarantees(s.ttl)
	return d, nil
}

func guarantees(ttl time.Duration) interlock.Guarantees {
	const always = interlock.ServerCrash | interlock.Partition | interlock.AsyncFailover | interlock.ServerClockJump
	return interlock.Guarantees{
		Driver:            driverName,
		Class:             interlock.Fenced,
		TokenFrom:         "base of the namespace + czxid of the contender's node",
		Liveness:          interlock.Session,
		Clock:             interlock.ServerClock,
		Order:             interlock.FIFO,
		Wait:              interlock.Push,
		CrossProcess:      true,
		TokensSurvive:     always | interlock.HolderPause | interlock.DataLoss | interlock.OperatorDelete,
		ExclusionSurvives: always,
		TTL:               ttl,
		Blind:             ttl,
	}
}

// Guarantees returns the guarantees, with the TTL that the first session was granted.
func (d *Driver) Guarantees() interlock.Guarantees { return d.guarantees }

// Close ends the session. If no claim is held, it closes the session on ZooKeeper, which removes
// every waiter of this driver at once. Otherwise it removes the waiters, and the claims expire.
// It ignores the end of ctx, and waits until every goroutine has ended, at most some seconds. It
// returns nil, and may be repeated.
func (d *Driver) Close(ctx context.Context) error {
	if s := d.beginClose(); s != nil {
		held := d.removeWaiters(context.WithoutCancel(ctx), s)
		s.leave(!held)
	}
	d.entries.Close(interlock.ErrClosed)
	d.removals.Close(interlock.ErrClosed)
	d.mu.Lock()
	d.sealed = true
	d.mu.Unlock()
	d.cancel()
	d.tasks.Wait()
	return nil
}

// beginClose refuses further calls, stops renewing and wakes every waiter. It returns the
// session to be ended, if there is one.
func (d *Driver) beginClose() *session {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	for _, c := range d.contenders {
		c.wake()
	}
	if d.session == nil {
		return nil
	}
	d.session.nodes.wake()
	d.session.cancel()
	return d.session
}

// removeWaiters removes the waiters if a claim is held, which keeps the session. Errors are
// ignored: the nodes end with the session.
func (d *Driver) removeWaiters(ctx context.Context, s *session) (held bool) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var nodes []string
	d.mu.Lock()
	for _, c := range d.contenders {
		held = held || c.granted
		if !c.granted && c.session == s && c.node != "" {
			nodes = append(nodes, c.node)
		}
	}
	d.mu.Unlock()
	if !held {
		return false
	}
	for _, node := range nodes {
		if s.remove(ctx, "close", "", node) != nil {
			break
		}
	}
	return true
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
		return nil, notSent(ctx, opOpen, "")
	}
}

func (d *Driver) sessionOrOpening() (*session, *opening, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, nil, fail.Closed(opOpen, "")
	}
	if d.session != nil {
		if d.session.term.Remaining() > 0 {
			return d.session, nil, nil
		}
		d.session.endLocked(errTimeRanOut)
	}
	if d.opening == nil {
		d.opening = &opening{done: make(chan struct{})}
		d.tasks.Go(func() { d.open(d.opening) })
	}
	return nil, d.opening, nil
}

func (d *Driver) open(o *opening) {
	s, err := d.newSession()
	d.mu.Lock()
	d.opening = nil
	if err == nil && (d.closed || s.ended) {
		d.tasks.Go(func() { s.leave(true) })
		s.cancel()
		err = again("", interlock.ErrSessionEnded)
		if d.closed {
			err = fail.Closed(opOpen, "")
		}
	}
	if err == nil {
		d.session, o.session = s, s
	}
	o.err = err
	d.mu.Unlock()
	close(o.done)
}

// start runs a task that Close waits for; false if the driver is closed.
func (d *Driver) start(task func()) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sealed {
		return false
	}
	d.tasks.Go(task)
	return true
}
