package zookeeper

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestConnectionLossIsNotSessionLoss: holders keep their claims and waiters their places while a
// session continues over another connection.
func TestConnectionLossIsNotSessionLoss(t *testing.T) {
	t.Parallel()
	server := borrow(t)
	path := testbed.NewProxy(t, server.Addr())
	var k keyhole
	d := open(t, &Options{Servers: []string{path.Addr()}, TTL: 6 * time.Second, Dial: k.dial})
	other := open(t, &Options{Servers: []string{server.Addr()}, TTL: 6 * time.Second})
	mine, theirs := demand("mine", "me"), demand("theirs", "other")
	grant := mustAcquire(t, d, mine)
	mustAcquire(t, other, theirs)
	waiting := demand("theirs", "me too")
	done := enqueue(t, d, waiting)
	at, ok := d.Contender("mine", "me")
	for range 3 {
		k.reconnect(t, path, d)
		if grant.Lease.Remaining() <= 0 {
			t.Fatal("the lease is over")
		}
	}
	if now, still := d.Contender("mine", "me"); !ok || !still || now != at {
		t.Fatalf("%+v became %+v", at, now)
	}
	select {
	case cause := <-mine.Lost:
		t.Fatalf("received a loss: %v", cause)
	case o := <-done:
		t.Fatalf("the waiter came back: %+v", o)
	default:
	}
	mustRelease(t, other, theirs)
	if o := testbed.Receive(t, done, "the waiter"); o.Err != nil {
		t.Fatal(o.Err)
	}
	mustRelease(t, d, waiting)
	mustRelease(t, d, mine)
}

// reconnect breaks the connection, and waits for another in the same session.
func (k *keyhole) reconnect(t *testing.T, path *testbed.Proxy, d *Driver) {
	t.Helper()
	before := k.dials()
	path.CutAfter(0) // with the next answer
	testbed.Eventually(t, "another connection", patience, func() bool {
		s, err := d.current(t.Context())
		return err == nil && k.dials() > before && s.maySend() == nil
	})
}

// keyhole is a dialer that reads the id and password of a session.
type keyhole struct {
	mu       sync.Mutex
	dialed   int
	greeting []byte // version, timeout, session, length of the password, password
}

func (k *keyhole) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return tapped(func() *tap {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.dialed++
		k.greeting = nil
		return &tap{received: k.peek}
	})(ctx, network, addr)
}

func (k *keyhole) peek(packet []byte, greeting bool) bool {
	if greeting {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.greeting = packet
	}
	return true
}

func (k *keyhole) dials() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.dialed
}

// expire ends the session on the server, by taking it over and closing it.
func (k *keyhole) expire(t *testing.T, addr string) {
	t.Helper()
	k.mu.Lock()
	greeting := k.greeting
	k.mu.Unlock()
	if greeting == nil {
		return // the client has just reconnected
	}
	known := greeting[8 : 8+8+4+16]
	conn, err := net.Dial("tcp", addr)
	testbed.OK(t, err)
	defer conn.Close()
	var hello []byte
	hello = binary.BigEndian.AppendUint32(hello, 0)     // version
	hello = binary.BigEndian.AppendUint64(hello, 0)     // last transaction seen
	hello = binary.BigEndian.AppendUint32(hello, 10000) // timeout
	hello = append(hello, known...)
	const closeSession = -11
	goodbye := binary.BigEndian.AppendUint32(nil, 1)
	op := int32(closeSession)
	goodbye = binary.BigEndian.AppendUint32(goodbye, uint32(op))
	conn.SetDeadline(time.Now().Add(patience))
	for _, packet := range [][]byte{hello, goodbye} {
		_, err := conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(packet))), packet...))
		testbed.OK(t, err)
	}
	_, _ = io.ReadAll(conn) // until the server closes
}

