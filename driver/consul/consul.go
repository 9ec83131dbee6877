package consul

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/join"
)

const (
	driverName    = "consul"
	defaultPrefix = "interlock/"
	defaultTTL    = 30 * time.Second
	minTTL        = time.Second
	maxTTL        = 24 * time.Hour
	maxLockDelay  = time.Minute

	opOpen    = "open session"
	opAcquire = "acquire"
	opRelease = "release"

	// attempts bounds the repetitions of one call after a definite refusal.
	attempts = 8
)

// Options of [Open]. Only Address is required.
type Options struct {
	// Address is the HTTP API of an agent, "host:port". Use the agent of the same
	// machine, as Consul's clients do; it finds the servers.
	Address string
	// Token is the secret of an ACL token; empty means none. It needs write for the keys that
	// begin with Prefix without its last slash, and session write for the agent's node.
	Token string
	// TLS enables HTTPS to the agent; nil means HTTP.
	TLS *tls.Config
	// Prefix begins every key; empty means "interlock/".
	Prefix string
	// TTL is how long a claim is valid without a renewal: 0 means 30 s, from 1 s to 24 h.
	// Servers require at least 10 s, unless their session_ttl_min is less. Consul keeps the
	// locks of a killed process for twice the TTL after its last renewal.
	TTL time.Duration
	// LockDelay is how long Consul blocks a lock after it ended a session without a release,
	// from 0 to a minute. Claims end here before their session, so 0 is right, with two
	// exceptions. One is work that continues after its claim without a guard. The other is
	// an agent that leaves the cluster while its clients hold locks.
	LockDelay time.Duration
	// Transport sends the requests; nil means connections of the driver. With one, a TLS
	// that is not nil only selects HTTPS.
	Transport http.RoundTripper
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
	if c.Prefix == "" {
		c.Prefix = defaultPrefix
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	err := c.Seed.Validate()
	switch {
	case err != nil:
	case c.Address == "" || strings.Contains(c.Address, "/"):
		err = fmt.Errorf("the address %q is not host:port", c.Address)
	case c.TTL < minTTL || c.TTL > maxTTL:
		err = fmt.Errorf("a TTL of %v is invalid: it must be between %v and %v", c.TTL, minTTL, maxTTL)
	case c.LockDelay < 0 || c.LockDelay > maxLockDelay:
		err = fmt.Errorf("a lock-delay of %v is invalid: it must be between 0 and %v", c.LockDelay, maxLockDelay)
	case strings.Trim(c.Prefix, "/") == "" || strings.HasPrefix(c.Prefix, "/"):
		err = fmt.Errorf("the prefix %q is invalid: it must not begin with a slash", c.Prefix)
	}
	if err != nil {
		return c, refused("open", "", err)
	}
	return c, nil
}

// Driver keeps fenced locks in Consul. It implements driver.Fenced, driver.Inspector,
// driver.Watcher and driver.Breaker.
type Driver struct {
	client     *client
	options    Options
	layout     layout
	pace       pace
	guarantees interlock.Guarantees

	ctx    context.Context // ends at Close
	cancel context.CancelCauseFunc
	tasks  sync.WaitGroup

	mu         sync.Mutex
	session    *session // nil while there is none
	opening    *opening // nil unless one is being opened
	top        int64    // the highest granted counter
	contenders map[identity]*contender
}

var (
	_ driver.Fenced    = (*Driver)(nil)
	_ driver.Inspector = (*Driver)(nil)
	_ driver.Watcher   = (*Driver)(nil)
	_ driver.Breaker   = (*Driver)(nil)
)

// identity is a contender's lock and owner.
type identity struct{ name, owner string }

// pace is the intervals and bounds, derived from the TTL.
type pace struct {
	request time.Duration // bound of one request
	renew   time.Duration // between renewals
	retry   time.Duration // between renewals after a failure, and tries during a lock-delay
	quiet   time.Duration // of one blocking query
	least   time.Duration // between two blocking queries of one waiter
}

func paceOf(ttl time.Duration) pace {
	return pace{
		request: max(time.Second, min(ttl/3, 5*time.Second)),
		renew:   ttl / 3,
		retry:   max(100*time.Millisecond, min(ttl/10, time.Second)),
		quiet:   min(ttl/2, 10*time.Second),
		least:   50 * time.Millisecond,
	}
}

// Open opens a session and prepares the namespace, in three requests. It blocks until the
// agent has answered, bounded by ctx and by a third of the TTL (1 s to 5 s) for each request.
// If it fails, it leaves nothing.
//
// An error of kind Bug names an invalid option. Retryable means that no server answered.
// Definite means that Consul refused, or that tokens cannot start: a
// [*driver.ImplausibleError], or a [*driver.ClockError] if this machine's clock is ahead of the
// agent's.
func Open(ctx context.Context, options *Options) (*Driver, error) {
	o, err := options.complete()
	if err != nil {
		return nil, err
	}
	d := &Driver{client: newClient(o), options: o, layout: layout{o.Prefix}, pace: paceOf(o.TTL), contenders: map[identity]*contender{}}
	d.guarantees = guarantees(o.TTL, d.pace)
	d.ctx, d.cancel = context.WithCancelCause(context.Background())
	if _, err := d.current(ctx); err != nil {
		_ = d.Close(ctx) // always nil
		return nil, err
	}
	return d, nil
}

func guarantees(ttl time.Duration, p pace) interlock.Guarantees {
	const always = interlock.ServerCrash | interlock.Partition | interlock.AsyncFailover | interlock.ServerClockJump
	return interlock.Guarantees{
		Driver:            driverName,
		Class:             interlock.Fenced,
		TokenFrom:         "base of the namespace + Raft index of the grant",
		Liveness:          interlock.Session,
		Clock:             interlock.ServerClock,
		Order:             interlock.Barging,
		Wait:              interlock.Push,
		CrossProcess:      true,
		TokensSurvive:     always | interlock.HolderPause | interlock.DataLoss | interlock.OperatorDelete,
		ExclusionSurvives: always,
		TTL:               ttl,
		Blind:             p.renew + 2*p.request,
	}
}

// Guarantees returns the guarantees of the driver.
func (d *Driver) Guarantees() interlock.Guarantees { return d.guarantees }

// Key returns the key of a lock, for Consul's own clients: "consul lock" takes it
// without "/.lock", and LockKey of the Go client whole.
func (d *Driver) Key(name string) (string, error) {
	return d.layout.lock(name), checkName("locate", name)
}

// Close ends every request and waits until every goroutine has ended. If nothing is held it
// also ends the session, which takes a second at most; otherwise the claims expire. It
// returns nil, and may be repeated.
func (d *Driver) Close(context.Context) error {
	d.mu.Lock()
	s := d.session
	d.session = nil
	idle := s != nil && len(s.holders()) == 0
	d.cancel(interlock.ErrClosed)
	d.mu.Unlock()
	d.tasks.Wait()
	if idle {
		s.destroy()
	}
	d.client.idle()
	return nil
}

// bounded limits one request, which also ends with the driver.
func (d *Driver) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return d.within(ctx, d.pace.request)
}

