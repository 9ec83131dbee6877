package elect_test

import (
	"context"
	"database/sql"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	client "github.com/go-sql-driver/mysql"
	"github.com/go-zookeeper/zk"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/elect"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/consul"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/driver/zookeeper"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

const (
	leaseOfServers = 2 * time.Second
	patience       = 20 * time.Second // bounds every wait for a condition
)

// system is a real system; that of etcd is in its driver, whose module has the client. Systems
// without values hand over to the first waiter.
type system struct {
	open   func(t *testing.T) (driver.Fenced, driver.Values)
	crash  func(t *testing.T, d driver.Fenced)
	cut    func()
	heal   func()
	faults drivertest.Faults
	accept interlock.Faults // the minimum that it needs
}

var systems = map[string]func(t *testing.T) system{
	"redis": func(t *testing.T) system {
		p := paths.New[driver.Fenced](testbed.Redis(t))
		return system{crash: p.Crash, cut: p.Cut, heal: p.Heal, faults: p, accept: interlock.AsyncFailover | interlock.ServerCrash,
			open: func(t *testing.T) (driver.Fenced, driver.Values) {
				var v driver.Values
				d := lead(t, p, func(path *testbed.Proxy) (driver.Fenced, error) {
					client, err := redis.Dial("redis://" + path.Addr())
					if err != nil {
						return nil, err
					}
					t.Cleanup(client.Close)
					v = redis.NewValues(client, "")
					return redis.Open(t.Context(), client, &redis.Options{TTL: leaseOfServers})
				})
				return d, v
			}}
	},
	"postgres": func(t *testing.T) system {
		server := testbed.Postgres(t, "-c", "fsync=on") // otherwise it guarantees nothing after a crash
		p := paths.New[driver.Fenced](server)
		pool, err := pgxpool.New(t.Context(), server.URL())
		testbed.OK(t, err)
		t.Cleanup(pool.Close)
		return system{crash: p.Crash, cut: p.Cut, heal: p.Heal, faults: p, open: func(t *testing.T) (driver.Fenced, driver.Values) {
			d := lead(t, p, func(path *testbed.Proxy) (driver.Fenced, error) {
				config := pool.Config().ConnConfig.Copy()
				at := netip.MustParseAddrPort(path.Addr())
				config.Host, config.Port = at.Addr().String(), at.Port()
				return postgres.Open(t.Context(), config, &postgres.Options{TTL: leaseOfServers})
			})
			return d, postgres.NewValues(pool, "election_values")
		}}
	},
	"postgres-table": func(t *testing.T) system {
		p := paths.New[driver.Fenced](testbed.Postgres(t, "-c", "fsync=on"))
		return system{crash: p.Crash, cut: p.Cut, heal: p.Heal, faults: p, accept: interlock.AsyncFailover, open: func(t *testing.T) (driver.Fenced, driver.Values) {
			return lead(t, p, func(path *testbed.Proxy) (driver.Fenced, error) {
				pool, err := pgxpool.New(t.Context(), "postgres://postgres@"+path.Addr()+"/postgres?sslmode=disable")
				if err != nil {
					return nil, err
				}
				t.Cleanup(pool.Close)
				return postgres.OpenTable(t.Context(), pool, &postgres.TableOptions{TTL: leaseOfServers})
			}), nil
		}}
	},
	"zookeeper": func(t *testing.T) system {
		server := testbed.ZooKeeper(t)
		p := paths.New[driver.Fenced](server)
		conn, events, err := zk.Connect([]string{server.Addr()}, patience, zk.WithLogInfo(false), zk.WithDialer(zookeeper.Dialer(leaseOfServers, nil)))
		testbed.OK(t, err)
		t.Cleanup(func() {
			conn.Close()
			for range events {
			}
		})
		return system{crash: p.Crash, cut: p.Cut, heal: p.Heal, faults: p, open: func(t *testing.T) (driver.Fenced, driver.Values) {
			d := lead(t, p, func(path *testbed.Proxy) (driver.Fenced, error) {
				return zookeeper.Open(t.Context(), &zookeeper.Options{Servers: []string{path.Addr()}, Root: "/elections", TTL: leaseOfServers})
			})
			return d, zookeeper.NewValues(conn, "/elections")
		}}
	},
	"consul": func(t *testing.T) system {
		server := testbed.Consul(t)
		p := paths.New[driver.Fenced](server)
		return system{crash: p.Crash, cut: p.Cut, heal: p.Heal, faults: p, open: func(t *testing.T) (driver.Fenced, driver.Values) {
			d := lead(t, p, func(path *testbed.Proxy) (driver.Fenced, error) {
				return consul.Open(t.Context(), &consul.Options{Address: path.Addr(), TTL: leaseOfServers})
			})
			v, err := consul.NewValues(&consul.Options{Address: server.Addr()})
			testbed.OK(t, err)
			t.Cleanup(func() { _ = v.Close(context.Background()) })
			return d, v
		}}
	},
	"mysql": func(t *testing.T) system {
		p := paths.New[driver.Fenced](testbed.MariaDB(t, "--innodb-flush-method=fsync"))
		return system{crash: p.Crash, cut: p.Cut, heal: p.Heal, faults: p, accept: interlock.Partition, open: func(t *testing.T) (driver.Fenced, driver.Values) {
			return lead(t, p, func(path *testbed.Proxy) (driver.Fenced, error) {
				config, err := client.ParseDSN("root@tcp(" + path.Addr() + ")/test")
				if err != nil {
					return nil, err
				}
				return mysql.Open(t.Context(), config, &mysql.Options{TTL: leaseOfServers})
			}), nil
		}}
	},
	"mysql-table": func(t *testing.T) system {
		p := paths.New[driver.Fenced](testbed.MariaDB(t, "--innodb-flush-method=fsync"))
		return system{crash: p.Crash, cut: p.Cut, heal: p.Heal, faults: p, accept: interlock.AsyncFailover, open: func(t *testing.T) (driver.Fenced, driver.Values) {
			return lead(t, p, func(path *testbed.Proxy) (driver.Fenced, error) {
				db, err := sql.Open("mysql", "root@tcp("+path.Addr()+")/test")
				if err != nil {
					return nil, err
				}
				t.Cleanup(func() { db.Close() })
				return mysql.OpenTable(t.Context(), db, &mysql.Options{TTL: leaseOfServers})
			}), nil
		}}
	},
}

func lead(t *testing.T, p *paths.Server[driver.Fenced], open func(*testbed.Proxy) (driver.Fenced, error)) driver.Fenced {
	t.Helper()
	d, err := p.Lead(t, open)
	testbed.OK(t, err)
	return d
}

// TestSystems hands a leadership over, cuts the successor's connection, then all
// connections for a while, and compares an observer's events.
func TestSystems(t *testing.T) {
	t.Parallel()
	for name, start := range systems {
		t.Run(name, func(t *testing.T) {
			if testing.Short() {
				t.Skip("runs a server: not with -short")
			}
			t.Parallel()
			s := start(t)
			a, b, c, d := s.candidate(t, "a"), s.candidate(t, "b"), s.candidate(t, "c"), s.candidate(t, "d")
			seen := s.observe(t)
			seen.until(t, "")
			a.campaign(t)
			a.leads(t, patience)
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
			s.crash(t, c.driver)
			b.leads(t, 3*leaseOfServers)
			t.Logf("the leader died, and another led %v later", b.elected.Sub(crashed))
			seen.until(t, "b")
			c.lost(t)

			s.cut() // also the observer
			b.lost(t)
			s.heal()
			d.campaign(t)
			d.leads(t, patience)
			seen.until(t, "d")
			if err := d.resign(); err != nil {
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
	to.leads(t, patience)
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

func (c *contender) leads(t *testing.T, within time.Duration) {
	t.Helper()
	select {
	case <-c.begun:
	case err := <-c.done:
		t.Fatalf("Run returned %v", err)
	case <-time.After(within):
		t.Fatalf("not elected within %v", within)
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