// TestEndedSessionIsTold, and with it every claim, and the client does not continue under another
// session by itself. The next request opens a new one, which adopts nothing of the old one.
func TestEndedSessionIsTold(t *testing.T) {
	t.Parallel()
	server := borrow(t)
	var k keyhole
	d := open(t, &Options{Servers: []string{server.Addr()}, Dial: k.dial})
	holder, waiter := demand("n", "holder"), demand("n", "waiter")
	grant := mustAcquire(t, d, holder)
	done := enqueue(t, d, waiter)
	old, _ := d.Contender("n", "holder")
	testbed.Eventually(t, "the session has ended", patience, func() bool {
		k.expire(t, server.Addr()) // the client may have reconnected already
		return grant.Lease.Remaining() <= 0
	})
	// Nodes are deleted with their session, and a waiter may see that before the client reconnects.
	over := func(err error) bool {
		return errors.Is(err, interlock.ErrSessionEnded) || errors.Is(err, interlock.ErrLost) || errors.Is(err, errNotConnected)
	}
	if cause := testbed.Receive(t, holder.Lost, "word of the loss"); !over(cause) {
		t.Fatalf("cause %v", cause)
	}
	if o := testbed.Receive(t, done, "the waiter"); !over(o.Err) || interlock.Kind(o.Err) != interlock.Retryable {
		t.Fatalf("the waiter: %+v", o)
	}
	testbed.Eventually(t, "the driver has noticed", patience, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.session == nil
	})
	if grant.Lease.Remaining() > 0 {
		t.Fatal("the lease continues")
	}
	dialed := k.dials()
	next := mustAcquire(t, d, waiter)
	now, ok := d.Contender("n", "waiter")
	if !ok || now.Session == old.Session || next.Token <= grant.Token {
		t.Fatalf("%+v with %d came after %+v with %d", now, next.Token, old, grant.Token)
	}
	if again := k.dials(); again != dialed+1 { // the next session, and no more
		t.Fatalf("dialed %d times, and %d after the next session", dialed, again)
	}
	mustRelease(t, d, holder)
}

// TestNodeOfAnotherSessionIsNotBelieved, though it carries our random part and
// is the first in line.
func TestNodeOfAnotherSessionIsNotBelieved(t *testing.T) {
	t.Parallel()
	server := borrow(t)
	d := open(t, &Options{Servers: []string{server.Addr()}})
	operator := dial(t, server.Addr())
	warm := demand("n", "warm")
	mustAcquire(t, d, warm) // until the forged node keeps the lock's node, which is a container
	r := demand("n", "me")
	s, err := d.current(t.Context())
	testbed.OK(t, err)
	c, err := d.register(s, r.Request)
	testbed.OK(t, err)
	forged := c.lock + "/_c_" + c.id + "-lock-"
	_, err = operator.Create(forged, nil, zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll))
	testbed.OK(t, err)
	mustRelease(t, d, warm)
	d.mu.Lock()
	c.unsure = true // as after a request whose answer was lost
	d.mu.Unlock()
	_, err = d.Acquire(bounded(t), r.Request)
	if !errors.Is(err, interlock.ErrSessionEnded) || interlock.Kind(err) != interlock.Retryable {
		t.Fatalf("a node of another session: %v", err)
	}
}

// TestSessionLengthIsTheServers: what it grants counts.
func TestSessionLengthIsTheServers(t *testing.T) {
	t.Parallel()
	server := testbed.ZooKeeper(t, "minSessionTimeout=2000", "maxSessionTimeout=4000")
	for asked, want := range map[time.Duration]time.Duration{
		time.Second: 2 * time.Second, 3 * time.Second: 3 * time.Second, time.Minute: 4 * time.Second,
	} {
		d := open(t, &Options{Servers: []string{server.Addr()}, TTL: asked})
		g := mustAcquire(t, d, demand(fmt.Sprint(asked), "me"))
		if d.Guarantees().TTL != want || g.Lease.Remaining() > want {
			t.Errorf("%v was granted as %v, of which %v remain", asked, d.Guarantees().TTL, g.Lease.Remaining())
		}
	}
}