// within returns ctx, which also ends with the driver and after a time.
func (d *Driver) within(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, end := join.Context(ctx, d.ctx)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errSlow)
	return ctx, func() {
		cancel()
		end()
	}
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
		return nil, fail.Unsent(ctx, opOpen, "")
	}
}

func (d *Driver) sessionOrOpening() (*session, *opening, error) {
	d.mu.Lock()
	ran := d.session
	d.mu.Unlock()
	if ran != nil && ran.term.Remaining() <= 0 {
		ran.end(errTimeRanOut)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx.Err() != nil {
		return nil, nil, fail.Closed(opOpen, "")
	}
	if d.session == nil && d.opening == nil {
		o := &opening{done: make(chan struct{})}
		d.opening = o
		d.tasks.Go(func() { d.open(o) })
	}
	return d.session, d.opening, nil
}

func (d *Driver) open(o *opening) {
	s, err := d.newSession()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx.Err() != nil {
		if err == nil {
			d.tasks.Go(s.destroy)
		}
		err = fail.Closed(opOpen, "")
	}
	if err == nil {
		d.session, o.session = s, s
	}
	d.opening, o.err = nil, err
	close(o.done)
}

func (d *Driver) highest() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.top
}

// usable returns the error of a call that cannot begin.
func (d *Driver) usable(ctx context.Context, op, name string) error {
	switch {
	case d.ctx.Err() != nil:
		return fail.Closed(op, name)
	case ctx.Err() != nil:
		return fail.Unsent(ctx, op, name)
	}
	return nil
}
