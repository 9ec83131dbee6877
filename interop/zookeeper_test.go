package interop

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/zookeeper"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// The versions that scripts/cache.sh provides.
const (
	curatorVersion = "5.9.0"
	kazooVersion   = "2.10.0"
)

// Sessions of foreign clients are short, so that crashed ones end soon, and longer than a busy machine is late.
const foreignSession = 5 * time.Second

// zkBed is a server with our driver.
type zkBed struct {
	*testing.T
	server *testbed.Server
	conn   *zk.Conn // of the operator
	ours   *zookeeper.Driver
}

func onZooKeeper(t *testing.T, server *testbed.Server, o zookeeper.Options) *zkBed {
	t.Helper()
	b := &zkBed{T: t, server: server}
	b.conn = b.dial()
	b.ours = b.open(o)
	return b
}

func (b *zkBed) open(o zookeeper.Options) *zookeeper.Driver {
	b.Helper()
	o.Servers, o.TTL = []string{b.server.Addr()}, foreignSession
	d, err := zookeeper.Open(b.Context(), &o)
	testbed.OK(b, err)
	testbed.CloseAfter(b, d)
	return d
}

type silent struct{}

func (silent) Printf(string, ...any) {}

func (b *zkBed) dial() *zk.Conn {
	b.Helper()
	conn, events, err := zk.Connect([]string{b.server.Addr()}, foreignSession, zk.WithLogger(silent{}), zk.WithLogInfo(false))
	testbed.OK(b, err)
	b.Cleanup(func() {
		conn.Close()
		for range events {
		}
	})
	return conn
}

// inLine counts the nodes below a lock's.
func (b *zkBed) inLine(path string) int {
	b.Helper()
	list, _, err := b.conn.Children(path)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		b.Fatal(err)
	}
	return len(list)
}

// contend starts a contender for the lock at path, and returns when it is
// queued.
func (b *zkBed) contend(who, path string, acquire func() error, release func()) *contender {
	b.Helper()
	c := &contender{who: who, granted: make(chan error, 1), release: release}
	before := b.inLine(path)
	go func() { c.granted <- acquire() }()
	testbed.Eventually(b, who+" is in line", patience, func() bool { return b.inLine(path) > before })
	return c
}

// us adds a contender with our driver.
func (b *zkBed) us(path, owner string) *contender {
	b.Helper()
	name := strings.TrimPrefix(path, "/interlock/")
	ctx, cancel := context.WithTimeout(b.Context(), 2*patience)
	b.Cleanup(cancel)
	return b.contend(owner, path, func() error {
		_, err := b.ours.Acquire(ctx, driver.Request{Name: name, Owner: owner})
		return err
	}, func() {
		if err := b.ours.Release(context.Background(), name, owner); err != nil {
			b.Errorf("release %s: %v", owner, err)
		}
	})
}

// zkClient is one foreign client, with its own session.
type zkClient struct {
	lock  func(path string) *contender
	crash func()
}

// goClient returns the lock of the Go client, over a path that can be cut.
func (b *zkBed) goClient() zkClient {
	b.Helper()
	path := testbed.NewProxy(b, b.server.Addr())
	conn, events, err := zk.Connect([]string{path.Addr()}, foreignSession, zk.WithLogger(silent{}), zk.WithLogInfo(false))
	testbed.OK(b, err)
	b.Cleanup(func() {
		path.Heal()
		conn.Close()
		for range events {
		}
	})
	return zkClient{crash: path.Cut, lock: func(at string) *contender {
		l := zk.NewLock(conn, at, zk.WorldACL(zk.PermAll))
		return b.contend("go-zookeeper", at, l.Lock, func() {
			if err := l.Unlock(); err != nil {
				b.Errorf("unlock: %v", err)
			}
		})
	}}
}

