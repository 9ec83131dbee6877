package partition

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/internal/join"
)

// A member yields a partition by a lock with its own name and the partition's: then the plan of
// all members assigns the partition to the others. Of several such locks the latest counts.

// longestYield is the maximum time for which a member stays away from a yielded partition.
const longestYield = 10 * time.Minute

// offered is the claim of a partition that can be passed to another member.
type offered struct {
	*lock.Claim
	partition *partition
}

// Contended reports whether the group has another member.
func (o offered) Contended() bool {
	g := o.partition.group
	for _, m := range g.view.Members() {
		if m.Identity != g.self.Identity {
			return true
		}
	}
	return false
}

// Yield asks the group to move the partition to another member; see Partition.
func (o offered) Yield(ctx context.Context) error {
	p, g := o.partition, o.partition.group
	name := g.view.names.yield(p.generation, p.index, g.self.Identity)
	claim, err := g.locks.Acquire(ctx, name)
	if err != nil {
		return err
	}
	g.workers.Go(func() {
		p.backOff(claim)
		_ = claim.Release(context.WithoutCancel(g.ctx)) // it expires otherwise
		g.view.hints.Add(name)
	})
	g.view.hints.Add(name)
	return nil
}

// backOff returns when the yield ends: no member has acquired the partition, another member has
// yielded it since, this member owns it again, or longestYield has passed.
func (p *partition) backOff(claim *lock.Claim) {
	g := p.group
	ctx, stop := join.Context(g.ctx, claim.Context())
	defer stop()
	taken := func(now picture) bool {
		at, owned := now.owners[p.index]
		return owned && at.Identity != g.self.Identity
	}
	over := func(now picture) bool {
		return now.record.Generation != p.generation || now.record.Next != nil ||
			now.yields[p.index].Identity != g.self.Identity || now.owners[p.index].Identity == g.self.Identity
	}
	if g.view.within(ctx, 2*patience(g.view.d.Guarantees()), taken) {
		g.view.within(ctx, longestYield, over)
	}
}

// within reports whether a picture satisfies done before longest has passed.
func (m *Map) within(ctx context.Context, longest time.Duration, done func(picture) bool) bool {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	return m.until(ctx, done) == nil
}
