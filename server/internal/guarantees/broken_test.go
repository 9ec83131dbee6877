package guarantees

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

const (
	// long is a lease that outlives the restart of any server.
	long     = 30 * time.Second
	patience = 20 * time.Second
)

// kept is the state of a lock after its holder was disconnected and the server broke.
type kept int

const (
	stays kept = iota
	goes
	hidden // lost only if the machine itself fails or, at a clock step, the holder is disconnected as well
)

// TestFaults checks the promises and disclaimers of exclusion: whether another owner
// is granted the lock while the first still considers it valid. Each system has one
// server, to which the faults are applied in turn:
//
//   - a partition that only the server detects: it sees the end of the holder's
//     connections, as behind a gateway that has restarted, and the holder gets no
//     answers;
//   - a crash, with the server's default and its durable settings;
//   - the loss of its data, over which no driver promises exclusion, and tokens rise;
//   - steps of its clock, over which tokens rise.
func TestFaults(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]struct{ found, set, stepped kept }{
		"redis": {goes, stays, goes}, "redis-plain": {goes, stays, goes}, "etcd": {stays, stays, stays},
		"consul": {stays, stays, stays}, "zookeeper": {stays, stays, stays}, "postgres": {goes, goes, hidden}, "postgres-table": {hidden, stays, goes},
		"mysql": {goes, goes, stays}, "mysql-table": {hidden, stays, goes},
	} {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			s, partition := systems[id], stays
			if id == "mysql" {
				partition = goes
			}
			s.befall(t, s.server(t, s.set...), partition, want.set, want.stepped)
			if slices.Equal(s.found, s.set) {
				return
			}
			t.Run("Found", func(t *testing.T) {
				if want.found == hidden {
					t.Skip("a killed process does not show it: the machine would have to fail")
				}
				s.mustEndUp(t, s.server(t, s.found...), interlock.ServerCrash, want.found, crash)
			})
		})
	}
	t.Run("kube", func(t *testing.T) {
		t.Parallel()
		k, store := testbed.KubeOnCluster(t)
		s := onKube(k)
		t.Run("Failover", func(t *testing.T) {
			s.keeps(t, k.Addr(), interlock.AsyncFailover, stays, func() { store.Leader().Kill() })
		})
		s.befall(t, k.Server, stays, stays, stays)
	})
}

// befall applies the faults in turn, the worst last.
func (s system) befall(t *testing.T, server *testbed.Server, partition, crashed, stepped kept) {
	t.Run("Partition", func(t *testing.T) {
		path := testbed.NewProxy(t, server.Addr())
		s.meet(t, path, server.Addr(), interlock.Partition, partition, path.Abandon)
	})
	t.Run("ServerCrash", func(t *testing.T) { s.mustEndUp(t, server, interlock.ServerCrash, crashed, crash) })
	t.Run("DataLoss", func(t *testing.T) { s.mustEndUp(t, server, interlock.DataLoss, goes, (*testbed.Server).Wipe) })
	t.Run("ClockStep", func(t *testing.T) {
		forward := func() { server.StepClock(20 * long) }
		if stepped == hidden {
			path := testbed.NewProxy(t, server.Addr())
			s.meet(t, path, server.Addr(), interlock.ServerClockJump, goes, func() { path.Abandon(); forward() })
		} else {
			s.keeps(t, server.Addr(), interlock.ServerClockJump, stepped, forward)
		}
		s.handsOver(t, server.Addr(), stays, func() { server.StepClock(-20 * long) })
	})
}

func crash(server *testbed.Server) {
	server.Kill()
	server.Restart()
}

// TestFailover fails over to a replica that has not received the grant.
func TestFailover(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"redis", "redis-plain"} {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			s := systems[id]
			primary := s.server(t, slices.Concat(s.set, []string{"--repl-diskless-sync-delay", "0"})...)
			between := testbed.NewProxy(t, primary.Addr())
			replica := replicaOf(t, between.Addr())
			path := testbed.NewProxy(t, primary.Addr())
			between.Cut()
			s.meet(t, path, replica.Addr(), interlock.AsyncFailover, goes, func() {
				path.Cut()
				primary.Kill()
				promote(t, replica)
			})
		})
	}
}

func onKube(k *testbed.Kube) system {
	return system{open: func(t *testing.T, addr string, ttl time.Duration) (driver.Fenced, error) {
		return openKube(t, k, addr, ttl)
	}}
}

// mustEndUp disconnects a holder from a server that breaks.
func (s system) mustEndUp(t *testing.T, server *testbed.Server, f interlock.Faults, want kept, fault func(*testbed.Server)) {
	t.Helper()
	path := testbed.NewProxy(t, server.Addr())
	defer path.Heal() // otherwise a pool waits long for its server to close
	s.meet(t, path, server.Addr(), f, want, func() {
		path.Cut()
		fault(server)
	})
}

