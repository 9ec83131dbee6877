package partition

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/process"
)

// retries is the delay before the next attempt after the service failed.
var retries = backoff.Policy{First: 100 * time.Millisecond, Max: 2 * time.Second}

// maxLocks is the maximum number of locks of a group that are listed: partitions of two
// generations, and members.
const maxLocks = 4 * MaxPartitions

// few is the maximum number of hinted partitions that are read one by one. If there are more,
// the whole group is read.
const few = 16

// pace is the delay between two reads, so that hints in quick succession are handled together.
const pace = 5 * time.Millisecond

// A picture is the state of a group as the service showed it at one time.
type picture struct {
	record  record
	stored  bool // the group has a layout
	members []Member
	owners  map[int]Location // of the record's generation; empty while it changes
	yields  map[int]Location // the last member that yielded a partition, of the record's generation
	due     boottime.Instant // when to look at everything again, with any events
}

// locate returns where a key is in this picture.
func (p picture) locate(key string) Location {
	i := p.record.Layout.Of(key)
	if at, ok := p.owners[i]; ok {
		return at
	}
	return Location{Partition: i}
}

// A Map is a view of a group that is kept up to date. A router that owns nothing uses it. It is
// safe for concurrent use.
type Map struct {
	d      driver.Fenced
	locks  lock.View // of d
	values driver.Values
	names  names
	tell   listener

	ctx    context.Context // ends at Close
	cancel context.CancelCauseFunc
	done   sync.WaitGroup
	hints  *driver.Mailbox // names that may have changed

	mu      sync.Mutex
	now     picture
	changed chan struct{} // closed when now is replaced
	failed  error         // why the last look failed
}

// listener receives the events of a Map, from its goroutines.
type listener struct {
	fresh  func(picture) // each picture, from one goroutine
	failed func(error)   // reading the group failed
}

// Follow returns a map of a group, which stays up to date until it is closed. It blocks until
// it has read the group once or ctx ends. If the group has no member yet, it waits for the
// first one.
func Follow(ctx context.Context, d driver.Fenced, values driver.Values, group string) (*Map, error) {
	m, err := follow(d, values, group, listener{func(picture) {}, func(error) {}})
	if err != nil {
		return nil, err
	}
	if err := m.until(ctx, func(p picture) bool { return p.stored }); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

func follow(d driver.Fenced, values driver.Values, group string, tell listener) (*Map, error) {
	view, err := lock.ViewOf(d)
	if err != nil {
		return nil, err
	}
	n, err := newNames(group)
	if err != nil {
		return nil, err
	}
	m := &Map{d: d, locks: view, values: values, names: n, tell: tell,
		hints: driver.NewMailbox("", few), changed: make(chan struct{})}
	m.ctx, m.cancel = context.WithCancelCause(context.Background())
	m.done.Go(m.run)
	m.done.Go(func() {
		m.keep(func() error { return view.Watch(m.ctx, n.all(), m.hints.Add) })
	})
	m.done.Go(func() {
		m.keep(func() error { return values.Watch(m.ctx, n.layout(), func(driver.Value) { m.hints.Miss() }) })
	})
	return m, nil
}

// Locate returns the owner of key's partition, as far as this map knows. It does not block.
func (m *Map) Locate(key string) Location {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now.locate(key)
}

// Layout returns the group's layout, as far as this map knows.
func (m *Map) Layout() Layout {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now.record.Layout
}

// Members returns the members of the group, ordered by identity.
func (m *Map) Members() []Member {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.now.members)
}

// Await blocks until a member owns key's partition under an epoch higher than `after`, or ctx
// ends, or m is closed. With 0 it accepts any owner. The new owner may still refuse calls for a
// moment: it has the lock, and accepts callers one round trip later.
func (m *Map) Await(ctx context.Context, key string, after interlock.Token) (Location, error) {
	var at Location
	err := m.until(ctx, func(p picture) bool {
		at = p.locate(key)
		return at.Epoch > after && p.has(at.Identity)
	})
	return at, err
}

// Close ends the map and blocks until its goroutines have ended.
func (m *Map) Close() {
	m.cancel(interlock.ErrClosed)
	m.done.Wait()
}

// until blocks until a picture satisfies done.
func (m *Map) until(ctx context.Context, done func(picture) bool) error {
	for {
		m.mu.Lock()
		now, changed, failed := m.now, m.changed, m.failed
		m.mu.Unlock()
		if done(now) {
			return nil
		}
		var err error
		kind := interlock.Retryable
		select {
		case <-changed:
			continue
		case <-ctx.Done():
			err = cmp.Or(failed, context.Cause(ctx))
		case <-m.ctx.Done():
			err, kind = context.Cause(m.ctx), interlock.Bug
		}
		return &interlock.Error{Op: "look at group", Driver: m.d.Guarantees().Driver, Name: m.names.group, Kind: kind, Err: err}
	}
}

// run reads what has an event. It reads the whole group when something may have expired, and at
// least every third of the TTL.
func (m *Map) run() {
	var p picture
	for failures := 0; m.ctx.Err() == nil; {
		var err error
		if p, err = m.draw(p); err == nil {
			failures = 0
			m.publish(p)
		} else {
			failures++
			m.fail(err)
			p = picture{due: boottime.Now().Add(retries.Delay(failures, rand.Float64()))}
		}
		backoff.Sleep(m.ctx, pace)
		select {
		case <-m.hints.Woken():
		case <-time.After(p.due.Sub(boottime.Now())):
		case <-m.ctx.Done():
		}
	}
}

