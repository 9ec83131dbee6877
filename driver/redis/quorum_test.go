package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// quorumOn opens a quorum on its own clients. Without a restart delay in o there is
// none, so that tests need not wait for it.
func quorumOn(t testing.TB, servers five, o QuorumOptions) *Quorum {
	t.Helper()
	if o.RestartDelay == 0 {
		o.RestartDelay = -1
	}
	q, err := OpenQuorum(t.Context(), servers.clients(t), &o)
	testbed.OK(t, err)
	testbed.CloseAfter(t, q)
	return q
}

// takeQuorum repeats what may be repeated: on a busy machine nodes answer too late.
func takeQuorum(t testing.TB, q *Quorum, r driver.Request) (lease driver.Lease) {
	t.Helper()
	insist(t, "acquire "+r.Name, func(ctx context.Context) (err error) {
		lease, err = q.Acquire(ctx, r)
		return err
	})
	return lease
}

func (f five) clients(t testing.TB) (all []rueidis.Client) {
	t.Helper()
	for _, s := range f {
		all = append(all, dial(t, s.Addr()))
	}
	return all
}

func (f five) holders(t testing.TB, key string) []string {
	t.Helper()
	var holders []string
	for _, s := range f {
		client, err := Dial("redis://" + s.Addr())
		if err != nil {
			holders = append(holders, "down")
			continue
		}
		holder, err := raw(t, client, "GET", key).ToString()
		client.Close()
		if err != nil && !rueidis.IsRedisNil(err) {
			t.Fatal(err)
		}
		holders = append(holders, holder)
	}
	return holders
}

func TestQuorumSurvivesAMinorityAndNotAMajority(t *testing.T) {
	t.Parallel()
	servers := startFive(t)
	q := quorumOn(t, servers, QuorumOptions{TTL: 2 * time.Second, NodeTimeout: 600 * time.Millisecond}) // a busy machine answers late
	renewed, lost := make(chan error, 100), make(chan error, 1)
	r := driver.Request{Name: "x", Owner: newOwner(), Events: driver.Events{
		Renewed: func(_ time.Duration, err error) { renewed <- err },
		Lost:    func(err error) { lost <- err }}}
	lease := takeQuorum(t, q, r)
	for _, dead := range []int{0, 1} {
		servers[dead].Kill()
		other := newOwner()
		takeQuorum(t, q, driver.Request{Name: other, Owner: other})
		if err := q.Release(t.Context(), other, other); err != nil {
			t.Fatalf("release without node %d: %v", dead, err)
		}
	}
	for len(renewed) > 0 {
		<-renewed
	}
	if err := <-renewed; err != nil || lease.Remaining() <= 0 {
		t.Fatalf("with three nodes of five: %v, %v remain", err, lease.Remaining())
	}
	servers[2].Kill()
	_, err := q.Acquire(t.Context(), driver.Request{Name: "y", Owner: newOwner()})
	if !errors.Is(err, errNoMajority) || interlock.Kind(err) == interlock.Definite {
		t.Fatalf("with two nodes of five: %v", err)
	}
	testbed.Eventually(t, "its deadline has passed", bound, func() bool { return lease.Remaining() <= 0 })
	if err := q.Release(t.Context(), "x", r.Owner); !errors.Is(err, errNoMajority) {
		t.Errorf("release by two nodes of five: %v", err)
	}
	select {
	case err := <-lost:
		t.Errorf("silent nodes are no loss: %v", err)
	default:
	}
	up := 0
	for _, n := range q.Nodes() {
		if n.Up {
			up++
		}
		if n.Up != (n.Err == nil) || !strings.HasPrefix(n.Address, "127.0.0.1:") {
			t.Errorf("%+v", n)
		}
	}
	if up > 2 {
		t.Errorf("%d nodes are up: %+v", up, q.Nodes())
	}
}