// keeps tests a holder that stays connected, and compares the result with the wanted
// one and with the driver's guarantees.
func (s system) keeps(t *testing.T, addr string, f interlock.Faults, want kept, fault func()) {
	t.Helper()
	g := s.handsOver(t, addr, want, fault)
	if (want == stays) != g.ExclusionSurvives.Has(f) {
		t.Errorf("the driver's ExclusionSurvives is %v", g.ExclusionSurvives)
	}
	if g.Class == interlock.Fenced && !g.TokensSurvive.Has(f) {
		t.Errorf("the driver's TokensSurvive is %v", g.TokensSurvive)
	}
}

// notice bounds the time until a server detects the end of a lease, by any clock.
const notice = 1500 * time.Millisecond

// handsOver tests a holder, a fault, another contender, and a hand-over to it, whose
// token must be higher.
func (s system) handsOver(t *testing.T, addr string, want kept, fault func()) interlock.Guarantees {
	t.Helper()
	open := func() (driver.Fenced, error) { return s.open(t, addr, long) }
	d, other := mustOpen(t, open), mustOpen(t, open)
	name, lost := fmt.Sprint("scenario/", names.Add(1)), make(chan error, 1)
	first, err := d.Acquire(t.Context(), driver.Request{Name: name, Owner: "holder", Events: driver.Events{Lost: func(cause error) { lost <- cause }}})
	testbed.OK(t, err)
	fault()
	var second driver.Grant
	began := time.Now()
	testbed.Eventually(t, "an answer after the fault", patience, func() bool {
		second, err = ask(t, other, name)
		return err == nil || errors.Is(err, interlock.ErrHeld) && time.Since(began) > notice
	})
	if (want == stays) != errors.Is(err, interlock.ErrHeld) {
		t.Errorf("after the fault an acquire returned %v", err)
	}
	if want == stays && (len(lost) > 0 || first.Lease.Remaining() <= 0) {
		t.Errorf("the claim was lost: %v, %v left", len(lost), first.Lease.Remaining())
	}
	if err != nil {
		testbed.Eventually(t, "a hand-over", patience, func() bool {
			_ = d.Release(t.Context(), name, "holder") // until it has arrived
			second, err = ask(t, other, name)
			return err == nil
		})
	}
	if second.Token <= first.Token && first.Token > 0 {
		t.Errorf("token %d after %d", second.Token, first.Token)
	}
	return d.Guarantees()
}

var owners, names atomic.Int64

// meet tests a holder on a path that the fault cuts. Before the holder's lease ends,
// another contender asks elsewhere. It compares the result with the wanted one and
// with the driver's guarantees.
func (s system) meet(t *testing.T, path *testbed.Proxy, elsewhere string, f interlock.Faults, want kept, fault func()) {
	t.Helper()
	d := mustOpen(t, func() (driver.Fenced, error) { return s.open(t, path.Addr(), long) })
	name := fmt.Sprint("scenario/", names.Add(1))
	first, err := ask(t, d, name)
	testbed.OK(t, err)
	fault()
	var second driver.Grant
	testbed.Eventually(t, "an answer of the broken server", patience, func() bool {
		other, e := s.open(t, elsewhere, long)
		if e != nil {
			err = e
			return false
		}
		closed(t, other)
		second, err = ask(t, other, name)
		return err == nil || want == stays && errors.Is(err, interlock.ErrHeld)
	})
	left := first.Lease.Remaining()
	switch {
	case left <= 0:
		t.Skip("too slow a machine: the first lease has ended")
	case (want == stays) != errors.Is(err, interlock.ErrHeld):
		t.Errorf("while the first lease has %v left another acquire returned %v", left, err)
	case (want == stays) != d.Guarantees().ExclusionSurvives.Has(f):
		t.Errorf("the driver's ExclusionSurvives is %v", d.Guarantees().ExclusionSurvives)
	case err == nil && first.Token > 0 && d.Guarantees().TokensSurvive.Has(f) && second.Token <= first.Token:
		t.Errorf("token %d after %d", second.Token, first.Token)
	}
}

func ask(t *testing.T, d driver.Fenced, name string) (driver.Grant, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	return d.Acquire(ctx, driver.Request{Name: name, Owner: fmt.Sprint("one/", owners.Add(1)), NoWait: true})
}

// replicaOf starts a replica and waits until it follows.
func replicaOf(t *testing.T, primary string) *testbed.Server {
	t.Helper()
	host, port, err := net.SplitHostPort(primary)
	testbed.OK(t, err)
	replica := testbed.Redis(t, "--replicaof", host, port)
	c := dialRedis(t, replica.Addr())
	testbed.Eventually(t, "the replica follows", patience, func() bool {
		text, err := c.Do(t.Context(), c.B().Info().Section("replication").Build()).ToString()
		return err == nil && containsLine(text, "master_link_status:up")
	})
	return replica
}
