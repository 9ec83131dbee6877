package limit

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/observe"
)

// Failure is the policy if the store does not decide.
type Failure int

const (
	// Refuse returns the error; nothing is admitted.
	Refuse Failure = iota
	// Admit admits everything.
	Admit
	// Share admits Options.Share of the rate in this process. If the shares of all processes add up
	// to at most 1, the rate holds, apart from units that the store admitted before.
	Share
)

// Options of limits; nil and the zero value work.
type Options struct {
	// Timeout is how long the store may take to decide; 0 leaves it to the context of the call.
	Timeout time.Duration
	// OnFailure is the policy if the store does not decide. It does not apply if the caller's own
	// context has ended, nor to invalid calls, nor to those that take nothing.
	OnFailure Failure
	// Share is the part of each rate that this process admits with OnFailure Share: above 0, at most
	// 1. The result is at least one unit in each period.
	Share float64
	// Local decides with OnFailure Share: use memory.NewLimiter().
	Local driver.Limiter
	// Shadow admits calls that would be refused, and reports them to Hooks.Refused.
	Shadow bool
	// Hooks receive events; nil logs failures, see package observe.
	Hooks *observe.Limit
}

func (o *Options) withDefaults() (Options, error) {
	d := *cmp.Or(o, &Options{})
	switch {
	case d.Timeout < 0 || d.OnFailure < Refuse || d.OnFailure > Share:
		return d, invalid("timeout %v, failure policy %d", d.Timeout, d.OnFailure)
	case d.OnFailure == Share && (d.Local == nil || !(d.Share > 0 && d.Share <= 1)):
		return d, invalid("a share of %v: it must be above 0 and at most 1, and needs Local", d.Share)
	}
	d.Hooks = d.Hooks.WithDefaults()
	return d, nil
}

func invalid(format string, args ...any) error {
	return &interlock.Error{Op: "limit", Kind: interlock.Bug, Err: fmt.Errorf("invalid options: "+format, args...)}
}

// failed decides by the failure policy.
func (l *Limits) failed(ctx context.Context, call driver.LimitCall, err error) (d Decision, _ error) {
	o := l.options
	if ctx.Err() != nil || interlock.Kind(err) == interlock.Bug || !slices.ContainsFunc(call, func(c Charge) bool { return c.Cost > 0 }) {
		return d, err
	}
	if o.OnFailure == Share {
		if a := o.Local.Take(ctx, o.shares(call)); a[0].Err == nil {
			d = l.judge(call, a[0].Decisions)
		} else {
			d = l.judge(call, slices.Repeat([]driver.Decision{{RetryAfter: aboveShare}}, len(call)))
		}
	}
	if o.OnFailure == Admit {
		d.Allowed, d.Granted = true, call[0].Cost
	}
	if o.Hooks.Failed != nil {
		o.Hooks.Failed(observe.LimitFailed{Key: call[0].Key, Admitted: d.Allowed, Err: err})
	}
	if o.OnFailure == Refuse {
		return d, err
	}
	return d, nil
}

// aboveShare is when a charge above its share may be made again. Only the store can admit it.
const aboveShare = time.Second

// shares returns the call with the rates of this process. A charge above its share is refused.
func (o *Options) shares(call driver.LimitCall) []driver.LimitCall {
	part := func(n int64) int64 { return max(1, int64(float64(n)*o.Share)) }
	own := slices.Clone(call)
	for i := range own {
		r := &own[i].Rate
		if r.Burst > 0 {
			r.Burst = part(r.Burst)
		}
		r.Count = part(r.Count)
		for round := int64(10); r.Check() != nil && round <= r.Count; round *= 10 {
			r.Count -= r.Count % round // so that it has a factor in common with the period, and is counted exactly
		}
	}
	return []driver.LimitCall{own}
}

// Open is [New] with the system of a URL, such as redis://127.0.0.1:6379, postgres://127.0.0.1/shop or
// memory://name. In a database it creates the [Table] of the default name unless it exists. The program
// must import the driver of the URL's scheme (see lock.Open). ctx bounds the call only. [Limits.Close]
// disconnects.
func Open(ctx context.Context, url string, o *Options) (*Limits, error) {
	b, store, err := open(ctx, url)
	var l *Limits
	if err == nil {
		l, err = New(store, o)
	}
	if err != nil {
		_ = b.Close(context.WithoutCancel(ctx)) // the first error says more
		return nil, err
	}
	l.backend = b
	return l, nil
}

func open(ctx context.Context, url string) (*backend.Backend, driver.Limiter, error) {
	u, err := backend.Parse(url)
	if err != nil {
		return nil, nil, err
	}
	if u.Has(backend.Tables) {
		b, db, err := backend.OpenSQL(ctx, url, Table{})
		if err != nil {
			return nil, nil, err
		}
		return b, FromTable(db, Table{Prefix: u.Setting("prefix")}), nil
	}
	b, err := u.Open(ctx)
	if err != nil {
		return nil, nil, err
	}
	store, ok := b.Limiter("")
	if !ok {
		err = &backend.URLError{Reason: b.URL().Kind() + " keeps no rate limits; use a redis://, postgres:// or mysql:// URL"}
	}
	return b, store, err
}

// ParseRate parses a GCRA rate of the form COUNT/PERIOD, such as "100/s", "5/1m30s" or "1000/24h". The
// period is a unit or a duration of [time.ParseDuration]. You may set the burst and the algorithm, on which
// the greatest count depends.
func ParseRate(text string) (Rate, error) {
	count, period, ok := strings.Cut(text, "/")
	n, err := strconv.ParseInt(count, 10, 64)
	if !ok || err != nil {
		return Rate{}, fmt.Errorf("%q is not a rate: use COUNT/PERIOD, such as 100/s or 5/90s", text)
	}
	d, err := time.ParseDuration(period)
	if err != nil {
		if d, err = time.ParseDuration("1" + period); err != nil {
			return Rate{}, fmt.Errorf("%q is not a rate: the period must be a unit (s, m, h) or a duration, such as 90s", text)
		}
	}
	r := Rate{Count: n, Period: d}
	least := r
	least.Burst = 1
	return r, least.Check()
}
