package coordinator

import (
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/interlock-dev/interlock"
)

// target is what calls are made of: it has places for so many at once, and is sick
// once enough of them in a row were not answered.
type target struct {
	name   string
	places chan struct{}
	users  int // who call it or wait for it; the coordinator's mu guards it

	mu       sync.Mutex
	failures int // in a row
	queue    int // those that wait for a place
	waiting  map[*Turn]struct{}
	healing  []*Turn // those that waited when it answered again, and were not woken yet
}

// sickAfter is how many calls in a row a target has to leave without an answer. One
// transaction that fails by itself, among others that do not, makes none sick.
const sickAfter = 5

// wakes is how many an answer of a target that heals wakes: those that call it double
// with each round of answers, and die out if few calls are answered.
const wakes = 2

// errCrowded is why a transaction is left alone until it is due again.
var errCrowded = &interlock.Error{Op: "drive", Kind: interlock.Retryable, Err: errors.New("too many calls wait for its target")}

// use is the target of a name, until it is disused.
func (c *Coordinator) use(name string) *target {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := c.targets[name]
	if g == nil {
		g = &target{name: name, places: make(chan struct{}, c.options.PerTarget), waiting: map[*Turn]struct{}{}}
		c.targets[name] = g
	}
	g.users++
	return g
}

// disuse forgets a target that nobody uses, unless there is something to know of it:
// names can be as many as there are addresses.
func (c *Coordinator) disuse(g *target) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g.users--; g.users == 0 && g.well() {
		delete(c.targets, g.name)
	}
}

func (g *target) well() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.failures == 0
}

// enter waits for a place. It is false when serving ends; or if a quarter of all that
// may be held waits already, unless the turn is one that stays.
func (g *target) enter(t *Turn) bool {
	select {
	case g.places <- struct{}{}:
		return true
	default:
	}
	if !g.lineUp(t) {
		return false
	}
	defer g.lineOff()
	select {
	case g.places <- struct{}{}:
		return true
	case <-t.server.ctx.Done():
		return false
	}
}

func (g *target) lineUp(t *Turn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !t.stays && g.queue >= max(1, t.server.coordinator.options.Held/4) {
		t.crowded.Store(true)
		return false
	}
	g.queue++
	return true
}

func (g *target) lineOff() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.queue--
}

func (g *target) leave() { <-g.places }

// answered takes whether a call was. With the first answer of a sick target those who
// wait for it are woken, a few by each answer, as long as it is well.
func (g *target) answered(was bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !was {
		g.failures++
		return
	}
	if g.failures >= sickAfter {
		g.healing = slices.Collect(maps.Keys(g.waiting))
	}
	g.failures = 0
	g.wake(wakes)
}

// wake wakes so many of those that wait still.
func (g *target) wake(n int) {
	for n > 0 && len(g.healing) > 0 {
		t := g.healing[0]
		g.healing = g.healing[1:]
		if _, waits := g.waiting[t]; waits {
			signal(t.wake)
			n--
		}
	}
}

// listenTo has a turn woken when one of the targets heals, until it is stopped. It
// is nil if half of all that may be held waits for one of them already, unless the turn
// is one that stays.
func (c *Coordinator) listenTo(t *Turn, names []string) (stop func()) {
	var used []*target
	stop = func() {
		for _, g := range used {
			g.forget(t)
			c.disuse(g)
		}
	}
	for _, name := range names {
		g := c.use(name)
		used = append(used, g)
		if !g.remember(t) {
			stop()
			return nil
		}
	}
	return stop
}

func (g *target) remember(t *Turn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !t.stays && len(g.waiting) >= max(1, t.server.coordinator.options.Held/2) {
		t.crowded.Store(true)
		return false
	}
	g.waiting[t] = struct{}{}
	return true
}

func (g *target) forget(t *Turn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.waiting, t)
}
