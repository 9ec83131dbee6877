package own

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
)

// retries is how long to wait before the next attempt when the service failed.
var retries = backoff.Policy{First: 100 * time.Millisecond, Max: 2 * time.Second}

// maxLocks is how many locks of a group are looked at: partitions and members.
const maxLocks = 2 * MaxPartitions

// A picture is a group as the service showed it at one time.
type picture struct {
	record  record
	stored  bool // the group has a layout
	members []Member
	owners  map[int]Location // of the record's generation
}

// locate is where a key is, by this picture.
func (p picture) locate(key string) Location {
	i := p.record.Layout.Of(key)
	if at, ok := p.owners[i]; ok {
		return at
	}
	return Location{Partition: i}
}

// A Map is a picture of a group that is kept up to date: what a router needs
// that owns nothing itself. It is safe for concurrent use.
type Map struct {
	d      service
	values driver.Values
	names  names
	fresh  func(picture) // told of each picture, from one goroutine; may be nil

	cancel context.CancelCauseFunc
	done   sync.WaitGroup
	poke   chan struct{} // capacity 1: look again

	mu      sync.Mutex
	now     picture
	changed chan struct{} // closed when now is replaced
	soon    time.Duration // after which something may expire
	failed  error         // why the last look failed
}

// Follow keeps a map of a group until it is closed. It blocks until it has seen
// the group once or ctx ends; a group that nobody has joined yet is waited for.
func Follow(ctx context.Context, d driver.Fenced, values driver.Values, group string) (*Map, error) {
	m, err := follow(d, values, group, nil)
	if err != nil {
		return nil, err
	}
	if err := m.until(ctx, func(p picture) bool { return p.stored }); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

func follow(d driver.Fenced, values driver.Values, group string, fresh func(picture)) (*Map, error) {
	s, err := needs(d)
	if err != nil {
		return nil, err
	}
	n, err := newNames(group)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	m := &Map{d: s, values: values, names: n, fresh: fresh, cancel: cancel,
		poke: make(chan struct{}, 1), changed: make(chan struct{})}
	m.done.Go(func() { m.run(ctx) })
	m.done.Go(func() {
		m.keep(ctx, func() error { return s.Watch(ctx, n.all(), func(string) { m.look() }) })
	})
	m.done.Go(func() {
		m.keep(ctx, func() error { return values.Watch(ctx, n.layout(), func(driver.Value) { m.look() }) })
	})
	return m, nil
}

// Locate says where a key is, as far as is known here. It does not block.
func (m *Map) Locate(key string) Location {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now.locate(key)
}

// Layout is the group's layout, as far as is known here.
func (m *Map) Layout() Layout {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now.record.Layout
}

// Members are those that take part, by identity.
func (m *Map) Members() []Member {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.now.members)
}

// Await blocks until some member other than the one that owned it under epoch
// `after` owns key's partition, or ctx ends. After 0 any owner will do.
func (m *Map) Await(ctx context.Context, key string, after interlock.Token) (Location, error) {
	var at Location
	err := m.until(ctx, func(p picture) bool {
		at = p.locate(key)
		return at.Epoch > after
	})
	return at, err
}

// Close ends it and waits for its goroutines.
func (m *Map) Close() {
	m.cancel(interlock.ErrClosed)
	m.done.Wait()
}

// until waits for a picture.
func (m *Map) until(ctx context.Context, is func(picture) bool) error {
	for {
		m.mu.Lock()
		now, changed, failed := m.now, m.changed, m.failed
		m.mu.Unlock()
		if is(now) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			err := context.Cause(ctx)
			if failed != nil {
				err = failed
			}
			return &interlock.Error{Op: "look at group", Driver: m.d.Guarantees().Driver, Name: m.names.group,
				Kind: interlock.Retryable, Err: err}
		}
	}
}

// look makes run look again; it does not block.
func (m *Map) look() {
	select {
	case m.poke <- struct{}{}:
	default: // it is going to
	}
}

// run looks whenever it is told to, when something may have expired, and at
// least every third of the TTL.
func (m *Map) run(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; {
		p, soon, err := m.ask(ctx)
		if err == nil {
			failures = 0
			m.publish(p, soon)
		} else {
			failures++
			m.fail(err)
			soon = retries.Delay(failures, rand.Float64())
		}
		m.wait(ctx, soon)
	}
}

func (m *Map) wait(ctx context.Context, longest time.Duration) {
	timer := time.NewTimer(longest)
	defer timer.Stop()
	select {
	case <-m.poke:
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (m *Map) publish(p picture, soon time.Duration) {
	m.mu.Lock()
	m.now, m.soon, m.failed = p, soon, nil
	close(m.changed)
	m.changed = make(chan struct{})
	m.mu.Unlock()
	if m.fresh != nil {
		m.fresh(p)
	}
}

func (m *Map) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failed = err
}

// keep repeats a watch that ended, until ctx does.
func (m *Map) keep(ctx context.Context, watch func() error) {
	for failures := 1; ctx.Err() == nil; failures++ {
		_ = watch() // whatever it was, looking by the clock goes on meanwhile
		m.wait(ctx, retries.Delay(failures, rand.Float64()))
	}
}

// ask draws a picture. The layout is read first: owners that are found by a
// newer one are left out, and the next look has both.
func (m *Map) ask(ctx context.Context) (p picture, soon time.Duration, err error) {
	if p.record, p.stored, err = m.read(ctx); err != nil {
		return p, 0, err
	}
	locks, _, err := m.d.Locks(ctx, m.names.all(), maxLocks)
	if err != nil {
		return p, 0, err
	}
	p.owners = make(map[int]Location)
	soon = look(m.d.Guarantees())
	for _, l := range locks {
		if l.Holder == nil {
			continue
		}
		if e := l.Holder.Expires; e > 0 {
			soon = min(soon, e+time.Millisecond)
		}
		m.place(&p, l)
	}
	slices.SortFunc(p.members, func(a, b Member) int { return strings.Compare(a.Identity, b.Identity) })
	for i, at := range p.owners {
		at.Address = p.address(at.Identity)
		p.owners[i] = at
	}
	return p, soon, nil
}

// place puts a held lock into the picture.
func (m *Map) place(p *picture, l driver.LockState) {
	if member, ok := m.names.isMember(l.Name); ok {
		p.members = append(p.members, member)
	}
	if generation, i, ok := m.names.isPartition(l.Name); ok && generation == p.record.Generation {
		p.owners[i] = Location{Partition: i, Epoch: l.Holder.Token, Member: Member{Identity: identityOf(l.Holder.Owner)}}
	}
}

func (p picture) address(identity string) string {
	for _, m := range p.members {
		if m.Identity == identity {
			return m.Address
		}
	}
	return ""
}

// read reads the group's record.
func (m *Map) read(ctx context.Context) (r record, stored bool, err error) {
	v, err := m.values.Get(ctx, m.names.layout())
	if err != nil || v.Token == 0 {
		return r, false, err
	}
	r, err = decode(v.Data)
	if err != nil {
		return r, false, bug("read layout", m.names.group, "it is not one of ours: %w", err)
	}
	return r, true, nil
}