// A node that does not answer costs no wait if the others decide; if they do not,
// it costs its timeout once or twice, and then nothing.
func TestQuorumDoesNotWaitForAPausedNode(t *testing.T) {
	t.Parallel()
	servers := startFive(t)
	const nodeTimeout = 3 * time.Second
	q := quorumOn(t, servers, QuorumOptions{TTL: 20 * time.Second, NodeTimeout: nodeTimeout})
	servers[4].Pause()
	for range 5 {
		began, owner := time.Now(), newOwner()
		takeQuorum(t, q, driver.Request{Name: "x", Owner: owner})
		testbed.OK(t, q.Release(t.Context(), "x", owner))
		if took := time.Since(began); took > nodeTimeout/2 {
			t.Errorf("with four nodes of five it took %v", took)
		}
	}
	testbed.Eventually(t, "the node is left out", bound, func() bool { return !q.Nodes()[4].Up })
	// Two nodes grant it and two do not, so that the paused one would decide.
	for _, s := range servers[:2] {
		mustDo(t, dial(t, s.Addr()), "SET", "split", "theirs")
	}
	began := time.Now()
	if _, err := q.Acquire(t.Context(), driver.Request{Name: "split", Owner: newOwner(), NoWait: true}); !errors.Is(err, interlock.ErrHeld) {
		t.Error(err)
	}
	if took := time.Since(began); took > nodeTimeout/2 {
		t.Errorf("a node that is left out was waited for: %v", took)
	}
	servers[4].Resume()
	testbed.Eventually(t, "the node is tried again", bound, func() bool {
		owner := newOwner()
		takeQuorum(t, q, driver.Request{Name: "x", Owner: owner})
		return q.Release(t.Context(), "x", owner) == nil && q.Nodes()[4].Up
	})
}

// The next renewal locks a minority again that lost its keys.
func TestQuorumLocksALostMinorityAgain(t *testing.T) {
	t.Parallel()
	servers := startFive(t)
	q := quorumOn(t, servers, QuorumOptions{TTL: 1500 * time.Millisecond, NodeTimeout: 500 * time.Millisecond})
	owner := newOwner()
	lease := takeQuorum(t, q, driver.Request{Name: "x", Owner: owner})
	servers[0].Restart() // without persistence
	servers[1].Restart()
	want := slices.Repeat([]string{owner}, quorumNodes)
	testbed.Eventually(t, "all nodes name the owner again", bound, func() bool {
		return slices.Equal(servers.holders(t, "x"), want)
	})
	if lease.Remaining() <= 0 {
		t.Error("a lost minority ended the lease")
	}
	testbed.OK(t, q.Release(t.Context(), "x", owner))
	testbed.Eventually(t, "all nodes are free", bound, func() bool {
		return slices.Equal(servers.holders(t, "x"), make([]string, quorumNodes))
	})
}

// A majority that lost its keys may have been held by another owner meanwhile.
func TestQuorumLosesALostMajority(t *testing.T) {
	t.Parallel()
	servers := startFive(t)
	q := quorumOn(t, servers, QuorumOptions{TTL: 1500 * time.Millisecond, NodeTimeout: 500 * time.Millisecond})
	lost := make(chan error, 1)
	r := driver.Request{Name: "x", Owner: newOwner(), Events: driver.Events{Lost: func(err error) { lost <- err }}}
	lease := takeQuorum(t, q, r)
	var majority []rueidis.Client
	for _, s := range servers[:3] {
		majority = append(majority, dial(t, s.Addr()))
	}
	testbed.Eventually(t, "the loss", bound, func() bool {
		for _, client := range majority { // again, if a renewal between two of them locked a minority again
			mustDo(t, client, "DEL", "x")
		}
		return lease.Remaining() <= 0
	})
	if err := testbed.Receive(t, lost, "the report of the loss"); !errors.Is(err, interlock.ErrLost) {
		t.Error(err)
	}
	testbed.Eventually(t, "what was locked again is given back", bound, func() bool {
		return slices.Equal(servers.holders(t, "x"), make([]string, quorumNodes))
	})
}

