package kafka

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/observe"
)

// audit is what guarded writes of handlers leave: the guard keeps the highest token of each
// partition, and refuses lower ones.
type audit struct {
	mu      sync.Mutex
	marks   map[string]interlock.Token
	last    map[string]string // id by key, and its token
	under   map[string]interlock.Token
	times   map[string]int // by id
	refused int
	wrong   []string
	changed chan struct{}
}

func newAudit() *audit {
	return &audit{marks: map[string]interlock.Token{}, last: map[string]string{}, under: map[string]interlock.Token{}, times: map[string]int{}, changed: make(chan struct{})}
}

// write is one write of a handler. Ids of a key rise; one may come again, but not an earlier one
// after a later one, unless its assignment is a later one.
func (a *audit) write(claim string, token interlock.Token, key, id string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if token < a.marks[claim] {
		a.refused++
		return fmt.Errorf("%w: %v after %v", interlock.ErrStaleToken, token, a.marks[claim])
	}
	if last := a.last[key]; id < last && token == a.under[key] {
		a.wrong = append(a.wrong, id+" after "+last)
	}
	a.marks[claim], a.last[key], a.under[key] = token, id, token
	a.times[id]++
	close(a.changed)
	a.changed = make(chan struct{})
	return nil
}

// handle is a handler that writes.
func (a *audit) handle(_ context.Context, m queue.Received) error {
	return a.write(m.Claim.Name(), m.Claim.Token(), m.Key, m.ID)
}

// wait waits until n ids are written.
func (a *audit) wait(t *testing.T, n int) {
	t.Helper()
	timer := time.NewTimer(time.Minute)
	defer timer.Stop()
	for {
		a.mu.Lock()
		got, changed := len(a.times), a.changed
		a.mu.Unlock()
		if got >= n {
			return
		}
		select {
		case <-changed:
		case <-timer.C:
			t.Fatalf("%d of %d messages were handled", got, n)
		}
	}
}

// check requires that all of the ids are written in order, and each at most so often.
func (a *audit) check(t *testing.T, ids []string, most int) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.wrong) > 0 {
		t.Errorf("out of order: %v", a.wrong)
	}
	for _, id := range ids {
		if n := a.times[id]; n < 1 || n > most {
			t.Errorf("%s was handled %d times", id, n)
		}
	}
}

// ids of n messages for each of some keys.
func ids(keys, from, n int) (all []string) {
	for i := range n {
		for k := range keys {
			all = append(all, fmt.Sprintf("%d/%04d", k, from+i))
		}
	}
	return all
}

// start consumes the topic of a scene.
func (s *scene) start(o *QueueOptions, handler queue.Handler) *queue.Consumer {
	s.Helper()
	c, err := queue.New(s.Context(), s.queue(o), s.topic, handler, &queue.Options{Lease: lease, MinPause: time.Millisecond, Hooks: quiet(s.T)})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { s.stop(c) })
	return c
}

func (s *scene) stop(c *queue.Consumer) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_ = c.Close(ctx)
}

func quiet(t *testing.T) *observe.Queue {
	return &observe.Queue{Failed: func(observe.QueueFailed) {}, Lost: func(observe.QueueLost) {},
		Trouble: func(e observe.QueueTrouble) { t.Logf("%s %s: %v", e.Op, e.Queue, e.Err) }}
}

// TestRebalance adds and removes consumers under load: every message is handled once, and those
// of a key in order, because a partition is given up when its handlers have returned.
func TestRebalance(t *testing.T) {
	for name, o := range map[string]*QueueOptions{"classic": nil, "server-side": {ServerSide: true}} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, 4)
			const keys, each = 20, 100
			all := ids(keys, 0, each)
			a := newAudit()
			slow := func(ctx context.Context, m queue.Received) error {
				pause(context.WithoutCancel(ctx), 5*time.Millisecond)
				return a.handle(ctx, m)
			}
			s.add(all[:len(all)/2]...)
			one := s.start(o, slow)
			a.wait(t, 100)
			two, three := s.start(o, slow), s.start(o, slow)
			a.wait(t, len(all)/4)
			s.stop(one)
			s.add(all[len(all)/2:]...)
			a.wait(t, len(all)/2)
			s.stop(three)
			s.start(o, slow)
			a.wait(t, len(all))
			s.stop(two)
			a.check(t, all, 1)
		})
	}
}

