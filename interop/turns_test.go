package interop

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// turns counts the turns of several contenders, of which one may hold at a time.
type turns struct {
	testing.TB
	holding, total atomic.Int32
}

// take is one turn of a holder.
func (n *turns) take() {
	if holders := n.holding.Add(1); holders != 1 {
		n.Errorf("%d holders at the same time", holders)
	}
	time.Sleep(2 * time.Millisecond) // long enough to observe an overlap
	n.total.Add(1)
	n.holding.Add(-1)
}

// ours takes turns with our driver, under rising tokens.
func (n *turns) ours(ctx context.Context, d driver.Fenced, lock, who string, rounds int) {
	var last interlock.Token
	for i := range rounds {
		owner := fmt.Sprint(who, " ", i)
		g, err := d.Acquire(ctx, driver.Request{Name: lock, Owner: owner})
		if err != nil || g.Token <= last {
			n.Errorf("token %d after %d, %v", g.Token, last, err)
			return
		}
		last = g.Token
		n.take()
		if err := d.Release(ctx, lock, owner); err != nil {
			n.Error(err)
		}
	}
}