// program starts a foreign client in a separate process, which receives commands.
func (b *zkBed) program(who string, program testbed.Program) zkClient {
	b.Helper()
	p := testbed.Start(b, program)
	if line := p.Line(patience); line != "ready" {
		b.Fatalf("%s says %q", who, line)
	}
	say := func(command, at, want string) error {
		if _, err := fmt.Fprintln(p.Stdin(), command, at); err != nil {
			return err
		}
		if line := <-p.Stdout(); line != want+" "+at {
			return fmt.Errorf("%s answered %q to %q", who, line, command)
		}
		return nil
	}
	return zkClient{crash: p.Kill, lock: func(at string) *contender {
		return b.contend(who, at, func() error { return say("acquire", at, "held") }, func() {
			if err := say("release", at, "released"); err != nil {
				b.Error(err)
			}
		})
	}}
}

func (b *zkBed) curator() zkClient {
	b.Helper()
	jars := filepath.Join(testbed.Peer(b, "curator", curatorVersion), "*")
	return b.program("curator", testbed.Program{Path: "java", Args: []string{"-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", jars,
		"testdata/zookeeper/curator/LockClient.java", b.server.Addr(), fmt.Sprint(foreignSession.Milliseconds())}})
}

func (b *zkBed) kazoo(patterns ...string) zkClient {
	b.Helper()
	args := []string{"testdata/zookeeper/kazoo/lock_client.py", b.server.Addr(), fmt.Sprint(foreignSession.Seconds())}
	return b.program("kazoo", testbed.Program{Path: "python3", Args: append(args, patterns...),
		Env: []string{"PYTHONPATH=" + testbed.Peer(b, "kazoo", kazooVersion), "PYTHONDONTWRITEBYTECODE=1"}})
}

// mustWait requires that c is not granted for a while.
func (b *zkBed) mustWait(c *contender) {
	b.Helper()
	select {
	case err := <-c.granted:
		b.Fatalf("%s was not to have it yet: %v", c.who, err)
	case <-time.After(100 * time.Millisecond):
	}
}

// TestZooKeeperClientsExcludeEachOther runs each kind in both directions, in one queue,
// through releases and the crash of either side.
func TestZooKeeperClientsExcludeEachOther(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		options zookeeper.Options
		open    func(*zkBed) zkClient
	}{
		"go-zookeeper":    {zookeeper.Options{}, (*zkBed).goClient},
		"curator":         {zookeeper.Options{}, (*zkBed).curator},
		"kazoo tolerated": {zookeeper.Options{TolerateKazoo: true}, func(b *zkBed) zkClient { return b.kazoo("lock-") }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := onZooKeeper(t, testbed.Shared(t, testbed.ZooKeeper), c.options)
			them := c.open(b)
			path := "/interlock/" + strings.ReplaceAll(name, " ", "-")
			for _, lock := range []string{"-report", "-again"} {
				b.takeTurns(path+lock, them)
			}
			b.survivesACrash(path+"-crash", them)
			b.survivesOurCrash(path+"-ours", c.options, c.open(b))
		})
	}
}

func (b *zkBed) takeTurns(path string, them zkClient) {
	b.Helper()
	first := b.us(path, "first")
	first.mustHold(b)
	foreign := them.lock(path)
	second := b.us(path, "second")
	b.mustWait(foreign)
	first.release()
	foreign.mustHold(b)
	b.mustWait(second)
	b.mustShow(path, foreign.who, "second")
	foreign.release()
	second.mustHold(b)
	second.release()
	if n := b.inLine(path); n != 0 {
		b.Fatalf("%d nodes are left", n)
	}
}

// mustShow requires that the inspector identifies the foreign holder.
func (b *zkBed) mustShow(path, holder, waiter string) {
	b.Helper()
	state, err := b.ours.Lock(b.Context(), strings.TrimPrefix(path, "/interlock/"))
	testbed.OK(b, err)
	if state.Holder == nil || !state.Holder.Foreign || !strings.HasPrefix(state.Holder.Owner, holder+" ") ||
		len(state.Waiters) != 1 || state.Waiters[0].Owner != waiter || state.Waiters[0].Foreign {
		b.Fatalf("the inspector shows %+v and %+v", state.Holder, state.Waiters)
	}
}