// TestLateNodeIsRemoved: a request that is executed after its caller has given up and released
// leaves nothing, without another call.
func TestLateNodeIsRemoved(t *testing.T) {
	t.Parallel()
	server := borrow(t)
	path := testbed.NewProxy(t, server.Addr())
	d := open(t, &Options{Servers: []string{path.Addr()}, TTL: 6 * time.Second})
	mustAcquire(t, d, demand("n", "holder")) // keeps the lock's node, which is a container
	operator := dial(t, server.Addr())
	path.DropReplies()
	r := demand("n", "me")
	line := func() int {
		list, _, err := operator.Children("/interlock/n")
		if err != nil && !errors.Is(err, zk.ErrNoNode) {
			t.Fatal(err)
		}
		return len(list)
	}
	uncertain := func(ctx context.Context, op func(context.Context) error) {
		t.Helper()
		if err := op(ctx); interlock.Kind(err) != interlock.Uncertain {
			t.Errorf("without replies: %v", err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		uncertain(ctx, func(ctx context.Context) error { _, err := d.Acquire(ctx, r.Request); return err })
	}()
	testbed.Eventually(t, "it was carried out", patience, func() bool { return line() == 2 })
	cancel()
	testbed.Receive(t, asked, "the answer of a cancelled call")
	ctx, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	uncertain(ctx, func(ctx context.Context) error { return d.Release(ctx, r.Name, r.Owner) })
	path.Heal()
	testbed.Eventually(t, "it is removed", patience, func() bool { return line() == 1 })
	if s, err := d.current(t.Context()); err != nil || s.term.Remaining() <= 0 {
		t.Fatalf("the session is over: %v", err)
	}
}

// TestRequestThatIsNotSent, because its caller was cancelled and has released before the request's
// task began, keeps no release waiting.
func TestRequestThatIsNotSent(t *testing.T) {
	t.Parallel()
	d := open(t, &Options{Servers: []string{borrow(t).Addr()}})
	c, err := d.register(d.session, demand("n", "me").Request)
	testbed.OK(t, err)
	over := make(chan struct{})
	d.mu.Lock()
	c.creating, c.state = over, leaving
	d.mu.Unlock()
	if _, err := d.enterAlone(t.Context(), entry{d.session, c, base{}, over}); interlock.Kind(err) != interlock.Retryable {
		t.Fatal(err)
	}
	testbed.Receive(t, over, "the end of the request")
	mustRelease(t, d, demand("n", "me"))
}

// TestVanishedParent: the node of an unused lock is removed, with its numbers, and is created
// again.
func TestVanishedParent(t *testing.T) {
	t.Parallel()
	server := borrow(t)
	operator := dial(t, server.Addr())
	for name, o := range map[string]Options{"a": {}, "b/c": {RawNames: true}} {
		o.Servers = []string{server.Addr()}
		d := open(t, &o)
		var last interlock.Token
		for i := range 3 {
			r := demand(name, fmt.Sprint(i))
			g := mustAcquire(t, d, r)
			if g.Token <= last {
				t.Fatalf("token %d after %d", g.Token, last)
			}
			last = g.Token
			mustRelease(t, d, r)
			testbed.Eventually(t, "the lock's node is gone", patience, func() bool {
				exists, _, err := operator.Exists("/interlock/" + name)
				return err == nil && !exists
			})
		}
	}
}

// TestDataOfTheNodeMayChange: a change is no loss, and the watch is set again.
func TestDataOfTheNodeMayChange(t *testing.T) {
	t.Parallel()
	server := borrow(t)
	operator := dial(t, server.Addr())
	d := open(t, &Options{Servers: []string{server.Addr()}})
	r := demand("n", "me")
	mustAcquire(t, d, r)
	at, _ := d.Contender("n", "me")
	watches := count(t, server, "zk_watch_count")
	_, err := operator.Set(at.Path, []byte("x"), -1)
	testbed.OK(t, err)
	testbed.Eventually(t, "it is watched again", patience, func() bool { return count(t, server, "zk_watch_count") == watches })
	testbed.OK(t, operator.Delete(at.Path, -1))
	if cause := testbed.Receive(t, r.Lost, "word of the loss"); !errors.Is(cause, interlock.ErrLost) {
		t.Fatalf("cause %v", cause)
	}
}