// TestRevokeWaits: a partition is given up when the handlers that have its messages have
// returned; their contexts last so long.
func TestRevokeWaits(t *testing.T) {
	s := newScene(t, 4)
	all := ids(20, 0, 2)
	s.add(all...)
	a := newAudit()
	begun, moved, done := make(chan struct{}, len(all)), make(chan error, len(all)), make(chan struct{})
	s.start(nil, func(ctx context.Context, m queue.Received) error {
		begun <- struct{}{}
		select {
		case <-m.Claim.Revoked():
			pause(context.WithoutCancel(ctx), 200*time.Millisecond)
			moved <- ctx.Err()
		case <-done:
		}
		return a.handle(ctx, m)
	})
	for range 20 {
		<-begun
	}
	s.start(nil, a.handle)
	if err := <-moved; err != nil {
		t.Errorf("a handler's context ended: %v", err)
	}
	close(done)
	a.wait(t, len(all))
	a.check(t, all, 1)
}

// TestZombie stops a consumer's process in a handler until the session has timed out, and lets
// it go on when another one has handled its messages. Its write is refused.
func TestZombie(t *testing.T) {
	s := newScene(t, 2)
	all := ids(6, 0, 20)
	s.add(all...)
	a := newAudit()
	begun := make(chan struct{}, 1000)
	guard := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		if q.Has("begin") {
			begun <- struct{}{}
			return
		}
		token, err := interlock.ParseToken(q.Get("token"))
		if err == nil {
			err = a.write(q.Get("claim"), token, q.Get("key"), q.Get("id"))
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
		}
	}))
	t.Cleanup(guard.Close)
	child := exec.Command(os.Args[0], "-test.run=^$")
	child.Env = append(os.Environ(), "KAFKA_TEST_CHILD="+s.addr, "KAFKA_TEST_TOPIC="+s.topic, "KAFKA_TEST_GUARD="+guard.URL)
	child.Stderr = os.Stderr
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	})
	for range 6 {
		select {
		case <-begun:
		case <-time.After(time.Minute):
			t.Fatal("the process handles nothing")
		}
	}
	if err := child.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	other := s.start(nil, a.handle)
	a.wait(t, len(all))
	if err := child.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	testbed.Eventually(t, "the guard refuses the late write", time.Minute, func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.refused > 0
	})
	s.stop(other) // what comes now is for the process that was stopped
	more := ids(6, 20, 5)
	s.add(more...)
	a.wait(t, len(all)+len(more))
	a.check(t, append(all, more...), 3)
}

// child is the process that is stopped. Its handlers announce themselves, take a while, and
// write.
func child(addr, topic, guard string) error {
	q, err := OpenQueue("kafka://"+addr, nil)
	if err != nil {
		return err
	}
	ask := func(m queue.Received, how string) error {
		r, err := http.Get(fmt.Sprintf("%s/?%s&claim=%s&token=%v&key=%s&id=%s", guard, how, m.Claim.Name(), m.Claim.Token(), m.Key, m.ID))
		if err != nil {
			return err
		}
		defer r.Body.Close()
		if r.StatusCode != http.StatusOK {
			return errors.New(r.Status)
		}
		return nil
	}
	_, err = queue.New(context.Background(), q, topic, func(_ context.Context, m queue.Received) error {
		if err := ask(m, "begin"); err != nil {
			return err
		}
		pause(context.Background(), 500*time.Millisecond)
		return ask(m, "write")
	}, &queue.Options{Lease: 2 * time.Second, Hooks: &observe.Queue{Log: observe.Silent}})
	if err != nil {
		return err
	}
	select {}
}

// TestBrokerRestarts: consumers go on after the broker was killed. Nothing is lost, and the
// order of keys holds.
func TestBrokerRestarts(t *testing.T) {
	t.Parallel()
	server := testbed.Kafka(t)
	s := &scene{t, server.Addr(), newTopic(t, server.Addr(), 4)}
	all := ids(10, 0, 100)
	s.add(all...)
	a := newAudit()
	slow := func(ctx context.Context, m queue.Received) error {
		pause(ctx, 5*time.Millisecond)
		return a.handle(ctx, m)
	}
	s.start(nil, slow)
	s.start(nil, slow)
	a.wait(t, len(all)/4)
	server.Kill()
	server.Restart()
	a.wait(t, len(all))
	a.check(t, all, 3)
}
