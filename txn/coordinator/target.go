package coordinator

import (
	"context"
	"sync"
)

// target is what calls are made of: it has places for so many at once, and is sick
// once enough of them in a row were not answered.
type target struct {
	places chan struct{}

	mu       sync.Mutex
	failures int // in a row
	waiting  map[*Turn]struct{}
}

// sickAfter is how many calls in a row a target has to leave without an answer. One
// transaction that fails by itself, among others that do not, makes none sick.
const sickAfter = 5

// target is that of a name.
func (c *Coordinator) target(name string) *target {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.targets[name]
	if t == nil {
		t = &target{places: make(chan struct{}, c.options.PerTarget), waiting: map[*Turn]struct{}{}}
		c.targets[name] = t
	}
	return t
}

func (g *target) enter(ctx context.Context) bool {
	select {
	case g.places <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (g *target) leave() { <-g.places }

// answered takes whether a call was. The first answer of a sick target wakes all who
// wait for it.
func (g *target) answered(was bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !was {
		g.failures++
		return
	}
	if g.failures >= sickAfter {
		for t := range g.waiting {
			signal(t.wake)
		}
	}
	g.failures = 0
}

// listenTo has a turn woken when one of the targets heals, until it is told to stop.
func (c *Coordinator) listenTo(t *Turn, names []string) (stop func()) {
	for _, name := range names {
		c.target(name).wait(t, true)
	}
	return func() {
		for _, name := range names {
			c.target(name).wait(t, false)
		}
	}
}

func (g *target) wait(t *Turn, on bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if on {
		g.waiting[t] = struct{}{}
	} else {
		delete(g.waiting, t)
	}
}
