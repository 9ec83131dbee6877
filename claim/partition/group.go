package partition

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/internal/join"
	"github.com/interlock-dev/interlock/internal/report"
	"github.com/interlock-dev/interlock/observe"
)

// A Group is this process's membership of a group. It is safe for concurrent use.
type Group struct {
	view    *Map
	self    Member
	locks   *lock.Fenced
	backend *backend.Backend // nil if the driver is the caller's
	options Options
	reports report.Queue // of all hooks but Refused

	ctx     context.Context // ends when the member leaves
	cancel  context.CancelCauseFunc
	workers sync.WaitGroup
	goodbye sync.Once
	gone    chan struct{} // closed when all goroutines of the group have ended

	mu         sync.Mutex
	leaving    bool
	partitions map[int]*partition // wanted, owned or draining, in any layout
	finishing  bool               // a goroutine finishes a change of the layout
}

// Open calls [Join] with the locks and values of the backend at a URL, such as
// redis://127.0.0.1:6379: see lock.Open. [Group.Leave] disconnects. MariaDB and Kubernetes
// store no values; for them the error is Definite.
func Open(ctx context.Context, url, group string, l Layout, o *Options) (*Group, error) {
	b, err := backend.Open(ctx, url)
	if err != nil {
		return nil, err
	}
	values, err := b.Values(ctx, "")
	var d driver.Fenced
	if err == nil {
		d, err = b.Fenced(ctx, backend.LockOptions{})
	}
	if err != nil {
		return nil, errors.Join(err, b.Close(context.WithoutCancel(ctx)))
	}
	return joinOn(ctx, d, values, group, l, o, b)
}

// Join makes this process a member of a group with layout l. All members must use the same
// layout; [Group.Resize] changes it later. Join blocks until the other members can see this
// one, or ctx ends. The member receives partitions afterwards, in the background. The group
// does not own d: leave the group first, then close d.
//
// If the group has another layout, Join returns a [*LayoutError]. If d cannot list and watch
// locks, it returns an [*interlock.UnmetError]. Other errors are those of the service.
func Join(ctx context.Context, d driver.Fenced, values driver.Values, group string, l Layout, o *Options) (*Group, error) {
	return joinOn(ctx, d, values, group, l, o, nil)
}

// joinOn is Join. If it fails, it closes b.
func joinOn(ctx context.Context, d driver.Fenced, values driver.Values, group string, l Layout, o *Options, b *backend.Backend) (*Group, error) {
	g, err := newGroup(d, values, group, l, o)
	if err != nil && b != nil {
		err = errors.Join(err, b.Close(context.WithoutCancel(ctx)))
	}
	if err != nil {
		return nil, err
	}
	g.backend = b
	if err := g.join(ctx, l); err != nil {
		_ = g.Leave(ctx) // if ctx has ended, it continues in the background
		return nil, err
	}
	return g, nil
}

// newGroup returns a group that is not joined.
func newGroup(d driver.Fenced, values driver.Values, group string, l Layout, o *Options) (*Group, error) {
	options, err := o.resolve()
	if err != nil {
		return nil, err
	}
	if err := l.Validate(); err != nil {
		return nil, err
	}
	locks, err := locksOf(d, options)
	if err != nil {
		return nil, err
	}
	g := &Group{self: Member{options.Identity, options.Address}, locks: locks, options: options,
		partitions: make(map[int]*partition), gone: make(chan struct{})}
	g.ctx, g.cancel = context.WithCancelCause(context.Background())
	if g.view, err = follow(d, values, group, listener{g.reconcile, g.failed}); err != nil {
		g.cancel(err)
		return nil, err
	}
	return g, nil
}

// join stores the layout if the group has none, and acquires the member's lock.
func (g *Group) join(ctx context.Context, l Layout) error {
	if err := g.settle(ctx, l); err != nil {
		return err
	}
	claim, err := g.locks.Acquire(ctx, g.view.names.member(g.self))
	if err != nil {
		return err
	}
	g.workers.Go(func() { g.belong(claim) })
	g.view.hints.Miss()
	return g.view.until(ctx, func(p picture) bool { return slices.Contains(p.members, g.self) })
}

// belong keeps the member's lock, which shows the member to the others.
func (g *Group) belong(claim *lock.Claim) {
	for failures := 0; ; {
		if claim != nil {
			failures = 0
			select {
			case <-claim.Context().Done():
			case <-g.ctx.Done():
				_ = claim.Release(context.WithoutCancel(g.ctx)) // it expires otherwise
				return
			}
			_ = claim.Release(context.WithoutCancel(g.ctx))
		}
		var err error
		if claim, err = g.locks.Acquire(g.ctx, g.view.names.member(g.self)); err != nil {
			g.failed(err)
			failures++
			if !retries.Wait(g.ctx, failures) {
				return
			}
		}
	}
}

// failed reports a failure that concerns no single partition.
func (g *Group) failed(err error) {
	if g.ctx.Err() == nil {
		report.Add(&g.reports, nil, g.options.Hooks.Failed, observe.PartitionFailed{Partition: -1, Err: err})
	}
}

// reconcile starts the partitions that the plan assigns to this member, and drains those that
// it takes away. One goroutine calls it with each picture. It performs no I/O.
func (g *Group) reconcile(p picture) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.leaving || !p.stored {
		return
	}
	wanted := g.wanted(p)
	for i, mine := range g.partitions {
		if !wanted[i] || mine.generation != p.record.Generation {
			mine.stop()
		}
	}
	for i := range wanted {
		if g.partitions[i] == nil {
			g.start(p.record.Generation, i)
		}
	}
	if p.record.Next != nil && !g.finishing {
		g.finishing = true
		g.workers.Go(g.finish)
	}
}

