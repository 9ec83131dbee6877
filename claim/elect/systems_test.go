package elect_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/elect"
	"github.com/interlock-dev/interlock/claim/elect/electtest"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	_ "github.com/interlock-dev/interlock/driver/consul" // consul://
	"github.com/interlock-dev/interlock/driver/drivertest"
	_ "github.com/interlock-dev/interlock/driver/mysql"     // mysql://
	_ "github.com/interlock-dev/interlock/driver/postgres"  // postgres://
	_ "github.com/interlock-dev/interlock/driver/redis"     // redis://
	_ "github.com/interlock-dev/interlock/driver/zookeeper" // zookeeper://
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

const (
	leaseOfServers = 6 * time.Second  // a busy machine renews late
	patience       = testbed.Patience // bounds every wait for a condition
)

// system is a real system; that of etcd is in its driver, whose module has the client. Systems
// without values hand over to the first waiter.
type system struct {
	server func(testing.TB, ...string) *testbed.Server
	args   []string // without fsync, a database guarantees nothing after a crash
	url    string   // of an address
	values bool
	accept interlock.Faults // the minimum that it needs

	paths *paths.Server[driver.Fenced]
}

var systems = map[string]system{
	"redis":          {server: testbed.Redis, url: "redis://%s", values: true, accept: interlock.AsyncFailover | interlock.ServerCrash},
	"postgres":       {server: testbed.Postgres, args: []string{"-c", "fsync=on"}, url: "postgres://postgres@%s/postgres?sslmode=disable", values: true},
	"postgres-table": {server: testbed.Postgres, args: []string{"-c", "fsync=on"}, url: "postgres://postgres@%s/postgres?sslmode=disable&mode=table", accept: interlock.AsyncFailover},
	"zookeeper":      {server: testbed.ZooKeeper, url: "zookeeper://%s/elections", values: true},
	"consul":         {server: testbed.Consul, url: "consul://%s", values: true},
	"mysql":          {server: testbed.MariaDB, args: []string{"--innodb-flush-method=fsync"}, url: "mysql://root@%s/test", accept: interlock.Partition},
	"mysql-table":    {server: testbed.MariaDB, args: []string{"--innodb-flush-method=fsync"}, url: "mysql://root@%s/test?mode=table", accept: interlock.AsyncFailover},
}

// eachSystem runs a test on each system, each on a server of its own.
func eachSystem(t *testing.T, test func(t *testing.T, s system)) {
	t.Parallel()
	for name, s := range systems {
		t.Run(name, func(t *testing.T) {
			if testing.Short() {
				t.Skip("runs a server: not with -short")
			}
			t.Parallel()
			s.paths = paths.New[driver.Fenced](s.server(t, s.args...))
			test(t, s)
		})
	}
}

// open opens a driver over its own path.
func (s system) open(t *testing.T) (d driver.Fenced, v driver.Values) {
	t.Helper()
	d, err := s.paths.Lead(t, func(path *testbed.Proxy) (driver.Fenced, error) {
		b, err := backend.Open(t.Context(), fmt.Sprintf(s.url, path.Addr()))
		testbed.OK(t, err)
		t.Cleanup(func() { _ = b.Close(context.Background()) })
		if s.values {
			v, err = b.Values(t.Context(), "")
			testbed.OK(t, err)
		}
		return b.Fenced(t.Context(), backend.LockOptions{TTL: leaseOfServers})
	})
	testbed.OK(t, err)
	return d, v
}

// TestSystems hands a leadership over, cuts the successor's connection, then all
// connections for a while, and compares an observer's events.
func TestSystems(t *testing.T) {
	eachSystem(t, func(t *testing.T, s system) {
		a, b, c, d := s.candidate(t, "a"), s.candidate(t, "b"), s.candidate(t, "c"), s.candidate(t, "d")
		seen := s.observe(t)
		seen.until(t, "")
		a.campaign(t)
		a.leads(t)
		seen.until(t, "a")
		if a.named {
			b.campaign(t)
		}
		c.campaign(t)
		a.handOver(t, c)
		seen.until(t, "c")
		if !a.named {
			b.campaign(t)
		}

		crashed := time.Now()
		s.paths.Crash(t, c.driver)
		b.leads(t)
		t.Logf("the leader died, and another led %v later", b.elected.Sub(crashed))
		seen.until(t, "b")
		c.lost(t)

		s.paths.Cut() // also the observer
		b.lost(t)
		s.paths.Heal()
		d.campaign(t)
		d.leads(t)
		seen.until(t, "d")
		late := time.Since(d.elected) > leaseOfServers/3 // the machine, and thus maybe a renewal
		if err := d.resign(); err != nil && !(late && errors.Is(err, interlock.ErrExpired)) {
			t.Errorf("Run returned %v", err)
		}
		seen.until(t, "")
		if got, want := seen.leaders(), []string{"a", "c", "b", "d"}; !slices.Equal(got, want) {
			t.Errorf("observed %q, want %q", got, want)
		}
		if s.accept == 0 {
			return
		}
		var unmet *interlock.UnmetError
		if _, err := elect.New(a.driver, nil); !errors.As(err, &unmet) {
			t.Errorf("without its weakness accepted: %v", err)
		}
	})
}

