package mysql

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// Sweep removes the rows that nobody has used for so long.
func (t *Table) Sweep(ctx context.Context, after time.Duration) error { return t.sweep(ctx, after) }

// Detached tells whether the storage engine has let go of a branch's session.
func (p *Participant) Detached(ctx context.Context, x driver.XID) (detached, known bool) {
	return p.detached(ctx, x)
}

// InPauses has something else happen where the participant waits.
func (p *Participant) InPauses(do func()) {
	p.pause = func(context.Context, time.Duration) { do() }
}
