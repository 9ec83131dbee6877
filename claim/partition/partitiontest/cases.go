package partitiontest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/partition"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/observe"
)

func testOneOwner(s *scene) {
	a, b, c := s.join("a", partition.Options{}), s.join("b", partition.Options{}), s.join("c", partition.Options{})
	s.settled(a, b, c)
	members := []*member{a, b, c}
	for i := range keys {
		// On a busy machine a lease may expire, and its partition moves again.
		s.eventually(key(i)+" has one owner", func() bool {
			owners := 0
			for _, m := range members {
				if s.touch(m, key(i)) {
					owners++
				}
			}
			return owners == 1
		})
	}
	s.eventually("everybody knows where everything is", func() bool {
		for i := range keys {
			at := a.Map().Locate(key(i))
			if at.Epoch == 0 || at.Address != at.Identity+":80" || b.Map().Locate(key(i)) != at || c.Map().Locate(key(i)) != at {
				return false
			}
		}
		return true
	})
	s.ledger.judge(s.T)
}

// testPlannedMoves lets members join and leave under load. No key has two workers at
// once, the minimum of partitions moves, and a key has no owner for a short time only.
func testPlannedMoves(s *scene) {
	a := s.join("a", partition.Options{})
	s.settled(a)
	var mu sync.Mutex
	members := []*member{a}
	stop := s.load(func() []*member {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(members)
	})
	b := s.join("b", partition.Options{})
	mu.Lock()
	members = append(members, b)
	mu.Unlock()
	s.settled(a, b)
	kept := b.Owned()

	c := s.join("c", partition.Options{})
	mu.Lock()
	members = append(members, c)
	mu.Unlock()
	s.settled(a, b, c)
	for _, p := range b.Owned() {
		if !slices.Contains(kept, p) {
			s.Errorf("partition %d moved between members that were there before", p)
		}
	}
	gap := s.gap(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := c.Leave(ctx); err != nil {
			s.Errorf("c leaves: %v", err)
		}
	}, c, a, b)
	s.settled(a, b)
	stop()
	s.ledger.judge(s.T)
	s.Logf("a key of a member that leaves has no owner for %v at most", gap)
	if s.Move > 0 && gap > s.Move {
		s.Errorf("a planned move took %v, more than %v", gap, s.Move)
	}
}

// gap measures, for each partition of from, the time between the last call that from accepted
// and the first that one of the others accepted. It returns the median.
func (s *scene) gap(leave func(), from *member, others ...*member) time.Duration {
	var gaps []time.Duration
	var mu sync.Mutex
	var watchers, ready sync.WaitGroup
	for _, p := range from.Owned() {
		k := keyOf(from, p)
		ready.Add(1)
		watchers.Go(func() {
			last := time.Now()
			ready.Done()
			for deadline := last.Add(patience); time.Now().Before(deadline); {
				if _, ok := from.Claim(k); ok {
					last = time.Now()
					time.Sleep(100 * time.Microsecond)
					continue
				}
				for _, m := range others {
					if _, ok := m.Claim(k); ok {
						mu.Lock()
						gaps = append(gaps, time.Since(last))
						mu.Unlock()
						return
					}
				}
				time.Sleep(100 * time.Microsecond)
			}
			s.Errorf("nobody took over partition %d", p)
		})
	}
	ready.Wait()
	leave()
	watchers.Wait()
	slices.Sort(gaps)
	if len(gaps) == 0 {
		return 0
	}
	return gaps[len(gaps)/2]
}

// keyOf returns a key of a partition.
func keyOf(m *member, p int) string {
	for i := 0; ; i++ {
		if m.Map().Layout().Of(key(i)) == p {
			return key(i)
		}
	}
}

func testCrashedOwner(s *scene) {
	a, b := s.join("a", partition.Options{}), s.join("b", partition.Options{})
	s.settled(a, b)
	began := time.Now()
	s.Crash(s.T, a.d)
	s.settled(b)
	if took := time.Since(began); s.Move > 0 && took > 3*s.TTL+5*time.Second {
		s.Errorf("taking over took %v at a TTL of %v", took, s.TTL)
	}
	for i := range keys {
		if !s.touch(b, key(i)) {
			s.Errorf("%s is not owned by who is left", key(i))
		}
	}
	s.ledger.judge(s.T)
}

