package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/elect"
	"github.com/interlock-dev/interlock/claim/elect/schedule"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestNoTickTwiceWhileLeadersDieAndPause kills and pauses processes at any point, and checks the
// whole history.
func TestNoTickTwiceWhileLeadersDieAndPause(t *testing.T) {
	seeds := uint64(12)
	if testing.Short() {
		seeds = 3
	}
	for _, missed := range []schedule.Missed{schedule.Skip, schedule.RunLate, schedule.Report} {
		for seed := range seeds {
			t.Run(fmt.Sprintf("%d/%d", missed, seed), func(t *testing.T) {
				inBubble(t, func(b *bench) {
					w := &world{bench: b, missed: missed, ticks: map[time.Time]*fate{}, random: rand.New(rand.NewPCG(seed, 1))}
					w.live(100 * ttl)
					w.judge()
				})
			})
		}
	}
}

// world is a space with processes that start and die.
type world struct {
	*bench
	missed schedule.Missed

	mu     sync.Mutex
	random *rand.Rand
	ticks  map[time.Time]*fate
	last   time.Time // the last tick whose write was accepted
}

// fate is the outcome of a tick.
type fate struct {
	begun, accepted, reported int
	handled                   time.Time // when it was first accepted or reported
}

func (w *world) up(to time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Duration(w.random.Int64N(int64(to)))
}

func (w *world) fate(at time.Time, do func(*fate)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ticks[at] == nil {
		w.ticks[at] = &fate{}
	}
	do(w.ticks[at])
}

// live runs three processes for a time, with a fault every few leases.
func (w *world) live(length time.Duration) {
	members := make([]*member, 3)
	for i := range members {
		members[i] = w.member()
	}
	for end := time.Now().Add(length); time.Now().Before(end); {
		time.Sleep(4*ttl + w.up(2*time.Second))
		i := w.leader(members)
		if i < 0 {
			w.Errorf("at %v nobody leads", time.Since(begin))
			continue
		}
		if m := members[i]; w.up(2) == 0 {
			m.kill()
			members[i] = w.member()
		} else {
			m.pause(ttl + w.up(ttl))
		}
	}
	time.Sleep(3 * ttl)
	for _, m := range members {
		m.stop()
	}
}

func (w *world) leader(members []*member) int {
	for i, m := range members {
		if m.leads.Load() {
			return i
		}
	}
	return -1
}

// member is one process.
type member struct {
	*world
	driver   *memory.Driver
	election *elect.Election
	cancel   context.CancelFunc
	done     chan struct{}
	leads    atomic.Bool
	dead     atomic.Bool
	running  sync.RWMutex // held for writing while it is paused
}

func (w *world) member() *member {
	m := &member{world: w, driver: w.space.Open(&memory.Options{TTL: ttl}), done: make(chan struct{})}
	var err error
	m.election, err = elect.New(m.driver, &elect.Options{InProcess: true, Values: slow{w.space.Values(), m}, Hooks: &elect.Hooks{
		Elected: func(elect.Elected) { m.leads.Store(true) },
		Ended:   func(elect.Ended) { m.leads.Store(false) },
	}})
	testbed.OK(w, err)
	s, err := schedule.New(m.election, &schedule.Options{Times: schedule.Every(time.Second), Missed: w.missed, Report: m.report})
	testbed.OK(w, err)
	ctx, cancel := context.WithCancel(w.Context())
	m.cancel = cancel
	go func() {
		defer close(m.done)
		if err := s.Run(ctx, name, m.job); ctx.Err() == nil {
			w.Errorf("Run returned %v", err)
		}
	}()
	return m
}

// kill ends a process: none of its requests takes effect any more, and its locks are
// not released.
func (m *member) kill() {
	m.dead.Store(true)
	m.leads.Store(false)
	_ = m.driver.Close(context.Background())
	m.stop()
}

