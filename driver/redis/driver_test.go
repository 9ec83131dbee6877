package redis

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/hints"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// bound is the time limit for events that tests expect soon.
const bound = testbed.Patience

func keysOf(lock string) keys { return layout{}.keysOf(lock) }

// openOn opens a driver on its own client until the test ends.
func openOn(t testing.TB, addr string, o *Options) *Driver {
	t.Helper()
	return openWith(t, dial(t, addr), o)
}

func openWith(t testing.TB, client rueidis.Client, o *Options) *Driver {
	t.Helper()
	d, err := Open(t.Context(), client, o)
	testbed.OK(t, err)
	testbed.CloseAfter(t, d)
	return d
}

var owners atomic.Int64

func newOwner() string { return fmt.Sprintf("test/%d", owners.Add(1)) }

// take acquires name, or fails the test; it returns the owner.
func take(t testing.TB, d driver.Fenced, name string) (string, driver.Grant) {
	t.Helper()
	r := driver.Request{Name: name, Owner: newOwner()}
	grant, err := d.Acquire(testbed.Bounded(t), r)
	testbed.OK(t, err)
	return r.Owner, grant
}

func release(t testing.TB, d driver.Fenced, name, owner string) {
	t.Helper()
	testbed.OK(t, d.Release(t.Context(), name, owner))
}

// outcome of an Acquire in the background.
type outcome struct {
	owner string
	grant driver.Grant
	err   error
}

// await starts to acquire name and returns when it has a place in the queue.
func await(t testing.TB, d driver.Fenced, name string) <-chan outcome {
	t.Helper()
	placed, done := make(chan struct{}, 1), make(chan outcome, 1)
	r := driver.Request{Name: name, Owner: newOwner(), Events: driver.Events{Waiting: func(driver.Place) { hints.Signal(placed) }}}
	ctx := t.Context()
	go func() {
		grant, err := d.Acquire(ctx, r)
		done <- outcome{r.Owner, grant, err}
	}()
	testbed.Receive(t, placed, "a place of "+name)
	return done
}

func receive(t testing.TB, done <-chan outcome, within time.Duration) outcome {
	t.Helper()
	select {
	case o := <-done:
		testbed.OK(t, o.err)
		return o
	case <-time.After(within):
		t.Fatalf("no grant within %v", within)
	}
	panic("not reached")
}

func raw(t testing.TB, client rueidis.Client, command ...string) rueidis.RedisResult {
	t.Helper()
	return client.Do(context.Background(), client.B().Arbitrary(command...).Build())
}

// mustDo runs one command on the server, or fails the test.
func mustDo(t testing.TB, client rueidis.Client, words ...string) {
	t.Helper()
	if err := raw(t, client, words...).Error(); err != nil {
		t.Fatalf("%q: %v", words, err)
	}
}

// number returns the answer to one command.
func number(t testing.TB, client rueidis.Client, words ...string) int64 {
	t.Helper()
	n, err := raw(t, client, words...).AsInt64()
	if err != nil {
		t.Fatalf("%q: %v", words, err)
	}
	return n
}

// calls returns how often each command was called, also from scripts.
func calls(t testing.TB, client rueidis.Client) map[string]int {
	t.Helper()
	text, err := raw(t, client, "INFO", "commandstats").ToString()
	testbed.OK(t, err)
	counts := map[string]int{}
	for line := range strings.Lines(text) {
		name, rest, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		if number, _, found := strings.Cut(rest, ","); ok && found {
			if counts[name], err = strconv.Atoi(number); err != nil {
				t.Fatal(err)
			}
		}
	}
	return counts
}

// since returns the calls after before.
func since(t testing.TB, client rueidis.Client, before map[string]int) map[string]int {
	t.Helper()
	after := calls(t, client)
	for name, n := range before {
		if after[name] -= n; after[name] == 0 {
			delete(after, name)
		}
	}
	return after
}

