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
	"github.com/interlock-dev/interlock/observe"
)

// A Group is this process's membership. It is safe for concurrent use.
type Group struct {
	view    *Map
	self    Member
	locks   *lock.Fenced
	backend *backend.Backend // nil if the driver is the caller's
	options Options

	ctx     context.Context // ends when the member leaves
	cancel  context.CancelCauseFunc
	workers sync.WaitGroup
	goodbye sync.Once
	gone    chan struct{} // closed when everything of ours has ended

	mu         sync.Mutex
	leaving    bool
	partitions map[int]*partition // wanted, owned or draining, of any layout
	finishing  bool               // a goroutine finishes a change of the layout
}

// Open is [Join] with the locks and the values of the backend that a URL names, as
// redis://127.0.0.1:6379: see lock.Open. [Group.Leave] disconnects. MariaDB and Kubernetes
// keep no values, and are refused as Definite.
func Open(ctx context.Context, url, group string, l Layout, o *Options) (*Group, error) {
	b, err := backend.Open(ctx, url)
	if err != nil {
		return nil, err
	}
	g, err := openOn(ctx, b, group, l, o)
	if err != nil {
		return nil, errors.Join(err, b.Close(context.WithoutCancel(ctx)))
	}
	return g, nil
}

func openOn(ctx context.Context, b *backend.Backend, group string, l Layout, o *Options) (*Group, error) {
	values, err := b.Values(ctx, "")
	if err != nil {
		return nil, err
	}
	d, err := b.Fenced(ctx, backend.LockOptions{})
	if err != nil {
		return nil, err
	}
	return joinOn(ctx, d, values, group, l, o, b)
}

// Join makes this process a member of a group, with a layout that all members
// name alike; [Group.Resize] changes it later. It blocks until the member is
// known to the others or ctx ends; partitions come afterwards, while it runs.
// The group does not own d: leave the group first, then close d.
//
// It fails with a [*LayoutError] if the group has another layout, with an
// [*interlock.UnmetError] if d cannot show and watch locks, and as the service
// does.
func Join(ctx context.Context, d driver.Fenced, values driver.Values, group string, l Layout, o *Options) (*Group, error) {
	return joinOn(ctx, d, values, group, l, o, nil)
}

func joinOn(ctx context.Context, d driver.Fenced, values driver.Values, group string, l Layout, o *Options, b *backend.Backend) (*Group, error) {
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
	g := &Group{self: Member{options.Identity, options.Address}, locks: locks, backend: b, options: options,
		partitions: make(map[int]*partition), gone: make(chan struct{})}
	g.ctx, g.cancel = context.WithCancelCause(context.Background())
	if g.view, err = follow(d, values, group, listener{g.reconcile, g.failed}); err != nil {
		g.cancel(err)
		return nil, err
	}
	if err := g.join(ctx, l); err != nil {
		_ = g.Leave(ctx) // if ctx has ended, it goes on in the background
		return nil, err
	}
	return g, nil
}

// join stores the layout if the group has none, and shows the member.
func (g *Group) join(ctx context.Context, l Layout) error {
	if err := g.settle(ctx, l); err != nil {
		return err
	}
	claim, err := g.locks.Acquire(ctx, g.view.names.member(g.self))
	if err != nil {
		return err
	}
	g.workers.Go(func() { g.belong(claim) })
	g.view.look()
	return g.view.until(ctx, func(p picture) bool { return slices.Contains(p.members, g.self) })
}

// belong keeps the member's lock: what the others know it by.
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

// failed tells of trouble that concerns no single partition.
func (g *Group) failed(err error) {
	if f := g.options.Hooks.Failed; f != nil && g.ctx.Err() == nil {
		f(observe.PartitionFailed{Partition: -1, Err: err})
	}
}

// reconcile starts what the plan gives this member and drains what it takes
// away. It is called with each picture, by one goroutine, and does no I/O.
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

// wanted is what this member should own. While the layout changes that is
// nothing, nor is it while the others do not see us.
func (g *Group) wanted(p picture) map[int]bool {
	if p.record.Next != nil || !slices.Contains(p.members, g.self) {
		return nil
	}
	current := make(map[int]string, len(p.owners))
	for i, at := range p.owners {
		current[i] = at.Identity
	}
	yielded := make(map[int]string, len(p.yields))
	for i, at := range p.yields {
		yielded[i] = at.Identity
	}
	members := make([]string, len(p.members))
	for i, m := range p.members {
		members[i] = m.Identity
	}
	members = slices.Compact(members)
	wanted := make(map[int]bool)
	for i, m := range planWith(p.record.Layout.Count(), members, current, yielded) {
		if m == g.self.Identity {
			wanted[i] = true
		}
	}
	return wanted
}