// The votes of a recently started node do not count: it may have forgotten others.
func TestQuorumDelaysRestartedNodes(t *testing.T) {
	t.Parallel()
	servers := startFive(t)
	const delay = 2 * time.Second
	servers.grown(t, delay)
	o := QuorumOptions{TTL: time.Second, RestartDelay: delay, NodeTimeout: 300 * time.Millisecond}
	first := quorumOn(t, servers, o)
	second := quorumOn(t, servers, o)
	openWires(t, second)
	owner := newOwner()
	lease := takeQuorum(t, first, driver.Request{Name: "x", Owner: owner})
	testbed.OK(t, first.Close(testbed.Bounded(t))) // cut off, so that it does not lock nodes again
	restarted := time.Now()                        // the first one, at the earliest: with it there is a majority again
	for _, s := range servers[:3] {
		s.Restart()
	}
	other := driver.Request{Name: "x", Owner: newOwner(), NoWait: true}
	testbed.Eventually(t, "the other one finds the nodes again", bound, func() bool {
		_, err := second.Acquire(t.Context(), other)
		if err == nil { // a busy machine may find them only after the delay
			if took := time.Since(restarted); took < delay {
				t.Fatalf("granted %v after the restart, %v remain of the first lease", took, lease.Remaining())
			}
			return true
		}
		return interlock.Kind(err) == interlock.Retryable && second.Nodes()[0].Young > 0
	})
	other.NoWait = false
	takeQuorum(t, second, other)
	if took := time.Since(restarted); took < delay {
		t.Errorf("granted %v after the restart, the delay is %v", took, delay)
	}
	testbed.Eventually(t, "the node is shown as old enough", bound, func() bool { return second.Nodes()[0].Young == 0 })
}

// A claim that comes too late to be used is released.
func TestQuorumNeedsTimeToWork(t *testing.T) {
	t.Parallel()
	servers := startFive(t)
	var clients []rueidis.Client
	var proxies []*testbed.Proxy
	for _, s := range servers {
		proxies = append(proxies, testbed.NewProxy(t, s.Addr()))
		clients = append(clients, dial(t, proxies[len(proxies)-1].Addr()))
	}
	q, err := OpenQuorum(t.Context(), clients, &QuorumOptions{TTL: 2 * time.Second, MinWork: time.Second,
		NodeTimeout: 600 * time.Millisecond, RestartDelay: -1})
	testbed.OK(t, err)
	testbed.CloseAfter(t, q)
	q.options.MinWork = 1900 * time.Millisecond // as if the requests took longer than a node may take
	for _, p := range proxies {
		p.Delay(100 * time.Millisecond)
	}
	r := driver.Request{Name: "x", Owner: newOwner(), NoWait: true}
	if _, err := q.Acquire(t.Context(), r); !errors.Is(err, errTooSlow) || interlock.Kind(err) != interlock.Retryable {
		t.Errorf("with 80 ms too little: %v", err)
	}
	if held := servers.holders(t, "x"); !slices.Equal(held, make([]string, quorumNodes)) {
		t.Errorf("it was not given back: %q", held)
	}
	for _, p := range proxies {
		p.Delay(0)
	}
	takeQuorum(t, q, r)
}

// openWires acquires and releases until every node has a wire.
func openWires(t testing.TB, q *Quorum) {
	t.Helper()
	testbed.Eventually(t, "every node has a wire", bound, func() bool {
		owner := newOwner()
		takeQuorum(t, q, driver.Request{Name: "opening", Owner: owner})
		testbed.OK(t, q.Release(t.Context(), "opening", owner))
		return !slices.ContainsFunc(q.nodes, func(n *node) bool { return n.wire.Load() == nil })
	})
	settle(t, q)
}

// settle waits until no request is under way.
func settle(t testing.TB, q *Quorum) {
	t.Helper()
	testbed.Eventually(t, "every request is answered", bound, func() bool {
		return q.rounds.Load() == 0 && !slices.ContainsFunc(q.nodes, func(n *node) bool {
			n.conn.mu.Lock()
			defer n.conn.mu.Unlock()
			return len(n.conn.last) > 0
		})
	})
}

