package memory

import (
	"context"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Plain is one process of a [Space] that acquires locks without tokens. It is a
// driver.Advisory.
type Plain struct{ d *Driver }

// Guarantees returns those of [Driver], without a token.
func (p *Plain) Guarantees() interlock.Guarantees {
	g := p.d.Guarantees()
	g.Class, g.TokenFrom, g.TokensSurvive = interlock.Advisory, "", 0
	return g
}

// Acquire waits until r.Owner holds r.Name.
func (p *Plain) Acquire(ctx context.Context, r driver.Request) (driver.Lease, error) {
	g, err := p.d.Acquire(ctx, r)
	return g.Lease, err
}

// Release ends the grant or the wait of owner on name.
func (p *Plain) Release(ctx context.Context, name, owner string) error {
	return p.d.Release(ctx, name, owner)
}

// Close stops renewals. Held locks expire.
func (p *Plain) Close(ctx context.Context) error { return p.d.Close(ctx) }
