package partition_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/partition"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
	"github.com/interlock-dev/interlock/observe"
)

// town is a space with members, in virtual time.
type town struct {
	*testing.T
	space *memory.Space
}

func inTown(t *testing.T, test func(*town)) {
	virtual.Test(t, func(t *testing.T) { test(&town{t, memory.NewSpace()}) })
}

// driver returns a driver that is closed with the test.
func (t *town) driver() *memory.Driver {
	d := t.space.Open(nil)
	t.Cleanup(func() { _ = d.Close(context.Background()) })
	return d
}

// join joins with four partitions, over parts with faults.
func (t *town) join(name string, d driver.Fenced, values driver.Values, hooks *observe.Partition) *partition.Group {
	t.Helper()
	g, err := partition.Join(t.Context(), d, values, "g", partition.Layout{Partitions: 4}, &partition.Options{Identity: name, Hooks: hooks})
	testbed.OK(t, err)
	t.Cleanup(func() {
		if err := g.Leave(context.Background()); err != nil {
			t.Error(err)
		}
	})
	synctest.Wait()
	time.Sleep(time.Second)
	return g
}

// unwatched is a store of values that cannot be watched.
type unwatched struct{ *memory.Values }

func (unwatched) Watch(context.Context, string, func(driver.Value)) error {
	return &interlock.Error{Op: "watch", Kind: interlock.Retryable, Err: errors.New("not today")}
}

// TestAWatchThatFailsTakesNoHints: while values cannot be watched, hints of locks still
// work at once, and the failure is reported.
func TestAWatchThatFailsTakesNoHints(t *testing.T) {
	inTown(t, func(t *town) {
		var failed atomic.Int64
		a := t.join("a", t.driver(), unwatched{t.space.Values()}, &observe.Partition{Failed: func(e observe.PartitionFailed) {
			if e.Partition == -1 {
				failed.Add(1)
			}
		}})
		d := t.driver()
		for i := range 20 { // one change at a time
			name, owner := "{g}/member/b/", fmt.Sprint("b/", i)
			_, err := d.Acquire(t.Context(), driver.Request{Name: name, Owner: owner})
			testbed.OK(t, err)
			time.Sleep(50 * time.Millisecond)
			if n := len(a.Map().Members()); n != 2 {
				t.Fatalf("%d members are seen after one joined for the %dth time", n, i)
			}
			testbed.OK(t, d.Release(t.Context(), name, owner))
			time.Sleep(50 * time.Millisecond)
			if n := len(a.Map().Members()); n != 1 {
				t.Fatalf("%d members are seen after one left for the %dth time", n, i)
			}
		}
		if failed.Load() == 0 {
			t.Error("no failure was reported")
		}
	})
}

func TestAMapThatWasClosedIsNotWaitedFor(t *testing.T) {
	inTown(t, func(t *town) {
		t.join("a", t.driver(), t.space.Values(), nil)
		m, err := partition.Follow(t.Context(), t.driver(), t.space.Values(), "g")
		testbed.OK(t, err)
		done := make(chan error, 1)
		go func() {
			_, err := m.Await(t.Context(), "key", 1<<62)
			done <- err
		}()
		synctest.Wait()
		m.Close()
		select {
		case err := <-done:
			if !errors.Is(err, interlock.ErrClosed) || interlock.Kind(err) != interlock.Bug {
				t.Error(err)
			}
		case <-time.After(time.Hour):
			t.Error("it waits for ever")
		}
	})
}