// testFormerOwner: an owner is paused during its work, which ignores its context, and
// continues after another has entered.
func testFormerOwner(s *scene) {
	a, b := s.join("a", partition.Options{}), s.join("b", partition.Options{})
	s.settled(a, b)
	k := keyOf(a, a.Owned()[0])
	release, done := s.occupy(a, k, func(ctx context.Context, c interlock.Claim) error {
		return s.Enter(context.WithoutCancel(ctx), k, c.Token(), c.Owner())
	})
	s.Crash(s.T, a.d)
	s.eventually("the other has entered", func() bool { return s.touch(b, k) })
	release()
	var stale *interlock.StaleTokenError
	if err := s.result(done); !errors.As(err, &stale) {
		s.Errorf("the former owner's write: %v", err)
	}
	if _, ok := a.Claim(k); ok {
		s.Error("the former owner still believes to own it")
	}
}

// testResize changes the number of partitions under load, up and down.
func testResize(s *scene) {
	a, b := s.join("a", partition.Options{}), s.join("b", partition.Options{})
	s.settled(a, b)
	members := []*member{a, b}
	stop := s.load(func() []*member { return members })
	for _, to := range []partition.Layout{{Partitions: 17}, {Splits: []string{"order/2", "order/4"}}, {Partitions: 5}} {
		ctx, cancel := context.WithTimeout(s.Context(), patience)
		if err := a.Resize(ctx, to); err != nil {
			s.Errorf("resize to %v: %v", to, err)
		}
		cancel()
		s.eventually("both know the new layout", func() bool { return a.Map().Layout().Equal(to) && b.Map().Layout().Equal(to) })
		s.settled(a, b)
		before := s.ledger.count(key(7))
		s.eventually("work goes on", func() bool { return s.ledger.count(key(7)) > before })
	}
	stop()
	s.ledger.judge(s.T)
}

// testAbandonedResize: the member that requested a change leaves after it was announced.
func testAbandonedResize(s *scene) {
	a, b := s.join("a", partition.Options{}), s.join("b", partition.Options{})
	s.settled(a, b)
	release, _ := s.occupy(b, keyOf(b, b.Owned()[0]), func(context.Context, interlock.Claim) error { return nil }) // so that the change cannot complete yet
	c := s.join("c", partition.Options{})
	to := partition.Layout{Partitions: 3}
	ctx, cancel := context.WithCancel(s.Context())
	asked := make(chan error, 1)
	go func() { asked <- c.Resize(ctx, to) }()
	s.eventually("the change was announced", func() bool { return len(a.Owned()) == 0 })
	cancel()
	if err := s.result(asked); err == nil {
		s.Error("the change was carried out although a partition was not free")
	}
	s.Crash(s.T, c.d)
	release()
	s.eventually("the others finish it", func() bool { return a.Map().Layout().Equal(to) && b.Map().Layout().Equal(to) })
	s.settled(a, b)
}

// testDrainWaits: a partition does not move while its work runs, and accepts no more
// callers.
func testDrainWaits(s *scene) {
	released := make(chan observe.PartitionReleased, partitions)
	goOn := make(chan struct{})
	linger := func(ctx context.Context, _ partition.Partition) error {
		<-ctx.Done()
		<-goOn
		return nil
	}
	a := s.join("a", partition.Options{Hooks: drained(released), Work: linger})
	s.settled(a)
	var keysInside []string
	var inside, work sync.WaitGroup
	for p := range partitions {
		k := keyOf(a, p)
		keysInside = append(keysInside, k)
		inside.Add(1)
		work.Go(func() {
			entered := sync.OnceFunc(inside.Done)
			defer entered() // even if no member accepts it
			err := a.Do(s.Context(), k, func(ctx context.Context, c interlock.Claim) error {
				entered()
				<-goOn
				if !c.Valid() || ctx.Err() != nil {
					s.Errorf("the claim on %s ended under its work", k)
				}
				return nil
			})
			if err != nil {
				s.Error(err)
			}
		})
	}
	inside.Wait()
	b := s.join("b", partition.Options{})
	s.eventually("half of it lets nobody in", func() bool {
		closed := 0
		for _, k := range keysInside {
			if _, ok := a.Claim(k); !ok {
				closed++
			}
		}
		return closed == partitions/2
	})
	if n := len(b.Owned()); n != 0 || len(released) != 0 {
		s.Errorf("%d partitions moved under work, %d were released", n, len(released))
	}
	close(goOn)
	work.Wait()
	s.settled(a, b)
	if e := <-released; !errors.Is(e.Cause, partition.ErrDraining) || e.Err != nil || e.Epoch == 0 {
		s.Errorf("received %+v", e)
	}
}

