package kube

import (
	"context"
	"errors"

	"k8s.io/client-go/rest"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Advisory keeps locks without tokens in Leases, by the protocol of [Driver], on
// any version of Kubernetes. It and a [Driver] exclude each other. It implements
// driver.Advisory, driver.Inspector, driver.Watcher and driver.Breaker.
type Advisory struct{ d *Driver }

var (
	_ driver.Advisory  = (*Advisory)(nil)
	_ driver.Inspector = (*Advisory)(nil)
	_ driver.Watcher   = (*Advisory)(nil)
	_ driver.Breaker   = (*Advisory)(nil)
)

// OpenAdvisory is [Open] for locks without tokens: it accepts servers before
// Kubernetes 1.35, checks no clock and no base of tokens, and writes none. It
// blocks for one request. Options.Seed must be zero.
func OpenAdvisory(ctx context.Context, config *rest.Config, options *Options) (*Advisory, error) {
	if options != nil && options.Seed != (driver.Seed{}) {
		return nil, refused("open", "", errors.New("an advisory driver has no tokens that Options.Seed could start"))
	}
	d, err := open(ctx, config, options, true)
	if err != nil {
		return nil, err
	}
	return &Advisory{d}, nil
}

// Guarantees returns the guarantees of the driver.
func (a *Advisory) Guarantees() interlock.Guarantees { return a.d.Guarantees() }

// Acquire implements driver.Advisory; see [Driver.Acquire].
func (a *Advisory) Acquire(ctx context.Context, r driver.Request) (driver.Lease, error) {
	grant, err := a.d.Acquire(ctx, r)
	return grant.Lease, err
}

// Release implements driver.Advisory; see [Driver.Release].
func (a *Advisory) Release(ctx context.Context, name, owner string) error {
	return a.d.Release(ctx, name, owner)
}

// Close is [Driver.Close].
func (a *Advisory) Close(ctx context.Context) error { return a.d.Close(ctx) }

// Lock implements driver.Inspector; see [Driver.Lock].
func (a *Advisory) Lock(ctx context.Context, name string) (driver.LockState, error) {
	return a.d.Lock(ctx, name)
}

// Locks implements driver.Inspector; see [Driver.Locks].
func (a *Advisory) Locks(ctx context.Context, prefix string, limit int) ([]driver.LockState, bool, error) {
	return a.d.Locks(ctx, prefix, limit)
}

// Watch implements driver.Watcher; see [Driver.Watch].
func (a *Advisory) Watch(ctx context.Context, prefix string, changed func(name string)) error {
	return a.d.Watch(ctx, prefix, changed)
}

// Break implements driver.Breaker; see [Driver.Break].
func (a *Advisory) Break(ctx context.Context, b driver.Break) (driver.BreakRecord, bool, error) {
	return a.d.Break(ctx, b)
}

// Breaks implements driver.Breaker; see [Driver.Breaks].
func (a *Advisory) Breaks(ctx context.Context, name string, limit int) ([]driver.BreakRecord, error) {
	return a.d.Breaks(ctx, name, limit)
}

// Object is [Driver.Object].
func (a *Advisory) Object(name string) (namespace, object string, err error) {
	return a.d.Object(name)
}