// TestNobodyIsFoundWhileTheLayoutChanges: the member that changes it has the partitions'
// locks, but owns no partition.
func TestNobodyIsFoundWhileTheLayoutChanges(t *testing.T) {
	inTown(t, func(t *town) {
		a := t.join("a", t.driver(), t.space.Values(), nil)
		inside, goOn, resized := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		var last string // a key of the last partition, which is taken last
		for i := 0; a.Map().Layout().Of(last) != 3; i++ {
			last = fmt.Sprint(i)
		}
		go a.Do(t.Context(), last, func(context.Context, interlock.Claim) error { close(inside); <-goOn; return nil })
		<-inside
		go func() { resized <- a.Resize(t.Context(), partition.Layout{Partitions: 2}) }()
		time.Sleep(time.Second)
		for i := range 20 {
			if at := a.Map().Locate(fmt.Sprint(i)); at.Epoch != 0 {
				t.Errorf("%d is found at %+v", i, at)
			}
		}
		close(goOn)
		testbed.OK(t, <-resized)
	})
}

// counted counts the open watches and the reads of the whole group.
type counted struct {
	*memory.Driver
	watches, looks atomic.Int64
}

func (c *counted) Watch(ctx context.Context, prefix string, changed func(string)) error {
	c.watches.Add(1)
	defer c.watches.Add(-1)
	return c.Driver.Watch(ctx, prefix, changed)
}

func (c *counted) Locks(ctx context.Context, prefix string, limit int) ([]driver.LockState, bool, error) {
	c.looks.Add(1)
	return c.Driver.Locks(ctx, prefix, limit)
}

