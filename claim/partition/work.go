package partition

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/join"
	"github.com/interlock-dev/interlock/internal/report"
	"github.com/interlock-dev/interlock/observe"
)

// Work is a function that runs while this member owns a partition; see Options.Work.
type Work func(ctx context.Context, p Partition) error

// A Partition is a partition that this member owns.
type Partition struct {
	Index  int
	Layout Layout
	// Claim is the claim of the partition; its token is the partition's epoch. It has two more
	// methods, with which Work passes the partition to another member. Package txn/coordinator
	// calls them (its Yielder):
	//
	//   - Contended reports whether the group has another member.
	//   - Yield(ctx) returns once the others can see that the partition is to move. The context
	//     of Work then ends with [ErrDraining].
	//
	// Members own a yielded partition in turn. Each keeps it until it yields it, or for ten
	// minutes. If no member acquires a yielded partition, this member acquires it again.
	Claim interlock.Claim
}

// partition is a partition that this member should own, from the plan's decision to the
// release. Its states follow each other:
//
//	waiting   for its lock
//	owned     accepts callers
//	draining  accepts no more callers and waits for those inside
type partition struct {
	group      *Group
	generation int64
	index      int
	wanted     context.Context // ends when the plan takes it away
	unwant     context.CancelCauseFunc

	// Guarded by group.mu.
	layout  Layout
	claim   *lock.Claim // set while it is owned or draining
	closed  bool        // no caller can enter
	inside  int
	drained chan struct{} // closed when closed and no caller is inside
}

// stop asks it to end; it does not block.
func (p *partition) stop() { p.unwant(ErrDraining) }

// run owns the partition while the plan assigns it to this member.
func (p *partition) run() {
	defer p.unwant(nil)
	for failures := 0; p.wanted.Err() == nil; {
		err := p.own()
		if err == nil {
			failures = 0
			continue
		}
		failures++
		if p.wanted.Err() == nil {
			report.Add(&p.group.reports, nil, p.group.options.Hooks.Failed, observe.PartitionFailed{Partition: p.index, Err: err})
			retries.Wait(p.wanted, failures)
		}
	}
}

// own holds the partition once: from waiting for its lock to the release.
func (p *partition) own() error {
	g := p.group
	claim, err := g.locks.Acquire(p.wanted, g.view.names.partition(p.generation, p.index))
	if err != nil {
		return err
	}
	layout, err := p.confirm()
	if err != nil {
		return errors.Join(err, claim.Release(context.WithoutCancel(g.ctx)))
	}
	since := boottime.Now()
	err = p.open(claim, layout)
	ending := boottime.Now()
	p.drain(ending)
	over := boottime.Now()
	release := claim.Release(context.WithoutCancel(g.ctx))
	report.Add(&g.reports, nil, g.options.Hooks.Released, observe.PartitionReleased{Partition: p.index, Epoch: claim.Token(),
		Owned: over.Sub(since), Drained: over.Sub(ending), Cause: cmp.Or(context.Cause(p.wanted), err), Err: release})
	return err
}

// confirm reads the layout after the lock was granted. A change of the layout is announced
// before it acquires the locks of the old one. So the change waits for this owner, or this
// owner sees the announcement here.
func (p *partition) confirm() (Layout, error) {
	r, stored, err := p.group.view.read(p.wanted)
	switch {
	case err != nil:
		return Layout{}, err
	case !stored || r.Generation != p.generation || r.Next != nil:
		p.stop()
		p.group.view.hints.Miss()
		return Layout{}, ErrDraining
	}
	return r.Layout, nil
}

// open accepts callers and runs the user's work until the partition must be released: the plan
// moves it, its claim ended, or the work failed.
func (p *partition) open(claim *lock.Claim, layout Layout) error {
	ctx, cancel := context.WithCancelCause(claim.Context())
	stop := context.AfterFunc(p.wanted, func() { cancel(ErrDraining) })
	defer stop()
	defer cancel(ErrDraining) // the work has been cancelled, or failed
	p.opened(claim, layout)
	failed := make(chan error, 1)
	if f := p.group.options.Work; f != nil {
		p.group.workers.Go(func() {
			err := failure.ErrNoReturn
			defer func() {
				p.leave()
				if err != nil && ctx.Err() == nil {
					failed <- err
				}
			}()
			err = f(ctx, Partition{Index: p.index, Layout: layout, Claim: offered{claim, p}})
		})
	}
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

// opened starts to accept callers, of which the user's work is one.
func (p *partition) opened(claim *lock.Claim, layout Layout) {
	g := p.group
	g.mu.Lock()
	p.claim, p.layout = claim, layout
	p.closed, p.drained = false, make(chan struct{})
	if g.options.Work != nil {
		p.inside++
	}
	g.mu.Unlock()
	g.view.hints.Add(claim.Name()) // the others' pictures get an event from the service; ours at once
	report.Add(&g.reports, nil, g.options.Hooks.Acquired, observe.PartitionAcquired{Partition: p.index, Epoch: claim.Token()})
}

// drain blocks until no caller is inside. It reports the wait every TTL.
func (p *partition) drain(since boottime.Instant) {
	drained, g := p.stopAccepting(), p.group
	ticker := time.NewTicker(patience(g.view.d.Guarantees()))
	defer ticker.Stop()
	for {
		select {
		case <-drained:
			return
		case <-ticker.C:
		}
		g.mu.Lock()
		inside := p.inside
		g.mu.Unlock()
		report.Add(&g.reports, nil, g.options.Hooks.Draining, observe.PartitionDraining{Partition: p.index,
			Epoch: p.claim.Token(), Inside: inside, For: boottime.Now().Sub(since)})
	}
}

// stopAccepting stops accepting callers; the returned channel is closed when all have left.
func (p *partition) stopAccepting() <-chan struct{} {
	p.group.mu.Lock()
	defer p.group.mu.Unlock()
	p.closed = true
	if p.inside == 0 {
		close(p.drained)
	}
	return p.drained
}

// isOpen reports whether it accepts callers. The caller holds group.mu.
func (p *partition) isOpen() bool {
	return p.claim != nil && !p.closed && p.wanted.Err() == nil && p.claim.Valid()
}

// enter counts a caller in if the partition is open. The caller holds group.mu.
func (p *partition) enter() bool {
	if !p.isOpen() {
		return false
	}
	p.inside++
	return true
}

// exit counts a caller out. The caller holds group.mu.
func (p *partition) exit() {
	p.inside--
	if p.closed && p.inside == 0 {
		close(p.drained)
	}
}

func (p *partition) leave() {
	p.group.mu.Lock()
	defer p.group.mu.Unlock()
	p.exit()
}

// orLost adds to err, the result of the work, that the claim ended early.
func (p *partition) orLost(err error) error {
	if p.claim.Valid() {
		return err
	}
	cause := context.Cause(p.claim.Context())
	if cause == nil {
		cause = interlock.ErrExpired // the claim has not noticed yet
	}
	return errors.Join(err, &interlock.Error{Op: "own partition until the work was done", Name: p.claim.Name(),
		Kind: interlock.Uncertain, Err: cause})
}

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
