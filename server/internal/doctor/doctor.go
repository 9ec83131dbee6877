// Package doctor finds faults that weaken the guarantees of a lock service. It checks only what
// the server reports: "ok" is not a proof. It only reads: it takes no lock, creates no table and
// changes no setting. In ZooKeeper it opens a session; in Redis it opens the driver, which loads
// scripts and subscribes.
//
//	report, err := doctor.Examine(ctx, "redis://127.0.0.1:6379", doctor.Options{})
//	if report.Status >= doctor.Warning { … }
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock/driver"
	opener "github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/server/internal/backend"
)

// Severity of a finding, in rising order.
type Severity int

const (
	// OK needs no action.
	OK Severity = iota
	// Info is useful to know, or could not be read.
	Info
	// Warning weakens a guarantee under some fault.
	Warning
	// Critical breaks a guarantee without a fault, or prevents locks.
	Critical
)

// String returns the severity in lower case.
func (s Severity) String() string { return [...]string{"ok", "info", "warning", "critical"}[s] }

// MarshalText returns the string, for JSON.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// A Finding is the result of one check.
type Finding struct {
	ID       string   `json:"id"` // stable, such as redis.durability
	Severity Severity `json:"severity"`
	Seen     string   `json:"seen"` // the server's report, or a measurement
	Why      string   `json:"why"`  // the effect on locks
	Do       string   `json:"do"`   // the fix; empty if it is ok
}

// Report has the findings in the order of the checks.
type Report struct {
	Backend  string    `json:"backend"` // without secrets
	Kind     string    `json:"kind"`
	Status   Severity  `json:"status"` // of the worst finding
	Findings []Finding `json:"findings"`
}

// DefaultTTL is the default TTL of every driver.
const DefaultTTL = 30 * time.Second

// Options configures an examination; the zero value works.
type Options struct {
	TTL   time.Duration // of the locks; 0 means the setting of the URL or, without one, [DefaultTTL]
	Watch time.Duration // time to measure pauses and latency; 0 means a few requests
	// Prefix is the prefix of keys in etcd, Redis and Consul; empty means the setting of the URL.
	Prefix string
}

// probe examines one kind of backend.
type probe interface {
	// inspect adds findings. An error means that no finding is possible.
	inspect(ctx context.Context, r *Report) error
	// ping sends the smallest request.
	ping(ctx context.Context) error
	close()
}

// errNotServing is the result of ping if inspect found that a majority is missing.
var errNotServing = errors.New("no majority serves requests")

// kinds has the functions that connect, by kind of backend.
var kinds = map[string]func(context.Context, *opener.URL, Options) (probe, error){
	"redis": dialRedis, "etcd": dialEtcd, "postgres": dialPostgres, "mysql": dialMySQL, "zookeeper": dialZooKeeper, "kube": dialKube, "consul": dialConsul,
}

// account returns the user and the password of a URL; empty if there is none.
func account(u *opener.URL) (user, password string) {
	if u.User() == nil {
		return "", ""
	}
	password, _ = u.User().Password()
	return u.User().Username(), password
}

// namespace returns the first part of table names.
func namespace(u *opener.URL) string { return cmp.Or(u.Setting("namespace"), "interlock") }

// Examine connects to the backend of a URL and examines it. It blocks for a few requests, and for
// o.Watch. An error means that the examination failed, such as a [*backend.URLError] or no answer
// from the server.
func Examine(ctx context.Context, url string, o Options) (Report, error) {
	target, err := backend.Parse(url)
	if err != nil {
		return Report{}, err
	}
	inURL, _ := time.ParseDuration(target.Setting("ttl")) // Parse has validated it
	o.TTL, o.Prefix = cmp.Or(o.TTL, inURL, DefaultTTL), cmp.Or(o.Prefix, target.Setting("prefix"))
	if err := target.CheckTTL(o.TTL); err != nil {
		return Report{}, err
	}
	r := Report{Backend: target.Public(), Kind: target.Kind()}
	dial := kinds[target.Kind()]
	if dial == nil {
		return r, fmt.Errorf("no checks exist for %s", target.Kind())
	}
	p, err := dial(ctx, target.URL, o)
	if err != nil {
		return r, err
	}
	defer p.close()
	err = r.examine(ctx, p, o)
	return r, err
}

// examine adds the findings of a probe and of a measurement. A server that stops answering while it
// is measured is a finding too.
func (r *Report) examine(ctx context.Context, p probe, o Options) error {
	if err := p.inspect(ctx, r); err != nil {
		return err
	}
	m, err := measure(ctx, p.ping, o.Watch)
	switch {
	case errors.Is(err, errNotServing):
		return nil // the findings tell why
	case errors.Is(context.Cause(ctx), context.Canceled):
		return err
	case err != nil:
		r.add("answers", Critical, "after %v, %d requests were answered, and the next one failed: %v", round(m.watched), m.requests, err)
	}
	if m.requests > 0 {
		r.judge(m, o)
	}
	return nil
}

// add appends a finding, with the texts for its id.
func (r *Report) add(id string, s Severity, format string, args ...any) {
	f := Finding{ID: id, Severity: s, Seen: fmt.Sprintf(format, args...), Why: texts[id].why}
	if s != OK {
		f.Do = texts[id].do
	}
	r.Findings = append(r.Findings, f)
	r.Status = max(r.Status, s)
}

// addIf adds a finding, of severity OK unless bad.
func (r *Report) addIf(bad bool, id string, s Severity, format string, args ...any) {
	if !bad {
		s = OK
	}
	r.add(id, s, format, args...)
}

// tokens compares the highest counter of a namespace with the server's clock, as a driver does
// when it opens. An error means that it cannot be read.
func (r *Report) tokens(id string, counter int64, err error, now time.Time) {
	switch implausible := driver.Plausible(counter, now); {
	case errors.As(err, new(*baseError)):
		r.add(id, Critical, "%v", err)
	case err != nil:
		r.add(id, Info, "the base of tokens cannot be read: %v", err)
	case implausible != nil:
		r.add(id, Critical, "%v", implausible)
	default:
		r.add(id, OK, "they start at the clock")
	}
}