// handOver resigns in favor of another contender, which campaigns.
func (c *contender) handOver(t *testing.T, to *contender) {
	t.Helper()
	if c.named {
		testbed.Eventually(t, "the successor is known to wait", patience, func() bool {
			err := c.term.HandOver(t.Context(), to.identity)
			if err != nil && interlock.Kind(err) != interlock.Retryable {
				t.Fatal(err)
			}
			return err == nil
		})
	}
	released := time.Now()
	if err := c.resign(); err != nil {
		t.Errorf("Run returned %v", err)
	}
	to.leads(t)
	t.Logf("nobody led for %v", to.elected.Sub(released))
}

// contender is a candidate on a real system, with its own driver.
type contender struct {
	identity string
	named    bool // it can nominate a successor
	driver   driver.Fenced
	election *elect.Election

	term    *elect.Term
	ctx     context.Context
	elected time.Time
	begun   chan struct{}
	end     chan struct{}
	done    chan error
}

func (s system) candidate(t *testing.T, identity string) *contender {
	t.Helper()
	d, v := s.open(t)
	e, err := elect.New(d, &elect.Options{Identity: identity, Values: v, Accept: s.accept})
	testbed.OK(t, err)
	testbed.CloseAfter(t, e)
	return &contender{identity: identity, named: v != nil, driver: d, election: e, begun: make(chan struct{}), end: make(chan struct{}), done: make(chan error, 1)}
}

// campaign starts a campaign, which ends with the test.
func (c *contender) campaign(t *testing.T) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	gone := make(chan struct{})
	t.Cleanup(func() { cancel(); <-gone })
	go func() {
		defer close(gone)
		c.done <- c.election.Run(ctx, name, func(leading context.Context, term *elect.Term) error {
			c.term, c.ctx, c.elected = term, leading, time.Now()
			close(c.begun)
			select {
			case <-c.end:
			case <-ctx.Done():
			}
			return nil
		})
	}()
}

func (c *contender) leads(t *testing.T) {
	t.Helper()
	select {
	case <-c.begun:
	case err := <-c.done:
		t.Fatalf("Run returned %v", err)
	case <-time.After(patience):
		t.Fatalf("not elected within %v", patience)
	}
}

func (c *contender) resign() error {
	close(c.end)
	return <-c.done
}

// lost waits until a leader with a cut connection has noticed, and ends its function.
func (c *contender) lost(t *testing.T) {
	t.Helper()
	testbed.Eventually(t, "the leader that was cut off sees its end", patience, func() bool { return c.ctx.Err() != nil })
	err := c.resign()
	if !errors.Is(err, interlock.ErrExpired) && !errors.Is(err, interlock.ErrLost) && !errors.Is(err, interlock.ErrSessionEnded) {
		t.Errorf("the leader that was cut off: Run returned %v", err)
	}
}

// sight contains an observer's events.
type sight struct {
	mu   sync.Mutex
	seen []string
}

func (s system) observe(t *testing.T) *sight {
	t.Helper()
	watching, w := s.candidate(t, "w"), &sight{}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() {
		done <- watching.election.Observe(ctx, name, func(l elect.Leader) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.seen = append(w.seen, l.Identity)
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Observe returned %v", err)
		}
	})
	return w
}

// until waits until identity is the last seen leader.
func (s *sight) until(t *testing.T, identity string) {
	t.Helper()
	testbed.Eventually(t, "an observer sees "+identity, patience, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.seen) > 0 && s.seen[len(s.seen)-1] == identity
	})
}

// leaders returns the seen leaders, without repetitions.
func (s *sight) leaders() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.DeleteFunc(slices.Clone(s.seen), func(identity string) bool { return identity == "" })
	return slices.Compact(all)
}

// TestOutagesLeaveNoCandidateBehind: the test for etcd is in its driver.
func TestOutagesLeaveNoCandidateBehind(t *testing.T) {
	eachSystem(t, func(t *testing.T, s system) {
		electtest.Outages(t, electtest.World{Open: s.open, Accept: s.accept, Faults: outages(s.paths)})
	})
}

// outages returns faults that last longer than a lease, except one.
func outages(f drivertest.Faults) map[string]func() {
	const outage = leaseOfServers + time.Second
	return map[string]func(){
		"lost replies":   func() { f.(drivertest.ReplyDropper).DropReplies(); time.Sleep(outage); f.Heal() },
		"a stopped one":  func() { f.Pause(); time.Sleep(outage); f.Resume() },
		"a short outage": func() { f.Kill(); f.Restart() },
		"a long outage":  func() { f.Kill(); time.Sleep(outage); f.Restart() },
	}
}