func (b *zkBed) survivesACrash(path string, them zkClient) {
	b.Helper()
	foreign := them.lock(path)
	foreign.mustHold(b)
	next := b.us(path, "next")
	b.mustWait(next)
	them.crash()
	next.mustHold(b)
	next.release()
}

func (b *zkBed) survivesOurCrash(path string, o zookeeper.Options, them zkClient) {
	b.Helper()
	proxy := testbed.NewProxy(b, b.server.Addr())
	o.Servers, o.TTL = []string{proxy.Addr()}, foreignSession
	dying, err := zookeeper.Open(b.Context(), &o)
	testbed.OK(b, err)
	defer dying.Close(context.Background())
	name := strings.TrimPrefix(path, "/interlock/")
	grant, err := dying.Acquire(b.Context(), driver.Request{Name: name, Owner: "dying"})
	testbed.OK(b, err)
	foreign := them.lock(path)
	b.mustWait(foreign)
	proxy.Cut()
	foreign.mustHold(b)
	if left := grant.Lease.Remaining(); left > 0 {
		b.Fatalf("%s has it while our lease has %v left", foreign.who, left)
	}
	foreign.release()
}

// TestKazooIsRefused: without the pattern kazoo ignores our nodes, so we refuse to lock
// beside it, and leave nothing.
func TestKazooIsRefused(t *testing.T) {
	t.Parallel()
	b := onZooKeeper(t, testbed.Shared(t, testbed.ZooKeeper), zookeeper.Options{})
	them := b.kazoo()
	const path = "/interlock/shared"
	foreign := them.lock(path)
	foreign.mustHold(b)
	for _, noWait := range []bool{false, true} {
		_, err := b.ours.Acquire(b.Context(), driver.Request{Name: "shared", Owner: "us", NoWait: noWait})
		var family *zookeeper.FamilyError
		if !errors.As(err, &family) || !strings.Contains(family.Node, "__lock__") || interlock.Kind(err) != interlock.Definite {
			t.Fatalf("beside kazoo: %v", err)
		}
		if n := b.inLine(path); n != 1 {
			t.Fatalf("%d nodes in line", n)
		}
	}
	foreign.release()
	c := b.us(path, "later")
	c.mustHold(b)
	c.release()
}

// TestForeignHolderHasAToken checks that a foreign holder can write under our guard, in the
// order of the queue, also after a raise of the base.
func TestForeignHolderHasAToken(t *testing.T) {
	t.Parallel()
	b := onZooKeeper(t, testbed.ZooKeeper(t), zookeeper.Options{}) // the raise is of all locks of a server
	const path = "/interlock/data"
	acquire := func(d *zookeeper.Driver, owner string) interlock.Token {
		g, err := d.Acquire(b.Context(), driver.Request{Name: "data", Owner: owner})
		testbed.OK(t, err)
		testbed.OK(t, d.Release(b.Context(), "data", owner))
		return g.Token
	}
	before := acquire(b.ours, "before")
	foreign := b.goClient().lock(path)
	foreign.mustHold(b)
	list, _, err := b.conn.Children(path)
	if err != nil || len(list) != 1 {
		t.Fatalf("%q, %v", list, err)
	}
	_, stat, err := b.conn.Exists(path + "/" + list[0])
	testbed.OK(t, err)
	later := b.open(zookeeper.Options{Now: func() time.Time { return time.Now().Add(time.Hour) }})
	theirs, err := later.Token(b.Context(), stat.Czxid)
	testbed.OK(t, err)
	if czxid, err := b.ours.Zxid(b.Context(), theirs); err != nil || czxid != stat.Czxid {
		t.Fatalf("%#x came back as %#x, %v", stat.Czxid, czxid, err)
	}
	foreign.release()
	if after := acquire(b.ours, "after"); before >= theirs || theirs >= after {
		t.Fatalf("tokens %d, %d, %d are not in the order of the line", before, theirs, after)
	}
}