func (m *Map) publish(p picture) {
	m.mu.Lock()
	m.now, m.failed = p, nil
	close(m.changed)
	m.changed = make(chan struct{})
	m.mu.Unlock()
	m.tell.fresh(p)
}

func (m *Map) fail(err error) {
	m.mu.Lock()
	m.failed = err
	m.mu.Unlock()
	if m.ctx.Err() == nil {
		m.tell.failed(err)
	}
}

// keep repeats a watch that ended, until m is closed.
func (m *Map) keep(watch func() error) {
	for failures := 1; m.ctx.Err() == nil; failures++ {
		if err := watch(); err != nil && m.ctx.Err() == nil {
			m.tell.failed(err) // polls continue meanwhile
		}
		retries.Wait(m.ctx, failures)
	}
}

// draw returns the picture after last. It reads a few hinted partitions again, or the whole
// group.
func (m *Map) draw(last picture) (picture, error) {
	ctx, cancel := context.WithTimeout(m.ctx, patience(m.d.Guarantees()))
	defer cancel()
	names, missed := m.hints.Take()
	if !last.stored || missed || last.due.Sub(boottime.Now()) <= 0 {
		return m.ask(ctx)
	}
	p := last
	p.owners = maps.Clone(last.owners)
	for _, name := range names {
		_, _, one := m.names.isPartition(name)
		switch {
		case name == m.names.layout(): // only its value matters here, not its lock
			continue
		case !one:
			return m.ask(ctx)
		}
		l, err := m.locks.Lock(ctx, name)
		if err != nil {
			return p, err
		}
		m.place(&p, l)
		if l.Holder != nil && !p.has(process.IdentityOf(l.Holder.Owner)) { // it joined since
			return m.ask(ctx)
		}
	}
	return p, nil
}

// ask returns a picture of the whole group. It reads the layout first and leaves out owners by
// a newer layout; the next read has both.
func (m *Map) ask(ctx context.Context) (p picture, err error) {
	if p.record, p.stored, err = m.read(ctx); err != nil {
		return p, err
	}
	locks, more, err := m.locks.Locks(ctx, m.names.all(), maxLocks)
	if err == nil && more {
		err = fmt.Errorf("the group has more than %d locks", maxLocks)
	}
	if err != nil {
		return p, err
	}
	p.owners, p.yields = make(map[int]Location), make(map[int]Location)
	soon := look(m.d.Guarantees())
	for _, l := range locks {
		if member, ok := m.names.isMember(l.Name); ok && l.Holder != nil {
			p.members = append(p.members, member)
		}
		if l.Holder != nil && l.Holder.Expires > 0 {
			soon = min(soon, l.Holder.Expires+time.Millisecond)
		}
	}
	p.due = boottime.Now().Add(soon)
	slices.SortFunc(p.members, func(a, b Member) int { return strings.Compare(a.Identity, b.Identity) })
	for _, l := range locks {
		m.place(&p, l)
		m.placeYield(&p, l)
	}
	return p, nil
}

// place puts the owner of a partition, or that there is none, into the picture. While the layout
// changes no partition has an owner. The holder of its lock is the member that changes the
// layout, or is about to release it.
func (m *Map) place(p *picture, l driver.LockState) {
	generation, i, ok := m.names.isPartition(l.Name)
	if !ok || generation != p.record.Generation {
		return
	}
	delete(p.owners, i)
	if l.Holder == nil || p.record.Next != nil {
		return
	}
	identity := process.IdentityOf(l.Holder.Owner)
	p.owners[i] = Location{Partition: i, Epoch: l.Holder.Token, Member: Member{identity, p.address(identity)}}
}

// placeYield puts a yield into the picture, unless there is a later one.
func (m *Map) placeYield(p *picture, l driver.LockState) {
	generation, i, identity, ok := m.names.isYield(l.Name)
	if ok && l.Holder != nil && generation == p.record.Generation && l.Holder.Token > p.yields[i].Epoch {
		p.yields[i] = Location{Partition: i, Epoch: l.Holder.Token, Member: Member{Identity: identity}}
	}
}

// has reports whether the picture has a member of this identity.
func (p picture) has(identity string) bool {
	return slices.ContainsFunc(p.members, func(m Member) bool { return m.Identity == identity })
}

func (p picture) address(identity string) string {
	for _, m := range p.members {
		if m.Identity == identity {
			return m.Address
		}
	}
	return ""
}

// read reads the group's record; stored reports whether it has a layout.
func (m *Map) read(ctx context.Context) (r record, stored bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience(m.d.Guarantees()))
	defer cancel()
	v, err := m.values.Get(ctx, m.names.layout())
	if err != nil || v.Token == 0 {
		return r, false, err
	}
	r, err = decode(v.Data)
	if err != nil {
		return r, false, failure.Bug("read layout", m.names.group, "invalid record: %w", err)
	}
	return r, r.Generation > 0, nil
}
