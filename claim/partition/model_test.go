package partition_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/partition"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
)

// TestNoKeyHasTwoOwners: random members join, leave, crash and resize, with slow values, so that
// crashes fall between any two steps, and with old pictures. Two callers inside never have valid
// claims on one key, no generation has two layouts, and in the end every partition is owned.
func TestNoKeyHasTwoOwners(t *testing.T) {
	seeds := 12
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inTown(t, func(t *town) { newChaos(t, uint64(seed)).run() })
		})
	}
}

// chaos is one run of the model.
type chaos struct {
	*town
	random *rand.Rand
	story  story
	calls  sync.WaitGroup
	joined int

	mu      sync.Mutex
	members []*subject
	inside  map[string][]interlock.Claim // by key
}

type subject struct {
	*partition.Group
	d    *memory.Driver
	gone context.CancelFunc // ends the calls of its key workers
}

func newChaos(t *town, seed uint64) *chaos {
	return &chaos{town: t, random: rand.New(rand.NewPCG(seed, 7)), inside: map[string][]interlock.Claim{}}
}

func (c *chaos) run() {
	c.join()
	for range 40 {
		c.step()
		time.Sleep(time.Duration(c.random.IntN(4000)) * time.Millisecond)
	}
	time.Sleep(2 * time.Minute)
	sum := 0
	for _, m := range c.members {
		sum += len(m.Owned())
	}
	if n := c.members[0].Map().Layout().Count(); sum != n {
		c.Errorf("%d of %d partitions are owned in the end", sum, n)
	}
	for len(c.members) > 0 {
		c.leave(0)
	}
	c.calls.Wait()
	judge(c.town, c.story.records)
}

func (c *chaos) step() {
	i := c.random.IntN(len(c.members))
	switch c.random.IntN(6) {
	case 0, 1:
		if len(c.members) < 5 {
			c.join()
		}
	case 2:
		if len(c.members) > 1 {
			c.leave(i)
		}
	case 3:
		if len(c.members) > 1 {
			c.crash(i)
		}
	default:
		c.resize(c.members[i])
		if len(c.members) > 1 && c.random.IntN(2) == 0 {
			time.Sleep(time.Duration(c.random.IntN(1500)) * time.Millisecond)
			c.crash(i)
		}
	}
}

func (c *chaos) join() {
	c.joined++
	d, seed := c.space.Open(&memory.Options{TTL: 6 * time.Second}), uint64(c.joined)
	values := lagging{c.slow(&c.story, false), newLag(seed, 200*time.Millisecond)}
	picture := dated{d, newLag(seed, []time.Duration{1, time.Second, 4 * time.Second}[c.random.IntN(3)])}
	l := partition.Layout{Partitions: 5}
	if len(c.members) > 0 {
		l = c.members[0].Map().Layout()
	}
	ctx, cancel := context.WithTimeout(c.Context(), time.Minute)
	defer cancel()
	g, err := partition.Join(ctx, picture, values, "g", l, &partition.Options{Identity: fmt.Sprint("m", c.joined)})
	if err != nil { // the layout has changed meanwhile
		_ = d.Close(c.Context())
		return
	}
	ctx, gone := context.WithCancel(context.Background())
	c.members = append(c.members, &subject{g, d, gone})
	for k := range 6 {
		c.calls.Go(func() { c.call(ctx, g, fmt.Sprint(k), rand.New(rand.NewPCG(seed, uint64(k)))) })
	}
}

func (c *chaos) drop(i int) *subject {
	m := c.members[i]
	c.members = slices.Delete(c.members, i, i+1)
	return m
}

func (c *chaos) leave(i int) {
	m := c.drop(i)
	if err := m.Leave(c.Context()); err != nil {
		c.Error(err)
	}
	m.gone()
	_ = m.d.Close(c.Context())
}

func (c *chaos) crash(i int) {
	m := c.drop(i)
	_ = m.d.Close(c.Context())
	m.gone()
	c.calls.Go(func() { _ = m.Leave(context.Background()) })
}

func (c *chaos) resize(m *subject) {
	to := partition.Layout{Partitions: 1 + c.random.IntN(9)}
	if c.random.IntN(3) == 0 {
		to = partition.Layout{Splits: []string{"3", "6"}}
	}
	c.calls.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = m.Resize(ctx, to)
	})
}

// call works on a key at a member, repeatedly.
func (c *chaos) call(ctx context.Context, g *partition.Group, key string, random *rand.Rand) {
	for ctx.Err() == nil {
		_ = g.Do(ctx, key, func(_ context.Context, claim interlock.Claim) error {
			c.enter(key, claim)
			time.Sleep(time.Duration(random.IntN(1000)) * time.Millisecond)
			c.exit(key, claim)
			return nil
		})
		time.Sleep(time.Duration(1+random.IntN(50)) * time.Millisecond)
	}
}

func (c *chaos) enter(key string, claim interlock.Claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, other := range c.inside[key] {
		if other.Valid() && claim.Valid() {
			c.Errorf("%s: %s of %s came in beside %s of %s", key, claim.Name(), claim.Owner(), other.Name(), other.Owner())
		}
	}
	c.inside[key] = append(c.inside[key], claim)
}

func (c *chaos) exit(key string, claim interlock.Claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if errors.Is(context.Cause(claim.Context()), interlock.ErrReleased) {
		c.Errorf("%s: %s of %s was released under work", key, claim.Name(), claim.Owner())
	}
	i := slices.Index(c.inside[key], claim)
	c.inside[key] = slices.Delete(c.inside[key], i, i+1)
}

// lag is how long an answer takes.
type lag struct {
	mu     sync.Mutex
	random *rand.Rand
	most   time.Duration
}

func newLag(seed uint64, most time.Duration) *lag {
	return &lag{random: rand.New(rand.NewPCG(seed, 3)), most: most}
}

func (l *lag) wait(ctx context.Context) {
	l.mu.Lock()
	d := time.Duration(l.random.Int64N(int64(l.most)))
	l.mu.Unlock()
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// lagging are values that answer after a while, before or after they did it.
type lagging struct {
	*slow
	lag *lag
}

func (l lagging) Get(ctx context.Context, name string) (driver.Value, error) {
	l.lag.wait(ctx)
	v, err := l.slow.Get(ctx, name)
	l.lag.wait(ctx)
	return v, err
}

func (l lagging) Put(ctx context.Context, name string, v driver.Value) error {
	l.lag.wait(context.Background()) // it is in flight, even if its sender dies
	err := l.slow.Put(ctx, name, v)
	l.lag.wait(ctx)
	return err
}

// dated is a driver whose pictures arrive late.
type dated struct {
	*memory.Driver
	lag *lag
}

func (d dated) Locks(ctx context.Context, prefix string, limit int) ([]driver.LockState, bool, error) {
	locks, more, err := d.Driver.Locks(ctx, prefix, limit)
	d.lag.wait(ctx)
	return locks, more, err
}