// Each node has one command for an acquire of a free name, and one script for a release.
func TestQuorumCost(t *testing.T) {
	t.Parallel()
	servers := startFive(t)
	q := quorumOn(t, servers, QuorumOptions{NodeTimeout: 5 * time.Second}) // none times out
	openWires(t, q)
	var before [quorumNodes]map[string]int
	for i, s := range servers {
		before[i] = calls(t, dial(t, s.Addr()))
	}
	const rounds = 20
	for i := range rounds {
		owner := newOwner()
		name := fmt.Sprint("n/", i) // a node that is late for one name refuses no other
		takeQuorum(t, q, driver.Request{Name: name, Owner: owner})
		testbed.OK(t, q.Release(t.Context(), name, owner))
	}
	settle(t, q)
	for i, s := range servers {
		spent := since(t, dial(t, s.Addr()), before[i])
		if spent["set"] != rounds || spent["eval"] != rounds || spent["evalsha"] > 0 || spent["info"] > 1 { // the reading of these counts
			t.Errorf("node %d had %v for %d acquires and releases", i, spent, rounds)
		}
	}
}

func TestQuorumRefusesWhatCannotBe(t *testing.T) {
	t.Parallel()
	servers := startFive(t)
	clients := servers.clients(t)
	for name, c := range map[string]struct {
		clients []rueidis.Client
		options QuorumOptions
	}{
		"an even number":    {clients[:4], QuorumOptions{}},
		"one node":          {clients[:1], QuorumOptions{}},
		"no client":         {[]rueidis.Client{clients[0], nil, clients[1]}, QuorumOptions{}},
		"one server twice":  {[]rueidis.Client{clients[0], clients[1], dial(t, servers[0].Addr())}, QuorumOptions{}},
		"too much work":     {clients, QuorumOptions{TTL: time.Second, MinWork: 600 * time.Millisecond}},
		"too patient":       {clients, QuorumOptions{TTL: time.Second, NodeTimeout: time.Second}},
		"too short a delay": {clients, QuorumOptions{TTL: time.Second, RestartDelay: time.Millisecond}},
		"too short a TTL":   {clients, QuorumOptions{TTL: time.Millisecond}},
	} {
		q, err := OpenQuorum(t.Context(), c.clients, &c.options)
		if interlock.Kind(err) != interlock.Definite || err == nil {
			t.Errorf("%s: %v", name, err)
		}
		if q != nil {
			testbed.CloseAfter(t, q)
		}
	}
}

func TestQuorumGuarantees(t *testing.T) {
	t.Parallel()
	servers := startFive(t)
	g := quorumOn(t, servers, QuorumOptions{RestartDelay: DefaultTTL}).Guarantees()
	if g.Class != interlock.Advisory || g.TokenFrom != "" || !g.CrossProcess ||
		g.ExclusionSurvives != interlock.Partition|interlock.ServerCrash {
		t.Errorf("%+v", g)
	}
	if g := quorumOn(t, servers, QuorumOptions{}).Guarantees(); g.ExclusionSurvives.Has(interlock.ServerCrash) {
		t.Errorf("without a restart delay: %+v", g)
	}
	mustDo(t, dial(t, servers[3].Addr()), "CONFIG", "SET", "maxmemory", "1gb", "maxmemory-policy", "allkeys-lru")
	if _, err := OpenQuorum(t.Context(), servers.clients(t), nil); !errors.Is(err, ErrEviction) {
		t.Errorf("with a node that evicts: %v", err)
	}
}

func TestHealthOfANode(t *testing.T) {
	t.Parallel()
	var h health
	const now = 1000
	ask := func(at int64) bool { return h.ask(now+boottime.Instant(at), 1) }
	for range tolerated - 1 {
		h.answered(now, false, 1)
	}
	if !ask(0) || !h.up() {
		t.Error("one failure leaves it out")
	}
	h.answered(now, false, 1)
	if ask(int64(probes.First/8)-1) || h.up() {
		t.Error("it is asked although it failed too often")
	}
	if !ask(int64(probes.First)) || ask(int64(probes.First)) {
		t.Error("after a while one request tries it, and only one")
	}
	for range 50 {
		h.answered(now, false, 1)
	}
	if ask(int64(probes.Max)-1) || !ask(int64(probes.Max)) {
		t.Errorf("it is tried every %v", probes.Max)
	}
	if h.answered(now, true, 1); !h.up() || !ask(0) {
		t.Error("an answer does not bring it back")
	}
}
