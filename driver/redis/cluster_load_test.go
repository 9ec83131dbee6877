package redis

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/history"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// load runs workers of several processes. Each repeatedly takes a lock, reads a
// counter, and writes it back incremented under the lock's token.
type load struct {
	t        *testing.T
	client   rueidis.Client
	drivers  []*Driver
	fence    *Fence
	counters map[string]*atomic.Int64 // certain increments of each
	file     bytes.Buffer
	history  *history.Writer
	stopped  context.Context
	workers  sync.WaitGroup
}

// startLoad starts three workers for each counter; stop ends them and checks their
// results. A counter's name is its tag.
func startLoad(t *testing.T, client rueidis.Client, counters ...string) (l *load, stop func()) {
	t.Helper()
	stopped, cancel := context.WithCancel(t.Context())
	l = &load{t: t, client: client, fence: NewFence(client), counters: map[string]*atomic.Int64{}, stopped: stopped}
	t.Cleanup(func() { cancel(); l.workers.Wait() })
	var err error
	if l.history, err = history.NewWriter(&l.file, history.Header{Run: t.Name()}, nil); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		d := openWith(t, client, &Options{TTL: 10 * time.Second})
		l.drivers = append(l.drivers, d)
	}
	for _, name := range counters {
		l.counters[name] = new(atomic.Int64)
	}
	for _, name := range counters {
		for i, d := range l.drivers {
			l.workers.Go(func() {
				for stopped.Err() == nil {
					l.raise(d, fmt.Sprint(i), name)
				}
			})
		}
	}
	return l, func() { cancel(); l.workers.Wait(); l.judge() }
}

// raise increments a counter. An increment with an unknown outcome is not repeated.
func (l *load) raise(d *Driver, lane, name string) {
	lock, data, owner := "{"+name+"}lock", "{"+name+"}data", newOwner()
	var grant driver.Grant
	asked := l.history.Invoke(history.Event{Lane: lane, Op: history.OpAcquire, Key: lock, Owner: owner})
	if !persist(l.t, "acquire "+name, func(ctx context.Context) (err error) {
		grant, err = d.Acquire(ctx, driver.Request{Name: lock, Owner: owner})
		return err
	}) {
		asked.Info("given up")
		return
	}
	asked.Granted(grant.Token, owner)
	defer persist(l.t, "release "+name, func(ctx context.Context) error { return d.Release(ctx, lock, owner) })
	raise := driver.Raise{Resource: lock, Token: grant.Token}
	if !persist(l.t, "enter "+name, func(ctx context.Context) error { return l.fence.Enter(ctx, raise) }) {
		return
	}
	n, ok := l.read(name)
	if !ok {
		return
	}
	write := l.history.Invoke(history.Event{Lane: lane, Op: history.OpWrite, Key: lock, Token: grant.Token})
	add := l.history.Invoke(history.Event{Lane: lane, Op: history.OpAdd, Key: name, Amount: 1})
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.t.Context()), 3*time.Second)
	defer cancel()
	err := l.fence.Enter(ctx, raise, driver.Write{Key: data, Value: strconv.AppendInt(nil, n+1, 10)})
	add.End(err)
	write.End(err)
	if err == nil {
		l.counters[name].Add(1)
	}
}

func (l *load) read(name string) (n int64, ok bool) {
	ok = persist(l.t, "read "+name, func(ctx context.Context) (err error) {
		n, err = l.client.Do(ctx, l.client.B().Get().Key("{"+name+"}data").Build()).AsInt64()
		if rueidis.IsRedisNil(err) {
			err = nil
		}
		return failure(request{op: "read"}, err)
	})
	return n, ok
}

// progress waits until each of these counters has been incremented five more times.
func (l *load) progress(names ...string) {
	l.t.Helper()
	for _, name := range names {
		from := l.counters[name].Load()
		testbed.Eventually(l.t, "progress of "+name, 3*bound, func() bool { return l.counters[name].Load() >= from+5 })
	}
}

// judge requires that tokens rose, that no stale one entered, and that each counter
// equals its increments.
func (l *load) judge() {
	l.t.Helper()
	for name := range l.counters {
		call := l.history.Invoke(history.Event{Lane: "end", Op: history.OpRead, Key: name})
		n, _ := l.read(name)
		call.EndWith(history.Event{Kind: history.OK, Amount: n})
		l.t.Logf("%s is %d, raised %d times", name, n, l.counters[name].Load())
	}
	events := func() iter.Seq2[history.Event, error] {
		r, err := history.NewReader(bytes.NewReader(l.file.Bytes()))
		if err != nil {
			l.t.Fatal(err)
		}
		return r.Events()
	}
	if v, err := history.CheckUpdates(events()); err != nil || !v.OK() {
		l.t.Errorf("additions: %v, %v", v, err)
	}
	if r, err := history.CheckTokens(events()); err != nil || !r.OK() {
		l.t.Errorf("tokens: %v, %v", r, err)
	}
}

// A slot moves to every master in turn while its locks are taken and its data is
// written. Locks of other slots are not delayed.
func migrateUnderLoad(t *testing.T, c *testbed.Cluster, client rueidis.Client) {
	const moved, other = "moved", "other"
	slot := slotOf(moved)
	l, stop := startLoad(t, client, moved, other)
	l.progress(moved, other)
	at := slot * 3 / 16384
	for range 3 {
		finish := c.Migrate(t, slot, at, (at+1)%3)
		l.progress(other)
		finish()
		at = (at + 1) % 3
		l.progress(moved)
	}
	stop()
}

// A master dies and its replica takes over. Locks, tokens and data confirmed by replicas
// are still there. The dead master is the one whose address the client was given.
func failOverUnderLoad(t *testing.T, c *testbed.Cluster, client rueidis.Client) {
	const lost, other = "b", "a" // slots 3300 and 15495
	if slotOf(lost)*3/16384 != 0 || slotOf(other)*3/16384 != 2 {
		t.Fatal("the names are not where they should be")
	}
	waited := With(client, Settings{Replicas: 1})
	l, stop := startLoad(t, waited, lost, other)
	for d, want := range map[*Driver]bool{l.drivers[0]: true, openShort(t, client): false} {
		g := d.Guarantees()
		if g.ExclusionSurvives.Has(interlock.AsyncFailover) != want || g.TokensSurvive.Has(interlock.AsyncFailover) != want || (g.Assumes != "") != want {
			t.Errorf("a failover, waited for replicas %v: %+v", want, g)
		}
	}
	held, before := take(t, openShort(t, waited), "{"+lost+"}held")
	l.progress(lost, other)
	c.Servers[0].Kill()
	l.progress(other)
	without := With(client, Settings{}) // the new master has no replica
	insist(t, "it is still held", func(ctx context.Context) error {
		f := NewFence(without)
		if err := f.Enter(ctx, driver.Raise{Resource: "{" + lost + "}held", Token: before.Token}); err != nil {
			return err
		}
		state, err := openShort(t, without).Lock(ctx, "{"+lost+"}held")
		if err == nil && (state.Holder == nil || state.Holder.Owner != held) {
			t.Errorf("after the failover: %+v", state)
		}
		return err
	})
	for range 5 { // the client must not use the failed node
		if _, _, err := openShort(t, without).Locks(t.Context(), "none/", 10); err != nil {
			t.Errorf("list: %v", err)
		}
	}
	c.Servers[0].Restart()
	c.Settled(t, len(c.Servers))
	l.progress(lost, other)
	stop()
}

func openShort(t *testing.T, client rueidis.Client) *Driver {
	t.Helper()
	return openWith(t, client, &Options{TTL: 20 * time.Second})
}
