package coordinator

import (
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/hints"
)

// target limits the concurrent calls of one target. It is failing after several calls in a row
// without an answer.
type target struct {
	name   string
	places chan struct{}
	users  int // turns that call it or wait for it; guarded by the coordinator's mu

	mu       sync.Mutex
	failures int // in a row
	queue    int // calls that wait for a place
	waiting  map[*Turn]struct{}
	woken    []*Turn // waiting turns that a recovering target has not woken yet
}

// failingAfter is the number of calls in a row without an answer after which a target is failing. One
// failing transaction among others that succeed does not reach it.
const failingAfter = 5

// wakesPerAnswer is how many turns each answer of a recovering target wakes. Their number doubles
// with each round of answers, and falls if few calls are answered.
const wakesPerAnswer = 2

// errCrowded leaves a transaction until it is due again.
var errCrowded = &interlock.Error{Op: "drive", Kind: interlock.Retryable, Err: errors.New("too many calls wait for its target")}

// acquireTarget returns the target of a name, until releaseTarget.
func (c *Coordinator) acquireTarget(name string) *target {
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

// idleTargets bounds the healthy targets without users that are kept, and failingTargets all of them.
const (
	idleTargets    = 64
	failingTargets = 1024
)

// releaseTarget removes a target without users, unless few are known: there can be as many names as
// addresses.
func (c *Coordinator) releaseTarget(g *target) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g.users--; g.users == 0 && (len(c.targets) > failingTargets || len(c.targets) > idleTargets && g.healthy()) {
		delete(c.targets, g.name)
	}
}

func (g *target) healthy() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.failures == 0
}

// enter waits for a place. It returns false when serving ends, or if a quarter of Options.Held already
// waits and the turn does not keep waiting.
func (g *target) enter(t *Turn) bool {
	select {
	case g.places <- struct{}{}:
		return true
	default:
	}
	if !g.joinQueue(t) {
		return false
	}
	defer g.leaveQueue()
	select {
	case g.places <- struct{}{}:
		return true
	case <-t.server.ctx.Done():
		return false
	}
}

func (g *target) joinQueue(t *Turn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !t.keepWaiting && g.queue >= max(1, t.server.coordinator.options.Held/4) {
		t.crowded.Store(true)
		return false
	}
	g.queue++
	return true
}

func (g *target) leaveQueue() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.queue--
}

func (g *target) leave() { <-g.places }

// answered records whether a call was answered. The first answer of a failing target starts to wake
// the turns that wait, a few for each answer.
func (g *target) answered(was bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !was {
		g.failures++
		return
	}
	if g.failures >= failingAfter {
		g.woken = slices.Collect(maps.Keys(g.waiting))
	}
	g.failures = 0
	g.wake(wakesPerAnswer)
}

// wake wakes up to n turns that still wait.
func (g *target) wake(n int) {
	for n > 0 && len(g.woken) > 0 {
		t := g.woken[0]
		g.woken = g.woken[1:]
		if _, waits := g.waiting[t]; waits {
			hints.Signal(t.wake)
			n--
		}
	}
}

// waitForTargets wakes a turn when one of the targets recovers, until stop is called. It returns nil if
// half of Options.Held already waits for one of them and the turn does not keep waiting.
func (c *Coordinator) waitForTargets(t *Turn, names []string) (stop func()) {
	var used []*target
	stop = func() {
		for _, g := range used {
			g.removeWaiting(t)
			c.releaseTarget(g)
		}
	}
	for _, name := range names {
		g := c.acquireTarget(name)
		used = append(used, g)
		if !g.addWaiting(t) {
			stop()
			return nil
		}
	}
	return stop
}

func (g *target) addWaiting(t *Turn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !t.keepWaiting && len(g.waiting) >= max(1, t.server.coordinator.options.Held/2) {
		t.crowded.Store(true)
		return false
	}
	g.waiting[t] = struct{}{}
	return true
}

func (g *target) removeWaiting(t *Turn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.waiting, t)
}