// TestAJoinThatFailedLeavesNothing: its context ends while it waits.
func TestAJoinThatFailedLeavesNothing(t *testing.T) {
	inTown(t, func(t *town) {
		d, first := &counted{Driver: t.driver()}, t.driver()
		_, err := first.Acquire(t.Context(), driver.Request{Name: "{g}/layout", Owner: "somebody/1"})
		testbed.OK(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := partition.Join(ctx, d, t.space.Values(), "g", partition.Layout{Partitions: 4}, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("joined: %v", err)
		}
		time.Sleep(time.Minute)
		if n := d.watches.Load(); n != 0 {
			t.Errorf("%d watches are left", n)
			t.FailNow()
		}
	})
}

// TestALossIsToldToWhoeverWorked: work that continued after the loss of its claim returns
// an error.
func TestALossIsToldToWhoeverWorked(t *testing.T) {
	inTown(t, func(t *town) {
		d := t.driver()
		a := t.join("a", d, t.space.Values(), nil)
		err := a.Do(t.Context(), "key", func(ctx context.Context, c interlock.Claim) error {
			_, _, err := d.Break(ctx, driver.Break{Name: c.Name(), Owner: c.Owner(), Reason: "test", By: "test"})
			if err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			return nil
		})
		if interlock.Kind(err) != interlock.Uncertain || !errors.Is(err, interlock.ErrLost) {
			t.Errorf("got %v", err)
		}
	})
}

// TestHintsAreTakenTogether: many moves do not make every member read the whole group repeatedly.
func TestHintsAreTakenTogether(t *testing.T) {
	inTown(t, func(t *town) {
		const n = 256
		join := func(name string, d driver.Fenced) *partition.Group {
			g, err := partition.Join(t.Context(), d, t.space.Values(), "big", partition.Layout{Partitions: n}, &partition.Options{Identity: name})
			testbed.OK(t, err)
			t.Cleanup(func() { _ = g.Leave(context.Background()) })
			return g
		}
		a, c := join("a", t.driver()), &counted{Driver: t.driver()}
		time.Sleep(time.Second)
		b := join("b", c)
		time.Sleep(time.Second)
		if len(a.Owned()) != n/2 || len(b.Owned()) != n/2 {
			t.Errorf("%d and %d are owned", len(a.Owned()), len(b.Owned()))
		}
		before := c.looks.Load()
		if before > 20 {
			t.Errorf("b looked %d times at everything", before)
		}
		// Each partition changes its owner for a moment.
		for i := range a.Owned() {
			name := fmt.Sprintf("{big}/partition/1/%d", a.Owned()[i%len(a.Owned())])
			l, err := c.Lock(t.Context(), name)
			if err != nil || l.Holder == nil {
				t.Fatal(l, err)
			}
			if _, _, err := c.Break(t.Context(), driver.Break{Name: name, Owner: l.Holder.Owner, Reason: "test", By: "test"}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if looks := c.looks.Load() - before; looks > 5 {
			t.Errorf("b looked %d times at everything while single partitions changed", looks)
		}
		time.Sleep(30 * time.Second)
		for i := range 500 {
			if at := b.Map().Locate(fmt.Sprint(i)); at.Epoch == 0 || at != a.Map().Locate(fmt.Sprint(i)) {
				t.Fatalf("%d is seen at %+v and at %+v", i, at, a.Map().Locate(fmt.Sprint(i)))
			}
		}
	})
}

// slow is a store that delays the writes of a member, which does not notice losses, until
// the test releases them.
type slow struct {
	*memory.Values
	slow  atomic.Bool        // each write of a record waits at gate
	gate  chan chan struct{} // one channel for each waiting write
	story *story
}

// story lists the accepted records, in order.
type story struct {
	mu      sync.Mutex
	records []string
}

func (t *town) slow(s *story, at bool) *slow {
	v := &slow{Values: t.space.Values(), gate: make(chan chan struct{}), story: s}
	v.slow.Store(at)
	return v
}

func (s *slow) Put(ctx context.Context, name string, v driver.Value) error {
	record := strings.Contains(string(v.Data), "generation")
	if record && s.slow.Load() {
		turn := make(chan struct{})
		s.gate <- turn
		<-turn
	}
	s.story.mu.Lock()
	defer s.story.mu.Unlock()
	err := s.Values.Put(context.WithoutCancel(ctx), name, v)
	if err == nil && record {
		s.story.records = append(s.story.records, string(v.Data))
	}
	return err
}

// deaf is a driver that does not report losses to its member.
type deaf struct{ *memory.Driver }

type forever struct{}

func (forever) Remaining() time.Duration { return time.Hour }

func (d deaf) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	r.Events.Lost = nil
	grant, err := d.Driver.Acquire(ctx, r)
	grant.Lease = forever{}
	return grant, err
}

// TestAFormerChangerChangesNothing: a member that lost the lock on the layout without
// noticing continues after its successor has read the layout, and before that writes.
func TestAFormerChangerChangesNothing(t *testing.T) {
	inTown(t, func(t *town) {
		var story story
		d, former, next := t.driver(), t.slow(&story, false), t.slow(&story, false)
		a, b := t.join("a", deaf{d}, former, nil), t.join("b", t.driver(), next, nil)
		former.slow.Store(true)
		next.slow.Store(true)
		done := make(chan error, 2)
		go func() { done <- a.Resize(t.Context(), partition.Layout{Partitions: 2}) }()
		late := <-former.gate // a has read the layout, and is about to announce
		l, err := d.Lock(t.Context(), "{g}/layout")
		testbed.OK(t, err)
		if _, _, err := d.Break(t.Context(), driver.Break{Name: "{g}/layout", Owner: l.Holder.Owner, Reason: "test", By: "test"}); err != nil {
			t.Fatal(err)
		}
		go func() { done <- b.Resize(t.Context(), partition.Layout{Partitions: 3}) }()
		writing := <-next.gate // so has b
		free := func(gate chan chan struct{}) {
			for turn := range gate {
				close(turn)
			}
		}
		go free(former.gate)
		close(late)
		time.Sleep(5 * time.Second) // a continues as far as it can
		go free(next.gate)
		close(writing)
		<-done
		<-done
		time.Sleep(time.Minute)
		former.slow.Store(false)
		next.slow.Store(false)
		synctest.Wait()
		close(former.gate)
		close(next.gate)
		judge(t, story.records)
	})
}

// TestAFormerFounderSettlesNothing: the same for the first layout, with members that
// request different ones.
func TestAFormerFounderSettlesNothing(t *testing.T) {
	inTown(t, func(t *town) {
		var story story
		d, former, next := t.driver(), t.slow(&story, true), t.slow(&story, true)
		found := func(name string, d driver.Fenced, values driver.Values, n int, done chan<- error) {
			g, err := partition.Join(t.Context(), d, values, "g", partition.Layout{Partitions: n}, &partition.Options{Identity: name})
			done <- err
			if err == nil {
				_ = g.Leave(t.Context())
			}
		}
		a, b := make(chan error), make(chan error)
		go found("a", deaf{d}, former, 4, a)
		late := <-former.gate
		l, err := d.Lock(t.Context(), "{g}/layout")
		testbed.OK(t, err)
		if _, _, err := d.Break(t.Context(), driver.Break{Name: "{g}/layout", Owner: l.Holder.Owner, Reason: "test", By: "test"}); err != nil {
			t.Fatal(err)
		}
		go found("b", t.driver(), next, 6, b)
		writing := <-next.gate
		close(late)
		if err := <-a; !errors.Is(err, interlock.ErrStaleToken) {
			t.Errorf("the former founder: %v", err)
		}
		close(writing)
		close(<-next.gate)
		if err := <-b; err != nil {
			t.Errorf("the founder: %v", err)
		}
		time.Sleep(time.Second)
		judge(t, story.records)
	})
}

// judge: generations do not fall, and each has one layout.
func judge(t *town, story []string) {
	type record struct {
		Generation int64
		Layout     partition.Layout
		Next       *partition.Layout
	}
	layouts, last := map[int64]partition.Layout{}, int64(0)
	for _, text := range story {
		var r record
		testbed.OK(t, json.Unmarshal([]byte(text), &r))
		if was, ok := layouts[r.Generation]; ok && !reflect.DeepEqual(was, r.Layout) {
			t.Errorf("generation %d was %v and is %v", r.Generation, was, r.Layout)
		}
		if r.Generation < last {
			t.Errorf("generation %d after %d", r.Generation, last)
		}
		layouts[r.Generation], last = r.Layout, r.Generation
	}
	if t.Failed() {
		t.Log(strings.Join(story, "\n"))
	}
}

// TestAStuckDrainIsTold: work that does not return keeps a partition, and the hook
// reports it.
func TestAStuckDrainIsTold(t *testing.T) {
	inTown(t, func(t *town) {
		told := make(chan observe.PartitionDraining, 100)
		d := t.driver()
		a := t.join("a", d, t.space.Values(), &observe.Partition{Draining: func(e observe.PartitionDraining) { told <- e }})
		goOn, inside := make(chan struct{}), make(chan struct{})
		go a.Do(t.Context(), "key", func(context.Context, interlock.Claim) error { close(inside); <-goOn; return nil })
		<-inside
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
		defer cancel()
		err := a.Leave(ctx)
		stuck := a.Map().Layout().Of("key")
		if interlock.Kind(err) != interlock.Retryable || !strings.Contains(err.Error(), fmt.Sprintf("partitions [%d]", stuck)) {
			t.Errorf("leaving: %v", err)
		}
		if n := len(told); n != 3 {
			t.Fatalf("told %d times in three TTLs", n)
		}
		if e := <-told; e.Partition != stuck || e.Inside != 1 || e.Epoch == 0 || e.For != 30*time.Second {
			t.Errorf("received %+v", e)
		}
		close(goOn)
		testbed.OK(t, a.Leave(t.Context()))
		l, err := d.Lock(t.Context(), fmt.Sprintf("{g}/partition/1/%d", stuck))
		if err != nil || l.Holder != nil {
			t.Errorf("it is still held: %+v, %v", l.Holder, err)
		}
	})
}

// TestABlockedHookKeepsNoPartition: while a hook blocks, a member still sees the group, drains its
// partitions, and acquires them again.
func TestABlockedHookKeepsNoPartition(t *testing.T) {
	for name, hooks := range map[string]func(block func()) *observe.Partition{
		"Acquired": func(block func()) *observe.Partition {
			return &observe.Partition{Acquired: func(observe.PartitionAcquired) { block() }}
		},
		"Draining": func(block func()) *observe.Partition {
			return &observe.Partition{Draining: func(observe.PartitionDraining) { block() }}
		},
		"Released": func(block func()) *observe.Partition {
			return &observe.Partition{Released: func(observe.PartitionReleased) { block() }}
		},
		"Failed": func(block func()) *observe.Partition {
			return &observe.Partition{Failed: func(observe.PartitionFailed) { block() }}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inTown(t, func(t *town) {
				blocked := make(chan struct{})
				values := &mute{Values: t.space.Values()}
				a := t.join("a", t.driver(), values, hooks(func() { <-blocked }))
				t.Cleanup(func() { close(blocked) })
				values.hushed.Store(true)
				time.Sleep(2 * time.Minute) // it fails to read the group
				values.hushed.Store(false)
				for i := range 20 {
					go a.Do(t.Context(), fmt.Sprint(i), func(context.Context, interlock.Claim) error {
						time.Sleep(time.Minute) // longer than the TTL
						return nil
					})
				}
				b := t.join("b", t.driver(), t.space.Values(), nil)
				time.Sleep(2 * time.Minute)
				if a, b := len(a.Owned()), len(b.Owned()); a != 2 || b != 2 {
					t.Fatalf("a owns %d, b owns %d", a, b)
				}
				testbed.OK(t, b.Leave(t.Context()))
				time.Sleep(2 * time.Minute)
				if n := len(a.Owned()); n != 4 {
					t.Errorf("a owns %d after b has left", n)
				}
			})
		})
	}
}

// TestDrainingIsMeasured: the reported time is that of the work, including Options.Work,
// without the release.
func TestDrainingIsMeasured(t *testing.T) {
	inTown(t, func(t *town) {
		released := make(chan observe.PartitionReleased, 10)
		g, err := partition.Join(t.Context(), t.driver(), t.space.Values(), "g", partition.Layout{Partitions: 1}, &partition.Options{
			Work: func(ctx context.Context, _ partition.Partition) error {
				<-ctx.Done()
				time.Sleep(7 * time.Second)
				return nil
			},
			Hooks: &observe.Partition{Released: func(e observe.PartitionReleased) { released <- e }}})
		testbed.OK(t, err)
		time.Sleep(time.Second)
		testbed.OK(t, g.Leave(t.Context()))
		if e := <-released; e.Drained != 7*time.Second {
			t.Errorf("drained for %v", e.Drained)
		}
	})
}

// TestFailedWorkIsNoLoss: a partition that is released because its work failed is not reported as lost.
func TestFailedWorkIsNoLoss(t *testing.T) {
	inTown(t, func(t *town) {
		boom, released := errors.New("boom"), make(chan observe.PartitionReleased, 10)
		g, err := partition.Join(t.Context(), t.driver(), t.space.Values(), "g", partition.Layout{Partitions: 1}, &partition.Options{
			Work:  func(context.Context, partition.Partition) error { return boom },
			Hooks: &observe.Partition{Log: observe.Silent, Released: func(e observe.PartitionReleased) { released <- e }}})
		testbed.OK(t, err)
		e := <-released
		testbed.OK(t, g.Leave(t.Context()))
		if !errors.Is(e.Cause, boom) {
			t.Errorf("released because of %v", e.Cause)
		}
	})
}

// mute is a store of values that does not answer while hushed is set.
type mute struct {
	*memory.Values
	hushed atomic.Bool
}

func (m *mute) Get(ctx context.Context, name string) (driver.Value, error) {
	if m.hushed.Load() {
		<-ctx.Done()
		return driver.Value{}, context.Cause(ctx)
	}
	return m.Values.Get(ctx, name)
}

// TestSilentValuesAreTold: a member that has locks and cannot read the layout owns
// nothing, bounds its wait for the answer, and reports the failure.
func TestSilentValuesAreTold(t *testing.T) {
	inTown(t, func(t *town) {
		a := t.join("a", t.driver(), t.space.Values(), nil)
		goOn, failed := make(chan struct{}), make(chan int, 1000)
		var work sync.WaitGroup
		for i := range 20 {
			work.Go(func() {
				_ = a.Do(t.Context(), fmt.Sprint(i), func(context.Context, interlock.Claim) error { <-goOn; return nil })
			})
		}
		synctest.Wait() // a has work in each partition, so that b has to wait for its half
		values := &mute{Values: t.space.Values()}
		b := t.join("b", t.driver(), values, &observe.Partition{Failed: func(e observe.PartitionFailed) { failed <- e.Partition }})
		values.hushed.Store(true) // it queues for its half
		close(goOn)
		work.Wait()
		time.Sleep(2 * time.Minute)
		if owned := b.Owned(); len(owned) > 0 {
			t.Errorf("it owns %v", owned)
		}
		told := map[int]bool{}
		for range len(failed) {
			told[<-failed] = true
		}
		if len(told) != 3 || !told[-1] {
			t.Errorf("received %v", told)
		}
		values.hushed.Store(false)
		time.Sleep(2 * time.Minute)
		if n := len(b.Owned()); n != 2 {
			t.Errorf("it owns %d when it is over", n)
		}
	})
}

// deafToMembers is a driver whose hints at members' locks are lost.
type deafToMembers struct{ *memory.Driver }

func (d deafToMembers) Watch(ctx context.Context, prefix string, changed func(string)) error {
	return d.Driver.Watch(ctx, prefix, func(name string) {
		if !strings.Contains(name, "/member/") {
			changed(name)
		}
	})
}

// TestAnOwnerIsKnownWithItsAddress: a partition's lock is seen before the lock of its new
// owner.
func TestAnOwnerIsKnownWithItsAddress(t *testing.T) {
	inTown(t, func(t *town) {
		d := t.driver()
		a, err := partition.Join(t.Context(), d, t.space.Values(), "g", partition.Layout{Partitions: 4}, nil)
		testbed.OK(t, err)
		testbed.OK(t, a.Leave(t.Context()))
		m, err := partition.Follow(t.Context(), deafToMembers{t.driver()}, t.space.Values(), "g")
		testbed.OK(t, err)
		defer m.Close()
		time.Sleep(100 * time.Millisecond) // it has read the group, and has no hints
		for _, name := range []string{"{g}/member/b/b%3A80", fmt.Sprint("{g}/partition/1/", m.Layout().Of("key"))} {
			_, err := d.Acquire(t.Context(), driver.Request{Name: name, Owner: "b/1"})
			testbed.OK(t, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // the next read of the whole group is later
		defer cancel()
		if at, err := m.Await(ctx, "key", 0); err != nil || at.Address != "b:80" {
			t.Errorf("%+v, %v", at, err)
		}
	})
}

// TestAPauseEndsWithTheLayout: a partition whose work fails pauses. It does not delay its successor in another layout.
func TestAPauseEndsWithTheLayout(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		space, failed := memory.NewSpace(), make(chan struct{}, 100)
		d := space.Open(nil)
		defer d.Close(context.Background())
		g, err := partition.Join(t.Context(), d, space.Values(), "g", partition.Layout{Partitions: 1}, &partition.Options{
			Work: func(ctx context.Context, p partition.Partition) error {
				if p.Layout.Partitions == 1 {
					return errors.New("no")
				}
				<-ctx.Done()
				return nil
			},
			Hooks: &observe.Partition{Failed: func(observe.PartitionFailed) { failed <- struct{}{} }},
		})
		testbed.OK(t, err)
		defer g.Leave(context.Background())
		for range 8 { // afterwards it pauses for a quarter of a second or more
			<-failed
		}
		began := time.Now()
		testbed.OK(t, g.Resize(t.Context(), partition.Layout{Partitions: 2}))
		for len(g.Owned()) < 2 {
			time.Sleep(time.Millisecond)
		}
		if took := time.Since(began); took > 200*time.Millisecond {
			t.Errorf("it took %v", took)
		}
	})
}