func TestUncontendedCostsTwoRequests(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator, d := dial(t, server.Addr()), openOn(t, server.Addr(), nil)
	before := calls(t, operator)
	const rounds = 25
	for i := range rounds {
		name := fmt.Sprint("free/", i%3)
		owner, _ := take(t, d, name)
		release(t, d, name, owner)
	}
	spent := since(t, operator, before)
	delete(spent, "zcard") // one of 64 grants checks the index
	if spent["evalsha"] != 2*rounds {
		t.Errorf("%d requests for %d acquisitions and releases, want two each", spent["evalsha"], rounds)
	}
	commands := -2 * rounds // the scripts themselves
	for name, n := range spent {
		if name != "info" && name != "ping" && name != "hello" {
			commands += n
		}
	}
	if commands > 9*rounds+20 { // 20 for a check of the index
		t.Errorf("%d commands inside scripts for %d pairs, at most 9 each are allowed: %v", commands, rounds, spent)
	}
	// The commands of the scripts, the reading of the counters, and the client's
	// keep-alive and second connection.
	inner := "time get getset set del exists zadd zrem zrange zpopmin publish info ping evalsha hello client"
	for name, n := range spent {
		if !strings.Contains(" "+inner+" ", " "+name+" ") {
			t.Errorf("%d calls of %s, which should not be needed", n, name)
		}
	}
}

func TestHandOverCostsTwoRequests(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator := dial(t, server.Addr())
	a, b := openOn(t, server.Addr(), nil), openOn(t, server.Addr(), nil)
	owner, _ := take(t, a, "hot")
	const rounds = 50
	before, began := calls(t, operator), time.Now()
	for range rounds {
		a, b = b, a
		next := await(t, a, "hot")
		release(t, b, "hot", owner)
		owner = receive(t, next, bound).owner
	}
	spent, took := since(t, operator, before), time.Since(began)
	heartbeats := int(took/heartbeat) + 1 // of requests that happen to wait then
	scripts, commands := spent["evalsha"], 0
	if scripts < 2*rounds || scripts > 3*rounds+heartbeats {
		t.Errorf("%d requests for %d hand-overs in %v, want two each, and one to confirm what is held for long", scripts, rounds, took)
	}
	for name, n := range spent {
		if name != "info" && name != "ping" && name != "evalsha" {
			commands += n
		}
	}
	confirmed := scripts - 2*rounds // each with two commands
	if commands -= 2 * confirmed; commands > 16*rounds+20*heartbeats {
		t.Errorf("%d commands inside scripts for %d hand-overs, at most 16 each are allowed: %v", commands, rounds, spent)
	}
	// One push, and for watchers one message each for the arrival and the grant.
	if spent["publish"] != 3*rounds {
		t.Errorf("%d messages for %d hand-overs, want three each", spent["publish"], rounds)
	}
	release(t, a, "hot", owner)
}

func TestThousandLocksRenewInFewRequests(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator, d := dial(t, server.Addr()), openOn(t, server.Addr(), nil)
	const locks = 1000
	var renewed, failed atomic.Int64
	grants := make([]driver.Grant, locks)
	for i := range locks {
		grant, err := d.Acquire(t.Context(), driver.Request{Name: fmt.Sprint("many/", i), Owner: newOwner(),
			Events: driver.Events{
				Renewed: func(_ time.Duration, err error) {
					if renewed.Add(1); err != nil {
						failed.Add(1)
					}
				},
				Lost: func(error) { failed.Add(1) },
			}})
		testbed.OK(t, err)
		grants[i] = grant
	}
	before, began := calls(t, operator), time.Now()
	testbed.Eventually(t, "all locks are renewed", DefaultTTL, func() bool { return renewed.Load() >= locks })
	requests, took := since(t, operator, before)["evalsha"], time.Since(began)
	t.Logf("%d locks renewed by %d requests in %v", locks, requests, took.Round(time.Millisecond))
	if perSecond := float64(requests) / took.Seconds(); perSecond > 10 || failed.Load() > 0 {
		t.Errorf("%.1f requests a second, want at most 10; %d failed", perSecond, failed.Load())
	}
	for i, g := range grants {
		if left := g.Lease.Remaining(); left < DefaultTTL*2/3 {
			t.Fatalf("lock %d has only %v left after its renewal", i, left)
		}
	}
}

