package kube

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

const (
	driverName       = "kube"
	defaultNamespace = "default"
	defaultTTL       = 30 * time.Second
	minTTL           = 3 * time.Second
	maxTTL           = 24 * time.Hour
)

// Options of [Open]. The zero value works.
type Options struct {
	// Namespace is the Kubernetes namespace of the Leases, which must exist;
	// empty means "default". The driver watches all Leases in it.
	Namespace string
	// Prefix begins the name of every Lease object, such as "jobs-". Objects
	// without it are then ignored. Lower-case letters, digits, "-" and "."; it
	// begins with a letter or a digit.
	Prefix string
	// TTL is how long a claim outlives this process: leaseDurationSeconds, so it
	// is rounded up to whole seconds. 0 means 30 s; from 3 s to 24 h. Client-go
	// peers should have the same.
	TTL time.Duration
	// Seed sets where tokens start, for a migration or a repair.
	Seed driver.Seed
	// Now is the wall clock that seeds tokens and sets the times of Leases, which
	// are compared with no clock; nil means time.Now.
	Now func() time.Time
}

func (o *Options) complete() (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	if c.Namespace == "" {
		c.Namespace = defaultNamespace
	}
	if c.TTL == 0 {
		c.TTL = defaultTTL
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.TTL < minTTL || c.TTL > maxTTL {
		return c, refused("open", "", fmt.Errorf("a TTL of %v is invalid: it must be between 3s and 24h", c.TTL))
	}
	if err := c.Seed.Validate(); err != nil {
		return c, refused("open", "", err)
	}
	if problems := validation.IsDNS1123Label(c.Namespace); len(problems) > 0 {
		return c, refused("open", "", fmt.Errorf("%q cannot be a namespace: %s", c.Namespace, problems[0]))
	}
	c.TTL = time.Duration(math.Ceil(c.TTL.Seconds())) * time.Second
	if problems := validation.IsDNS1123Subdomain(c.Prefix + "a"); len(problems) > 0 {
		return c, refused("open", "", fmt.Errorf("the prefix %q cannot begin the name of an object: %s", c.Prefix, problems[0]))
	}
	return c, nil
}

// Driver keeps fenced locks in Leases. It implements driver.Fenced,
// driver.Inspector, driver.Watcher and driver.Breaker.
type Driver struct {
	client     *client
	options    Options
	layout     layout
	pace       pace
	guarantees interlock.Guarantees
	advisory   bool // no tokens

	ctx     context.Context // ends at Close
	cancel  context.CancelCauseFunc
	tasks   sync.WaitGroup
	tendNow chan struct{}

	mu         sync.Mutex
	closed     bool
	view       view
	base       int64 // the highest known base of the namespace
	contenders map[identity]*contender
	renewals   int // under way
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
	retry   time.Duration // between renewals after a failure
	quiet   time.Duration // time without an event after which a waiter reads the Lease
}

func paceOf(ttl time.Duration) pace {
	return pace{
		request: min(ttl/2, 5*time.Second),
		renew:   ttl / 3,
		retry:   min(ttl/10, time.Second),
		quiet:   min(ttl/2, 10*time.Second),
	}
}

// Open reads the Leases of the namespace and watches them from there on. It does
// not change config; client-side throttling is off unless config sets a QPS. It
// blocks for two requests, bounded by ctx and by half of the TTL each (5 s at
// most), and leaves nothing if it fails; nil options mean the zero Options.
// Options.Seed costs some more requests.
//
// An error of kind Bug names an invalid option. Retryable means that the API server did not answer.
// Definite means that it refused, that it is older than Kubernetes 1.35 and so has no order of
// terms, or that tokens cannot start. Then the error is a [*driver.ImplausibleError], or a
// [*driver.ClockError] if this machine's clock is ahead of the API server's.
func Open(ctx context.Context, config *rest.Config, options *Options) (*Driver, error) {
	return open(ctx, config, options, false)
}

func open(ctx context.Context, config *rest.Config, options *Options, advisory bool) (*Driver, error) {
	o, err := options.complete()
	if err != nil {
		return nil, err
	}
	d := &Driver{
		options:    o,
		layout:     layout{prefix: o.Prefix},
		pace:       paceOf(o.TTL),
		tendNow:    make(chan struct{}, 1),
		view:       view{sights: map[string]*sight{}, waiting: map[string]map[chan struct{}]bool{}, watchers: map[*driver.Mailbox]bool{}},
		contenders: map[identity]*contender{},
		advisory:   advisory,
	}
	if d.guarantees = guarantees(o.TTL, d.pace); advisory {
		d.guarantees.Class, d.guarantees.TokenFrom, d.guarantees.TokensSurvive = interlock.Advisory, "", 0
	}
	if d.client, err = newClient(config, o.Namespace, d.pace.request); err != nil {
		return nil, refused("open", "", err)
	}
	d.ctx, d.cancel = context.WithCancelCause(context.Background())
	if err := d.begin(ctx); err != nil {
		d.stop()
		return nil, err
	}
	return d, nil
}

// begin returns when the watch has its first list.
func (d *Driver) begin(ctx context.Context) error {
	if ctx.Err() != nil {
		return problem("open", "", interlock.Definite, context.Cause(ctx))
	}
	if err := d.admit(ctx); err != nil {
		return err
	}
	up := make(chan error, 1)
	d.tasks.Go(func() { d.follow(up) })
	d.tasks.Go(d.keepRenewing)
	d.tasks.Go(d.keepSweeping)
	select {
	case err := <-up:
		if err != nil || d.advisory {
			return err
		}
		return d.seed(ctx)
	case <-ctx.Done():
		return problem("open", "", interlock.Retryable, context.Cause(ctx))
	}
}

// admit rejects a server without ordered revisions, and a clock that is ahead.
func (d *Driver) admit(ctx context.Context) error {
	if d.advisory {
		return nil
	}
	rctx, cancel := d.bounded(ctx)
	defer cancel()
	if err := d.client.orders(rctx); err != nil {
		var old *oldServerError
		if errors.As(err, &old) {
			return problem("open", "", interlock.Definite, err)
		}
		return unread(rctx, "open", "", err)
	}
	if err := driver.SameClock(d.options.Now(), d.client.clock.now(d.options.Now)); err != nil {
		return problem("open", "", interlock.Definite, err)
	}
	return nil
}

func guarantees(ttl time.Duration, p pace) interlock.Guarantees {
	const always = interlock.ServerCrash | interlock.Partition | interlock.AsyncFailover | interlock.ServerClockJump
	return interlock.Guarantees{
		Driver:            driverName,
		Class:             interlock.Fenced,
		TokenFrom:         "base of the Lease + its resource version at the grant",
		Liveness:          interlock.ObservedLease,
		Clock:             interlock.ClientClock,
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

// Close stops renewals and the watch, ends every request and waits until every
// goroutine has ended. Held claims expire. It returns nil, and may be repeated.
func (d *Driver) Close(context.Context) error {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.stop()
	return nil
}

func (d *Driver) stop() {
	d.cancel(interlock.ErrClosed)
	d.tasks.Wait()
	d.client.idle()
}

// bounded limits one request, which also ends with the driver.
func (d *Driver) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	stop := context.AfterFunc(d.ctx, func() { end(context.Cause(d.ctx)) })
	ctx, cancel := context.WithTimeoutCause(ctx, d.pace.request, errSlow)
	return ctx, func() {
		stop()
		cancel()
		end(nil)
	}
}

// Object returns the Lease of a lock, for kubectl and for other clients.
func (d *Driver) Object(name string) (namespace, object string, err error) {
	object, err = d.layout.locate("locate", name)
	return d.options.Namespace, object, err
}