// start tends a partition, with mu held.
func (g *Group) start(generation int64, i int) {
	p := newPartition(g, generation, i)
	g.partitions[i] = p
	g.workers.Go(func() {
		p.tend()
		g.mu.Lock()
		delete(g.partitions, i)
		g.mu.Unlock()
		g.view.hint(g.view.names.partition(generation, i)) // the plan may want it again
	})
}

// Owned lists the partitions that this member owns now.
func (g *Group) Owned() []int {
	g.mu.Lock()
	defer g.mu.Unlock()
	var owned []int
	for i, p := range g.partitions {
		if p.isOpen() {
			owned = append(owned, i)
		}
	}
	slices.Sort(owned)
	return owned
}

// Map is the picture that this member has of the group. It is closed by
// [Group.Leave], and by nobody else.
func (g *Group) Map() *Map { return g.view }

// Self is this member.
func (g *Group) Self() Member { return g.self }

// Do runs fn if this member owns key, under the claim of key's partition, and
// returns fn's error. The partition does not move before fn has returned; fn's
// context ends with ctx or when the claim does. Otherwise it does not run fn and
// returns a [*NotOwnerError] at once; Hooks.Refused counts those.
func (g *Group) Do(ctx context.Context, key string, fn func(ctx context.Context, c interlock.Claim) error) error {
	return g.DoUnder(ctx, 0, key, fn)
}

// DoUnder is [Group.Do] for what was brought here by a [Location]: it refuses also
// if key is not owned under that very epoch, because the route is stale then. An
// epoch of 0 is any.
func (g *Group) DoUnder(ctx context.Context, epoch interlock.Token, key string, fn func(ctx context.Context, c interlock.Claim) error) error {
	p := g.enter(key, epoch)
	if p == nil {
		err := &NotOwnerError{Key: key, At: g.view.Locate(key)}
		if f := g.options.Hooks.Refused; f != nil {
			f(observe.PartitionRefused{Key: key, Partition: err.At.Partition, Epoch: err.At.Epoch, Owner: err.At.Identity})
		}
		return err
	}
	defer p.leave()
	inside, stop := join.Context(ctx, p.claim.Context())
	defer stop()
	return p.orLost(fn(inside, p.claim))
}

// Claim is the claim of key's partition if this member owns it. Unlike with
// [Group.Do] the partition may move at any time.
func (g *Group) Claim(key string) (interlock.Claim, bool) {
	p := g.enter(key, 0)
	if p == nil {
		return nil, false
	}
	defer p.leave()
	return p.claim, true
}

// enter finds key's partition, if it is owned here by the layout that we know to
// be in force, under an epoch unless that is 0, and counts a caller in.
func (g *Group) enter(key string, epoch interlock.Token) *partition {
	at := g.view.Locate(key)
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.partitions[at.Partition]
	if p == nil || !p.let() {
		return nil
	}
	stale := epoch != 0 && epoch != p.claim.Token()
	unseen := p.layout.Of(key) != p.index // it is owned by a layout that we have yet to see
	if stale || unseen {
		p.out()
		return nil
	}
	return p
}

// Leave drains what this member owns, gives it up, and ends the membership. The
// others are informed first, so that they stand by. It waits until all work has
// returned or ctx ends; what is still running then goes on under its claim, and
// is given up when it has returned. Leave may be called again to wait for that.
func (g *Group) Leave(ctx context.Context) error {
	g.goodbye.Do(g.leave)
	select {
	case <-g.gone:
		return nil
	case <-ctx.Done():
	}
	return &interlock.Error{Op: "leave group", Name: g.view.names.group, Kind: interlock.Retryable,
		Err: fmt.Errorf("%w; work is still running in partitions %v", context.Cause(ctx), g.busy())}
}

// leave begins the end, and sees it through in the background: user code may take
// any time.
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
		close(g.gone)
	}()
}

// busy lists the partitions in which somebody works.
func (g *Group) busy() []int {
	g.mu.Lock()
	defer g.mu.Unlock()
	var busy []int
	for i, p := range g.partitions {
		if p.inside > 0 {
			busy = append(busy, i)
		}
	}
	slices.Sort(busy)
	return busy
}
