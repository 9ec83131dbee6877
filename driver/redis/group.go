package redis

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// groupFrom is how many requests must be under way before further ones are sent in
// groups. With fewer, a request does not wait for others.
const groupFrom = 8

// maxRuns bounds the runs of a group that are under way: one is executed while the next is
// gathered. With more of them a run has fewer names, and costs more for each.
const maxRuns = 2

// group sends requests of one script together, because a run costs the server, and a
// command the client, more than a name. A request waits while maxRuns are under way.
type group struct {
	conn   *conn
	script *script
	head   []string // the arguments before those of the names

	mu      sync.Mutex
	waiting []*groupMember
	runs    int

	// recent and older are the requests since the last tick, and between the two before it.
	// The timer runs while there are any.
	recent, older []*groupMember
	timer         *time.Timer
}

// groupMember is the request for one name.
type groupMember struct {
	pending[rueidis.RedisMessage]
	batch batch
	awake atomic.Bool    // the caller need not wait in the group any more
	sleep sync.WaitGroup // of the caller, until awake
}

// wake ends the caller's wait in the group.
func (m *groupMember) wake() {
	if m.awake.CompareAndSwap(false, true) {
		m.sleep.Done()
	}
}

// takes reports whether b is for one name, and has the common arguments of the group.
func (g *group) takes(b batch) bool {
	return g != nil && len(b.keys) == 1 && slices.Equal(g.head, b.args[:len(g.head)]) && g.conn.isBusy()
}

// isBusy reports whether so many requests are under way that more are grouped.
func (c *conn) isBusy() bool { return c.link != nil && c.link.inFlight.Load() >= c.groupFrom }

// eval waits for the answer for one name. The request keeps its place in its owner's
// order, even if ctx ends. It waits for patience before it looks at ctx: most requests are
// answered earlier, and a context of [lock] is created when it is looked at.
func (g *group) eval(ctx context.Context, r request, b batch) (rueidis.RedisMessage, error) {
	g.conn.link.inFlight.Add(1)
	defer g.conn.link.inFlight.Add(-1)
	m := &groupMember{batch: b}
	switch {
	case !m.begin(ctx, g.conn, r):
	case len(m.before) > 0:
		m.send = func(context.Context) (rueidis.RedisMessage, error) {
			return g.conn.sendOne(context.Background(), g.script, m.batch).ToMessage()
		}
		go m.run()
	default:
		m.sleep.Add(1)
		g.add(m)
		m.sleep.Wait()
	}
	return m.wait()
}

// add queues m. The request of m is counted meanwhile, so the conn does not close.
func (g *group) add(m *groupMember) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = append(g.waiting, m)
	if len(g.recent)+len(g.older) == 0 {
		g.startTimer()
	}
	g.recent = append(g.recent, m)
	if g.runs < maxRuns {
		g.runs++
		g.conn.running.Go(g.run)
	}
}

// startTimer begins the ticks. g.mu is held.
func (g *group) startTimer() {
	g.conn.running.Add(1)
	if g.timer == nil {
		g.timer = time.AfterFunc(patience, g.tick)
		return
	}
	g.timer.Reset(patience)
}

// tick wakes the callers that have waited for patience to twice patience.
func (g *group) tick() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, m := range g.older {
		m.wake()
	}
	clear(g.older)
	g.recent, g.older = g.older[:0], g.recent
	if len(g.older) > 0 {
		g.timer.Reset(patience)
		return
	}
	g.conn.running.Done()
}

// run sends the waiting requests until none is left. Before each run it yields, so that
// ready goroutines can add their requests.
func (g *group) run() {
	for {
		runtime.Gosched()
		g.mu.Lock()
		n := min(len(g.waiting), batchSize)
		if n == 0 {
			g.runs--
			g.mu.Unlock()
			return
		}
		members := slices.Clone(g.waiting[:n])
		g.waiting = slices.Delete(g.waiting, 0, n)
		g.mu.Unlock()
		g.send(members)
	}
}

// send runs the script for all members, and passes each its answer. An error for one
// name is in its own answer; an error of the run is that of each member. The server refuses
// the whole run for one name that the user may not use: then each half is sent again.
func (g *group) send(members []*groupMember) {
	b := batch{keys: make([]string, 0, len(members)), args: make([]string, 0, len(g.head)+2*len(members))}
	b.args = append(b.args, g.head...)
	for _, m := range members {
		b.keys = append(b.keys, m.batch.keys[0])
		b.args = append(b.args, m.batch.args[len(g.head):]...)
	}
	answer, err := g.conn.sendOne(context.Background(), g.script, b).ToMessage()
	if half := len(members) / 2; half > 0 && isForbidden(err) {
		g.send(members[:half])
		g.send(members[half:])
		return
	}
	answers := []rueidis.RedisMessage{answer}
	if err == nil && len(members) > 1 {
		answers, err = answer.ToArray()
	}
	if err == nil && len(answers) != len(members) {
		err = errReply
	}
	g.conn.mu.Lock()
	defer g.conn.mu.Unlock()
	for i, m := range members {
		if m.err = err; err == nil {
			m.value, m.err = answers[i], answers[i].Error()
		}
		m.endLocked()
		m.wake()
	}
}