func (m *member) stop() {
	m.cancel()
	<-m.done
	_ = m.election.Close(context.Background())
	_ = m.driver.Close(context.Background())
}

// pause stops a process for longer than its lease. Afterwards it continues with its
// next action.
func (m *member) pause(length time.Duration) {
	m.running.Lock()
	m.space.Revoke(name)
	m.leads.Store(false)
	time.Sleep(length)
	m.running.Unlock()
	synctest.Wait()
}

// reach runs before every effect on the outside: time passes, and the process may be
// paused or dead.
func (m *member) reach() error {
	time.Sleep(m.up(20 * time.Millisecond))
	for !m.running.TryRLock() {
		time.Sleep(10 * time.Millisecond) // a mutex would stop virtual time
	}
	m.running.RUnlock()
	if m.dead.Load() {
		return &interlock.Error{Op: "reach", Kind: interlock.Uncertain, Err: errors.New("the process is dead")}
	}
	return nil
}

// slow are values with delayed requests and answers, some of which are lost.
type slow struct {
	driver.Values
	m *member
}

func (s slow) Put(_ context.Context, name string, v driver.Value) error {
	if err := s.m.reach(); err != nil {
		return err
	}
	if err := s.Values.Put(context.Background(), name, v); err != nil {
		return err
	}
	if s.m.up(20) == 0 {
		return &interlock.Error{Op: "put", Kind: interlock.Uncertain, Err: errors.New("the answer was lost")}
	}
	return s.m.reach()
}

func (m *member) report(_ context.Context, t schedule.Tick) {
	if m.reach() == nil {
		m.fate(t.At, func(f *fate) { f.reported++; f.handle() })
	}
}

// job does the work of a tick: it enters the guard, reads the result of an earlier
// run, and writes. It ignores the end of its context.
func (m *member) job(_ context.Context, t schedule.Tick) error {
	if !t.Begun {
		m.fate(t.At, func(f *fate) { f.begun++ })
	}
	fence, raise := m.space.Fence(), driver.Raise{Resource: name, Token: t.Term.Token()}
	if err := m.reach(); err != nil {
		return err
	}
	if err := fence.Enter(context.Background(), raise); err != nil {
		return err
	}
	key := t.At.String()
	if _, done := fence.Get(key); done {
		return nil
	}
	if err := m.reach(); err != nil {
		return err
	}
	if err := fence.Enter(context.Background(), raise, driver.Write{Key: key}); err != nil {
		return err
	}
	m.fate(t.At, func(f *fate) {
		f.accepted++
		f.handle()
		if !t.At.After(m.last) {
			m.Errorf("%v was accepted after %v", t.At, m.last)
		}
		m.last = t.At
	})
	return m.reach()
}

func (f *fate) handle() {
	if f.handled.IsZero() {
		f.handled = time.Now()
	}
}

// judge checks every tick.
func (w *world) judge() {
	complete, given := 0, 0
	for at := begin.Add(time.Second); !at.After(w.last); at = at.Add(time.Second) {
		f := w.ticks[at]
		if f == nil {
			f = &fate{}
		}
		if f.accepted > 1 || f.begun > 1 {
			w.Errorf("%v was begun %d times, and accepted %d times", at, f.begun, f.accepted)
		}
		if w.missed == schedule.RunLate && f.accepted != 1 || w.missed == schedule.Report && f.accepted+f.reported == 0 {
			w.Errorf("%v was lost: %+v", at, *f)
		}
		if !f.handled.IsZero() && f.handled.Sub(at) > 3*ttl {
			w.Errorf("%v was handled after %v", at, f.handled.Sub(at))
		}
		if f.accepted == 1 {
			complete++
		} else {
			given++
		}
	}
	if complete < 200 || (given == 0) != (w.missed == schedule.RunLate) {
		w.Errorf("%d ticks were complete and %d given up: the faults did not do what they should", complete, given)
	}
	w.Logf("%d ticks complete, %d given up", complete, given)
}
