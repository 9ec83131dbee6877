package redis

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// fill puts foreign keys into the database.
func fill(t *testing.T, server *testbed.Server, n int) {
	t.Helper()
	script := "for i = ARGV[1], ARGV[1] + 999 do redis.call('SET', 'foreign/' .. i, 'x') end return 1"
	client := dial(t, server.Addr())
	for i := 0; i < n; i += 1000 {
		mustDo(t, client, "EVAL", script, "0", fmt.Sprint(i))
	}
}

func namesOf(states []driver.LockState) (names []string) {
	for _, s := range states {
		names = append(names, s.Name)
	}
	return names
}

// Listing costs depend on what it returns, not on the size of the database.
func TestListingScansNothing(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	fill(t, server, 50_000)
	operator, d := dial(t, server.Addr()), openOn(t, server.Addr(), nil)
	var want []string
	for i := range batchSize + 20 {
		name := fmt.Sprintf("jobs/%03d", i)
		take(t, d, name)
		want = append(want, name)
	}
	take(t, d, "job")
	take(t, d, "jobs0")
	await(t, d, "jobs/007")
	before := calls(t, operator)
	states, more, err := d.Locks(t.Context(), "jobs/", 1000)
	if err != nil || more || !slices.Equal(namesOf(states), want) || len(states[7].Waiters) != 1 {
		t.Fatalf("%q, %v, %v", namesOf(states), more, err)
	}
	spent := since(t, operator, before)
	for command := range spent {
		if strings.Contains(command, "scan") || command == "keys" {
			t.Errorf("%d calls of %s", spent[command], command)
		}
	}
	// Two pages, an empty one, a read of each of the two, and heartbeats of the waiter.
	if spent["evalsha"] > 12 {
		t.Errorf("%d requests for %d names", spent["evalsha"], len(want))
	}
	if states, more, err := d.Locks(t.Context(), "jobs/", 3); err != nil || !more || !slices.Equal(namesOf(states), want[:3]) {
		t.Errorf("the first three: %q, %v, %v", namesOf(states), more, err)
	}
}

// indexed returns the number of entries of the index.
func indexed(t *testing.T, operator rueidis.Client) int64 {
	t.Helper()
	return number(t, operator, "ZCARD", namesKey(wholeTag))
}

// Released names leave the index at once, expired ones at later grants.
func TestIndexForgetsWhatHasEnded(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator, d := dial(t, server.Addr()), openOn(t, server.Addr(), nil)
	for i := range 20 {
		owner, _ := take(t, d, fmt.Sprint("n/", i))
		waiter := await(t, d, fmt.Sprint("n/", i))
		release(t, d, fmt.Sprint("n/", i), owner)
		release(t, d, fmt.Sprint("n/", i), receive(t, waiter, bound).owner)
	}
	if n := indexed(t, operator); n != 0 {
		t.Errorf("%d entries after all were released", n)
	}

	dying := openOn(t, server.Addr(), &Options{TTL: time.Second, Prefix: "dying/"})
	const died = 50
	for i := range died {
		take(t, dying, fmt.Sprint(i))
	}
	testbed.OK(t, dying.Close(t.Context()))
	long, _ := take(t, d, "long") // must stay, and so must a name that is awaited only
	awaited := keysOf("awaited")
	mustDo(t, operator, "ZADD", awaited.names, "0", "awaited")
	mustDo(t, operator, "ZADD", awaited.queue, "1", "channel owner")
	testbed.Eventually(t, "they have expired", bound, func() bool {
		states, _, err := d.Locks(t.Context(), "dying/", 10)
		return err == nil && len(states) == 0
	})
	testbed.Eventually(t, "only these are in the index", bound, func() bool {
		for range 64 { // one of 64 grants checks the index
			owner, _ := take(t, d, "busy")
			release(t, d, "busy", owner)
		}
		return indexed(t, operator) == 2
	})
	release(t, d, "long", long)
}

// A lock that is held for longer than its first TTL stays in the index.
func TestIndexKeepsWhatIsRenewed(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	const ttl = 2 * time.Second
	d := openOn(t, server.Addr(), nil)
	owner := newOwner()
	grant, err := d.Acquire(testbed.Bounded(t), driver.Request{Name: "kept", Owner: owner, TTL: ttl, Renew: ttl / 20}) // a busy machine renews late
	testbed.OK(t, err)
	taken := time.Now()
	testbed.Eventually(t, "it has been renewed twice", bound, func() bool {
		for range 3 { // each checks entries that are due
			busy, _ := take(t, d, "busy")
			release(t, d, "busy", busy)
		}
		return time.Since(taken) > ttl*5/4
	})
	states, _, err := d.Locks(t.Context(), "", 10)
	if err != nil || !slices.Equal(namesOf(states), []string{"kept"}) || grant.Lease.Remaining() <= 0 {
		t.Errorf("%q, %v, %v remain", namesOf(states), err, grant.Lease.Remaining())
	}
	release(t, d, "kept", owner)
}

// A watcher receives changes below its prefix, and no others.
func TestWatchersReceiveWhatTheyWatch(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator := dial(t, server.Addr())
	if err := raw(t, operator, "ACL", "SETUSER", "app", "on", ">pw", "~*", "resetchannels",
		"&interlock:changes:*", "&interlock:push:*", "+@all").Error(); err != nil {
		t.Fatal(err)
	}
	d := openOn(t, server.Addr(), nil)
	h, _ := watching(t, d, "mine/")
	receivers := func(name string) int64 {
		return number(t, operator, "PUBLISH", changes+name, "")
	}
	if mine, others := receivers("mine/1"), receivers("other/1"); mine != 1 || others != 0 {
		t.Errorf("a change of what is watched went to %d, another to %d", mine, others)
	}
	limited, _ := watching(t, openOn(t, "app:pw@"+server.Addr(), nil), "mine/")
	if others := receivers("other/1"); others != 1 {
		t.Errorf("a user with one permitted pattern: %d receive", others)
	}
	owner, _ := take(t, d, "mine/2")
	h.await(t, "mine/2", 1)
	limited.await(t, "mine/2", 1)
	release(t, d, "mine/2", owner)
	if n := limited.count("other/1"); n != 0 {
		t.Errorf("%d hints about names that are not watched", n)
	}
}
