package interop

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/consul"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestConsul runs all tests against Consul's own clients on one server, each on its own
// lock.
func TestConsul(t *testing.T) {
	t.Parallel()
	server := testbed.Consul(t)
	for name, test := range map[string]func(*consulBed){
		"GoLock":             testConsulGoLock,
		"Command":            testConsulCommand,
		"GoSemaphore":        testConsulGoSemaphore,
		"SemaphoreComesLate": testConsulSemaphoreComesLate,
		"NeverTwoAtOnce":     testConsulNeverTwoAtOnce,
		"TheyCrash":          testConsulTheyCrash,
		"ShownAndBroken":     testConsulShownAndBroken,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := &consulBed{T: t, server: server, lock: strings.ToLower(name)}
			client, err := api.NewClient(&api.Config{Address: server.Addr()})
			testbed.OK(t, err)
			b.client = client
			if b.ours, err = consul.Open(t.Context(), &consul.Options{Address: server.Addr(), TTL: foreignSession}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = b.ours.Close(context.Background()) })
			if b.key, err = b.ours.Key(b.lock); err != nil {
				t.Fatal(err)
			}
			test(b)
		})
	}
}

// consulBed is one lock, for our driver and for Consul's clients.
type consulBed struct {
	*testing.T
	server    *testbed.Server
	client    *api.Client
	ours      *consul.Driver
	lock, key string
}

// theirs returns a lock of the Go client, with its own session.
func (b *consulBed) theirs(try bool) *api.Lock {
	b.Helper()
	l, err := b.client.LockOpts(&api.LockOptions{Key: b.key, SessionOpts: &api.SessionEntry{TTL: foreignSession.String(), LockDelay: time.Millisecond},
		LockTryOnce: try, LockWaitTime: 100 * time.Millisecond})
	testbed.OK(b, err)
	return l
}

// acquire waits longer than a session of consul lock plus its lock-delay.
func (b *consulBed) acquire(owner string) driver.Grant {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), 3*patience)
	defer cancel()
	g, err := b.ours.Acquire(ctx, driver.Request{Name: b.lock, Owner: owner})
	if err != nil {
		b.Fatalf("acquire as %s: %v", owner, err)
	}
	return g
}

func (b *consulBed) release(owner string) {
	b.Helper()
	testbed.OK(b, b.ours.Release(b.Context(), b.lock, owner))
}

func (b *consulBed) try(owner string) error {
	_, err := b.ours.Acquire(b.Context(), driver.Request{Name: b.lock, Owner: owner, NoWait: true})
	return err
}