// wanted returns the partitions that this member should own. It returns none while the layout
// changes, or while the other members cannot see this one.
func (g *Group) wanted(p picture) map[int]bool {
	if p.record.Next != nil || !slices.Contains(p.members, g.self) {
		return nil
	}
	members := make([]string, len(p.members))
	for i, m := range p.members {
		members[i] = m.Identity
	}
	members = slices.Compact(members)
	wanted := make(map[int]bool)
	for i, m := range planWith(p.record.Layout.Count(), members, identities(p.owners), identities(p.yields)) {
		if m == g.self.Identity {
			wanted[i] = true
		}
	}
	return wanted
}

// identities returns the members at locations.
func identities(locations map[int]Location) map[int]string {
	all := make(map[int]string, len(locations))
	for i, at := range locations {
		all[i] = at.Identity
	}
	return all
}

// start begins to run a partition. The caller holds mu.
func (g *Group) start(generation int64, i int) {
	p := &partition{group: g, generation: generation, index: i}
	p.wanted, p.unwant = context.WithCancelCause(g.ctx)
	g.partitions[i] = p
	g.workers.Go(func() {
		p.run()
		g.mu.Lock()
		delete(g.partitions, i)
		g.mu.Unlock()
		g.view.hints.Add(g.view.names.partition(generation, i)) // the plan may want it again
	})
}

// Owned returns the partitions that this member owns now.
func (g *Group) Owned() []int { return g.those((*partition).isOpen) }

// those returns the partitions with a condition, in order.
func (g *Group) those(condition func(*partition) bool) (all []int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, p := range g.partitions {
		if condition(p) {
			all = append(all, i)
		}
	}
	slices.Sort(all)
	return all
}

// Map returns this member's view of the group. [Group.Leave] closes it; the caller must not.
func (g *Group) Map() *Map { return g.view }

// Self returns this member.
func (g *Group) Self() Member { return g.self }

// Do runs fn under the claim of key's partition if this member owns it, and returns fn's error.
// The partition does not move before fn has returned; fn's context ends with ctx or with the
// claim. If this member does not own key, Do returns a [*NotOwnerError] at once without running
// fn, and reports it to Hooks.Refused.
func (g *Group) Do(ctx context.Context, key string, fn func(ctx context.Context, c interlock.Claim) error) error {
	return g.DoUnder(ctx, 0, key, fn)
}

// DoUnder is [Group.Do] for a request that was routed by a [Location]. If this member does not
// own key under exactly that epoch, the route is stale and DoUnder returns a [*NotOwnerError].
// Epoch 0 accepts any.
func (g *Group) DoUnder(ctx context.Context, epoch interlock.Token, key string, fn func(ctx context.Context, c interlock.Claim) error) error {
	p := g.enter(key, epoch)
	if p == nil {
		err := &NotOwnerError{Key: key, At: g.view.Locate(key)}
		report.Now(g.options.Hooks.Refused, observe.PartitionRefused{Key: key, Partition: err.At.Partition, Epoch: err.At.Epoch, Owner: err.At.Identity})
		return err
	}
	defer p.leave()
	inside, stop := join.Context(ctx, p.claim.Context())
	defer stop()
	return p.orLost(fn(inside, p.claim))
}

// Claim returns the claim of key's partition if this member owns it. Unlike with [Group.Do],
// the partition may move at any time.
func (g *Group) Claim(key string) (interlock.Claim, bool) {
	p := g.enter(key, 0)
	if p == nil {
		return nil, false
	}
	defer p.leave()
	return p.claim, true
}

// enter finds key's partition and counts a caller in. This member must own the partition by the
// layout in force, and under epoch unless that is 0.
func (g *Group) enter(key string, epoch interlock.Token) *partition {
	at := g.view.Locate(key)
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.partitions[at.Partition]
	if p == nil || !p.enter() {
		return nil
	}
	stale := epoch != 0 && epoch != p.claim.Token()
	unseen := p.layout.Of(key) != p.index // it is owned by a layout that we have yet to see
	if stale || unseen {
		p.exit()
		return nil
	}
	return p
}

// Leave drains and releases the partitions of this member, and ends its membership. It first
// informs the other members, so that they can take over. It blocks until all work has returned
// or ctx ends. If ctx ends first, running work continues under its claim, which is released
// when the work has returned. The caller may call Leave again to wait for that.
func (g *Group) Leave(ctx context.Context) error {
	g.goodbye.Do(g.leave)
	select {
	case <-g.gone:
		return nil
	case <-ctx.Done():
	}
	return &interlock.Error{Op: "leave group", Name: g.view.names.group, Kind: interlock.Retryable,
		Err: fmt.Errorf("%w; work is still running in partitions %v", context.Cause(ctx), g.those(func(p *partition) bool { return p.inside > 0 }))}
}

// leave starts the end of the membership and completes it in the background, because user code
// may take any time.
func (g *Group) leave() {
	g.mu.Lock()
	g.leaving = true
	for _, p := range g.partitions {
		p.stop()
	}
	g.mu.Unlock()
	g.cancel(interlock.ErrClosed)
	go func() { // ends when the work does
		g.workers.Wait()
		g.view.Close()
		_ = g.locks.Close(context.Background()) // releases are bounded
		_ = g.backend.Close(context.Background())
		_ = g.reports.Wait(context.Background())
		close(g.gone)
	}()
}