func TestForgottenScriptsAreSentAgain(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator, d := dial(t, server.Addr()), openOn(t, server.Addr(), &Options{TTL: time.Second})
	fence := NewFence(dial(t, server.Addr()))
	flush := func() { mustDo(t, operator, "SCRIPT", "FLUSH") }
	flush()
	owner, grant := take(t, d, "a")
	flush()
	ends := func() time.Time { return time.Now().Add(grant.Lease.Remaining()) }
	before := ends()
	testbed.Eventually(t, "it is renewed after its script was forgotten", bound, func() bool { return ends().Sub(before) > 100*time.Millisecond })
	flush()
	testbed.OK(t, fence.Enter(t.Context(), driver.Raise{Resource: "a", Token: grant.Token}))
	release(t, d, "a", owner)
	if n, err := raw(t, operator, "EXISTS", "a").AsInt64(); n != 0 || err != nil {
		t.Fatalf("the lock is still there: %d, %v", n, err)
	}
}

func TestCounterIsExactAndEndsLoudly(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator, d := dial(t, server.Addr()), openOn(t, server.Addr(), nil)
	counter := keysOf("a").counter
	for _, last := range []int64{1<<50 + 1, interlock.MaxCounter - 3} {
		mustDo(t, operator, "SET", counter, strconv.FormatInt(last, 10))
		for i := range int64(3) {
			owner, grant := take(t, d, "a")
			if got := grant.Token.Counter(); got != last+1+i {
				t.Fatalf("counter %d after %d", got, last+i)
			}
			release(t, d, "a", owner)
		}
	}
	for _, damaged := range []string{strconv.FormatInt(interlock.MaxCounter, 10), "many"} {
		mustDo(t, operator, "SET", counter, damaged)
		_, err := d.Acquire(t.Context(), driver.Request{Name: "a", Owner: newOwner()})
		if interlock.Kind(err) != interlock.Definite {
			t.Fatalf("with a counter of %s: %v, want a definite refusal", damaged, err)
		}
		if n, _ := raw(t, operator, "EXISTS", "a").AsInt64(); n != 0 {
			t.Fatal("a refused acquisition left the lock taken")
		}
	}
}

func TestOneBadNameDoesNotStopTheOthers(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator, d := dial(t, server.Addr()), openOn(t, server.Addr(), nil)
	owner, _ := take(t, d, "good")
	other, _ := take(t, d, "bad")
	good, bad := await(t, d, "good"), await(t, d, "bad")
	for _, command := range [][]string{{"DEL", "bad"}, {"HSET", "bad", "field", "value"}} {
		mustDo(t, operator, command...)
	}
	o := testbed.Receive(t, bad, "the name whose key is a hash")
	if interlock.Kind(o.err) != interlock.Definite || !strings.Contains(o.err.Error(), "WRONGTYPE") {
		t.Fatalf("a name whose key is a hash: %v", o.err)
	}
	if err := d.Release(t.Context(), "bad", o.owner); interlock.Kind(err) != interlock.Definite {
		t.Fatalf("release: %v", err)
	}
	release(t, d, "good", owner)
	release(t, d, "good", receive(t, good, bound).owner)
	_ = other // lost with the key
}

// TestCodeOfARefusal: it counts wherever a version of Redis puts it.
func TestCodeOfARefusal(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]interlock.ErrorKind{
		"READONLY You can't write against a read only replica. script: 6b81, on @user_script:1.":                                   interlock.Retryable,
		"ERR Error running script (call to f_1028): @user_script:4: @user_script: 4: -READONLY You can't write against a replica.": interlock.Retryable,
		"@user_script: 12: -OOM command not allowed when used memory > 'maxmemory'.":                                               interlock.Retryable,
		"ERR Error running script (call to f_1028): @user_script:4: WRONGTYPE Operation against a key":                             interlock.Definite,
		"ERR the key interlock:{0}:counter is used up":                                                                             interlock.Definite,
		"ERR Script attempted to access a non local key in a cluster node script: 6b81, on @user_script:9.":                        interlock.Uncertain,
	} {
		if got := kindOf(answer); got != want {
			t.Errorf("%q is %v, want %v", answer, got, want)
		}
	}
}
