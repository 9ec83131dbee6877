package redis

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/renewal"
)

// Quorum is a lock on a majority of several independent servers: Redlock. It does
// not guarantee mutual exclusion and has no token: no counter is common to all
// nodes, and the nodes' clocks decide. So correctness must not depend on it. Use it
// to save duplicate work if one server's failure must not stop the locks, and
// [Driver] with a guard otherwise.
//
// A name is the same key with the same owner and time to live on every node, as SET
// NX PX writes it; redsync on the same nodes excludes it and is excluded. A claim
// is valid from its first request on, for the TTL minus one hundredth and two
// milliseconds. If a node has lost its key, the next renewal writes it again,
// provided that a majority still had theirs.
//
// A restarted node may have forgotten its vote. So its votes for new claims count only after it
// has been up for RestartDelay and a second ("delayed restarts" of the Redlock specification).
// This includes new servers: the first lock on them waits that long. A node that loses its data
// while it runs (FLUSHALL, eviction), or whose clock jumps, is not noticed.
//
// It is safe for concurrent use, and keeps one goroutine and those of requests
// under way. While acquires are frequent, it has a second connection to each node, with a
// goroutine.
type Quorum struct {
	nodes      []*node
	layout     layout
	options    QuorumOptions
	guarantees interlock.Guarantees
	held       *renewal.Keeper
	rounds     atomic.Int32  // under way
	silence    time.Duration // after which a wire closes

	stop  context.CancelFunc
	ended context.Context // done when Close is called
	loops sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	requests sync.WaitGroup
	round    map[string]chan struct{} // owner to the end of its renewal under way
}

// clockStep is how early a key may expire on any node, because Redis counts in
// milliseconds.
const clockStep = 2 * time.Millisecond

// OpenQuorum checks every node and computes the guarantees. It fails unless the clients are an
// odd number of at least three, and a majority answers. It also fails if two of them are the
// same server, or one is a cluster, a replica, or too old. Make each client with [Dial], and
// close it after the Quorum.
func OpenQuorum(ctx context.Context, clients []rueidis.Client, o *QuorumOptions) (*Quorum, error) {
	asked := request{op: "open"}
	options, err := o.orDefault()
	if err == nil {
		err = checkNodes(clients)
	}
	if err != nil {
		return nil, problem(asked, interlock.Definite, err)
	}
	q := &Quorum{layout: layout{prefix: options.Prefix}, options: options, silence: silence, round: map[string]chan struct{}{}}
	for _, c := range clients {
		q.nodes = append(q.nodes, newNode(c))
	}
	known, err := q.meet(ctx)
	if err != nil {
		return nil, err
	}
	q.guarantees = quorumGuarantees(known, options)
	q.held = newKeeper(q.extend, options.TTL-clockStep, Settings{})
	q.ended, q.stop = context.WithCancel(context.Background())
	q.loops.Go(func() { q.held.Run(q.ended) })
	return q, nil
}

// meet reads the facts of every node that answers.
func (q *Quorum) meet(ctx context.Context) ([]facts, error) {
	asked := request{op: "open", harmless: true}
	type answer struct {
		facts facts
		err   error
	}
	answers := make([]answer, len(q.nodes))
	var asking sync.WaitGroup
	for i, n := range q.nodes {
		asking.Go(func() {
			bounded, cancel := context.WithTimeoutCause(ctx, dialTimeout, errNodeSilent)
			defer cancel()
			f, err := ask(bounded, n.conn)
			if err == nil {
				err = errors.Join(f.refusal(settingsOf(n.conn.client)), n.conn.load(bounded, quorumAcquireScript, quorumRenewScript, quorumReleaseScript))
			}
			n.answered(err)
			answers[i] = answer{f, err}
		})
	}
	asking.Wait()
	var known []facts
	var errs []error
	ids := map[string]string{}
	for i, a := range answers {
		if a.err != nil && interlock.Kind(a.err) == interlock.Definite {
			return nil, a.err
		}
		if a.err != nil {
			errs = append(errs, a.err)
			continue
		}
		if twin, double := ids[a.facts.id]; double {
			return nil, problem(asked, interlock.Definite,
				fmt.Errorf("the nodes must be independent: %s and %s are one server", twin, q.nodes[i].address))
		}
		ids[a.facts.id] = q.nodes[i].address
		q.nodes[i].came(a.facts.up, q.options.RestartDelay)
		known = append(known, a.facts)
	}
	if len(known) < majorityOf(len(q.nodes)) {
		return nil, noMajority(asked, errs)
	}
	return known, nil
}

// quorumGuarantees returns the weakest guarantees of all nodes.
func quorumGuarantees(known []facts, o QuorumOptions) interlock.Guarantees {
	var g interlock.Guarantees
	for i, f := range known {
		one := plainGuarantees(f, o.TTL)
		if i == 0 {
			g = one
		}
		g.Assumes = max(g.Assumes, one.Assumes)
		g.ExclusionSurvives &= one.ExclusionSurvives | interlock.ServerCrash
	}
	g.Driver, g.MinTTL, g.MaxTTL = "redis quorum", 0, 0
	if o.RestartDelay > 0 {
		g.ExclusionSurvives |= interlock.ServerCrash
	}
	return g
}

// Guarantees returns the guarantees computed when the driver opened.
func (q *Quorum) Guarantees() interlock.Guarantees { return q.guarantees }

// Nodes returns the state of each node as of its latest answer, in the order of the
// clients. It sends nothing.
func (q *Quorum) Nodes() []NodeHealth {
	states := make([]NodeHealth, len(q.nodes))
	for i, n := range q.nodes {
		states[i] = n.state()
	}
	return states
}

// Close stops renewals and ends every goroutine. Held locks expire. A repeated
// Close waits again.
func (q *Quorum) Close(ctx context.Context) error {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.stop()
	for _, n := range q.nodes {
		n.conn.close()
	}
	for _, n := range q.nodes {
		if err := n.conn.wait(ctx, &q.loops, &q.requests); err != nil {
			return err
		}
	}
	return nil
}

// spawn runs work in a goroutine that Close waits for; false if already closed.
func (q *Quorum) spawn(work func()) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	q.requests.Go(work)
	return true
}