func testLayoutsDiffer(s *scene) {
	s.join("a", partition.Options{})
	d, values := s.Open(s.T)
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	_, err := partition.Join(ctx, d, values, group, partition.Layout{Partitions: partitions + 1}, nil)
	if differs, found := errors.AsType[*partition.LayoutError](err); !found || differs.Stored.Count() != partitions {
		s.Errorf("joined with another layout: %v", err)
	}
}

// testWork: the work of a partition runs at its owner, never twice at once, and again
// after a failure or the end of its goroutine.
func testWork(s *scene) {
	var mu sync.Mutex
	running, failed := map[int]int{}, map[int]bool{}
	work := func(ctx context.Context, p partition.Partition) error {
		mu.Lock()
		running[p.Index]++
		if running[p.Index] > 1 {
			s.Errorf("partition %d is worked on twice", p.Index)
		}
		first := !failed[p.Index]
		failed[p.Index] = true
		mu.Unlock()
		defer func() {
			mu.Lock()
			defer mu.Unlock()
			running[p.Index]--
		}()
		switch {
		case first && p.Index%2 == 0:
			runtime.Goexit()
		case first:
			return errors.New("the first time it fails")
		}
		<-ctx.Done()
		return nil
	}
	a := s.join("a", partition.Options{Work: work})
	all := func() bool {
		mu.Lock()
		defer mu.Unlock()
		n := 0
		for _, r := range running {
			n += r
		}
		return n == partitions
	}
	s.eventually("all of it is worked on", all)
	b := s.join("b", partition.Options{Work: work})
	s.settled(a, b)
	s.eventually("all of it is worked on by two", all)
}

// An Opening opens a lock system like another process; disconnect closes what the
// driver does not own.
type Opening func(t *testing.T) (d driver.Fenced, v driver.Values, disconnect func())

// MoveTimes measures how long a partition has no owner during a planned move. That is from the end
// of its work's context in one member to the begin of its work in another. Half of the partitions
// move at once, back and forth. It logs the result.
func MoveTimes(t *testing.T, open Opening, partitions, rounds int) {
	m := &moves{open: open, group: fmt.Sprint("of ", partitions), partitions: partitions, ended: map[int]time.Time{}}
	stay := m.join(t, "stays")
	for round := range rounds {
		comes := m.join(t, fmt.Sprint("comes ", round))
		comes.settled(t, partitions/2)
		comes.leave(t)
		stay.settled(t, partitions)
	}
	stay.leave(t)
	slices.Sort(m.took)
	at := func(percent int) time.Duration { return m.took[len(m.took)*percent/100].Round(100 * time.Microsecond) }
	t.Logf("%d moves: median %v, p99 %v", len(m.took), at(50), at(99))
}

// moves is a group whose members join and leave.
type moves struct {
	open       Opening
	group      string
	partitions int

	mu    sync.Mutex
	ended map[int]time.Time // when the work of the last owner was cancelled
	took  []time.Duration
}

type joined struct {
	*partition.Group
	driver     driver.Fenced
	disconnect func()
}

func (m *moves) join(t *testing.T, identity string) joined {
	t.Helper()
	d, v, disconnect := m.open(t)
	g, err := partition.Join(t.Context(), d, v, m.group, partition.Layout{Partitions: m.partitions}, &partition.Options{Identity: identity, Work: m.work})
	if err != nil {
		t.Fatal(err)
	}
	return joined{g, d, disconnect}
}

func (m *moves) work(ctx context.Context, p partition.Partition) error {
	m.mu.Lock()
	if ended, moved := m.ended[p.Index]; moved {
		m.took = append(m.took, time.Since(ended))
	}
	m.mu.Unlock()
	<-ctx.Done()
	m.mu.Lock()
	m.ended[p.Index] = time.Now()
	m.mu.Unlock()
	return nil
}

func (g joined) settled(t *testing.T, owned int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); len(g.Owned()) != owned; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s owns %d partitions, and not %d", g.Self().Identity, len(g.Owned()), owned)
		}
	}
}

func (g joined) leave(t *testing.T) {
	t.Helper()
	if err := g.Leave(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
	if err := g.driver.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
	g.disconnect()
}