// mustWait requires that their client does not get our lock before we release it.
func (b *consulBed) mustWait(owner string, granted <-chan error) {
	b.Helper()
	select {
	case err := <-granted:
		b.Fatalf("beside us: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	b.release(owner)
	select {
	case err := <-granted:
		testbed.OK(b, err)
	case <-time.After(patience):
		b.Fatal("their client does not get the released lock")
	}
}

// testConsulGoLock checks that each excludes the other, and gets the lock after its release. Tokens
// rise over the turns of the Go client, which deletes the key.
func testConsulGoLock(b *consulBed) {
	first := b.acquire("a")
	if lost, err := b.theirs(true).Lock(nil); lost != nil || err != nil {
		b.Fatalf("the Go client beside us: %v", err)
	}
	theirs, granted := b.theirs(false), make(chan error, 1)
	go func() {
		_, err := theirs.Lock(nil)
		granted <- err
	}()
	b.mustWait("a", granted)
	var held *interlock.HeldError
	if err := b.try("b"); !errors.As(err, &held) || !strings.HasPrefix(held.Owner, "session ") {
		b.Fatalf("beside the Go client: %v", err)
	}
	testbed.OK(b, errors.Join(theirs.Unlock(), theirs.Destroy()))
	if next := b.acquire("b"); next.Token <= first.Token {
		b.Fatalf("token %d after %d", next.Token, first.Token)
	}
	b.release("b")
}

// command runs "consul lock" with a command that prints when it holds, and ends with its input.
func (b *consulBed) command(options ...string) *testbed.Process {
	b.Helper()
	args := append([]string{"lock", "-http-addr=" + b.server.Addr(), "-child-exit-code", "-pass-stdin"}, options...)
	return testbed.Command(b, testbed.Binary(b, "consul"), append(args, strings.TrimSuffix(b.key, "/.lock"), "echo held; read _")...)
}

func says(p *testbed.Process) <-chan error {
	granted := make(chan error, 1)
	go func() {
		if line, ok := <-p.Stdout(); !ok || line != "held" {
			granted <- fmt.Errorf("consul lock printed %q: %s", line, p.Stderr())
			return
		}
		granted <- nil
	}()
	return granted
}

// testConsulCommand is testConsulGoLock for "consul lock".
func testConsulCommand(b *consulBed) {
	first := b.acquire("a")
	p := b.command()
	b.mustWait("a", says(p))
	if err := b.try("b"); !errors.Is(err, interlock.ErrHeld) {
		b.Fatalf("beside consul lock: %v", err)
	}
	testbed.OK(b, p.Stdin().Close()) // a signal sometimes ends consul lock before it has released
	if next := b.acquire("b"); next.Token <= first.Token {
		b.Fatalf("token %d after %d", next.Token, first.Token)
	}
	b.release("b")
}

// testConsulGoSemaphore checks that we refuse to lock a Consul semaphore, whether or not one of
// its slots is held.
func testConsulGoSemaphore(b *consulBed) {
	s, err := b.client.SemaphoreOpts(&api.SemaphoreOptions{Prefix: strings.TrimSuffix(b.key, ".lock"), Limit: 2, SessionTTL: foreignSession.String()})
	testbed.OK(b, err)
	_, err = s.Acquire(nil)
	testbed.OK(b, err)
	var conflict *consul.ConflictError
	if err := b.try("a"); !errors.As(err, &conflict) {
		b.Fatalf("beside a semaphore: %v", err)
	}
	testbed.OK(b, s.Release())
	if err := b.try("a"); !errors.As(err, &conflict) {
		b.Fatalf("over a free semaphore: %v", err)
	}
	testbed.OK(b, s.Destroy())
	b.acquire("a")
	b.release("a")
}

// testConsulSemaphoreComesLate checks that their semaphore refuses our lock.
func testConsulSemaphoreComesLate(b *consulBed) {
	b.acquire("a")
	s, err := b.client.SemaphorePrefix(strings.TrimSuffix(b.key, ".lock"), 2)
	testbed.OK(b, err)
	if _, err := s.Acquire(nil); !errors.Is(err, api.ErrSemaphoreConflict) {
		b.Fatalf("their semaphore beside our lock: %v", err)
	}
	if err := b.try("b"); !errors.Is(err, interlock.ErrHeld) {
		b.Fatalf("after that: %v", err)
	}
	b.release("a")
}

// testConsulNeverTwoAtOnce has both take turns for a while.
func testConsulNeverTwoAtOnce(b *consulBed) {
	const rounds = 20
	ctx, cancel := context.WithTimeout(b.Context(), 3*patience)
	defer cancel()
	n := &turns{TB: b}
	var all sync.WaitGroup
	all.Go(func() { n.ours(ctx, b.ours, b.lock, "we", rounds) })
	all.Go(func() {
		theirs := b.theirs(false)
		for range rounds {
			_, err := theirs.Lock(ctx.Done())
			if err != nil && strings.Contains(err.Error(), "invalid session") {
				// Their client ends the session of its last turn during the next one.
				theirs = b.theirs(false)
				continue
			}
			if err == nil {
				n.take()
				err = theirs.Unlock()
			}
			if err != nil {
				b.Error(err)
				return
			}
		}
	})
	all.Wait()
	if ctx.Err() != nil {
		b.Error("their client does not end")
	}
}

// testConsulTheyCrash checks that we get the lock after their session and its lock-delay.
func testConsulTheyCrash(b *consulBed) {
	first := b.acquire("a")
	p := b.command()
	b.mustWait("a", says(p))
	p.Kill()
	if err := b.try("b"); !errors.Is(err, interlock.ErrHeld) {
		b.Fatalf("right after the crash: %v", err)
	}
	sessions, _, err := b.client.Session().List(nil)
	testbed.OK(b, err)
	pair, _, err := b.client.KV().Get(b.key, nil)
	if err != nil || pair == nil {
		b.Fatalf("the key: %v, %v", pair, err)
	}
	for _, s := range sessions { // its TTL is 15 s, which ends it within 30 s
		if s.ID == pair.Session {
			_, err := b.client.Session().Destroy(s.ID, nil)
			testbed.OK(b, err)
		}
	}
	ctx, cancel := context.WithTimeout(b.Context(), 2*patience) // the lock-delay is 15 s
	defer cancel()
	next, err := b.ours.Acquire(ctx, driver.Request{Name: b.lock, Owner: "b"})
	if err != nil || next.Token <= first.Token {
		b.Fatalf("token %d after %d: %v", next.Token, first.Token, err)
	}
	b.release("b")
}

// testConsulShownAndBroken checks that their hold is shown and can be broken, and that they notice.
func testConsulShownAndBroken(b *consulBed) {
	theirs := b.theirs(false)
	lost, err := theirs.Lock(nil)
	testbed.OK(b, err)
	state, err := b.ours.Lock(b.Context(), b.lock)
	if err != nil || state.Holder == nil || !state.Holder.Foreign {
		b.Fatalf("shown: %+v, %v", state, err)
	}
	_, ok, err := b.ours.Break(b.Context(), driver.Break{Name: b.lock, Owner: state.Holder.Owner, Reason: "its machine burnt down", By: "an operator"})
	if err != nil || !ok {
		b.Fatalf("broken: %v, %v", ok, err)
	}
	select {
	case <-lost:
	case <-time.After(patience):
		b.Fatal("they do not notice")
	}
	b.acquire("a")
	b.release("a")
	_ = theirs.Unlock() // ends its session
}
