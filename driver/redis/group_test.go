package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// grouped opens a driver that sends every request in a group.
func grouped(t *testing.T, addr string) *Driver {
	d := openOn(t, addr, nil)
	d.conn.groupFrom = 0
	take(t, d, "first") // opens the connection
	return d
}

// asked waits until n requests are under way, while the server does not answer.
func asked(t *testing.T, d *Driver, n int) {
	testbed.Eventually(t, fmt.Sprint(n, " requests are under way"), bound, func() bool {
		d.conn.mu.Lock()
		defer d.conn.mu.Unlock()
		return len(d.conn.last) == n
	})
}

// TestGroupIsOneRequest, and an error of one name fails no other.
func TestGroupIsOneRequest(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator, d := dial(t, server.Addr()), grouped(t, server.Addr())
	const names = 80
	spoil := func(i int) {
		mustDo(t, operator, "DEL", fmt.Sprint("n/", i))
		mustDo(t, operator, "HSET", fmt.Sprint("n/", i), "a", "hash")
	}
	// together calls do for all names while the server is stopped, and returns the errors.
	together := func(do func(i int) error) []error {
		before := calls(t, operator)
		server.Pause()
		failed := make([]chan error, names)
		for i := range failed {
			failed[i] = make(chan error, 1)
			go func() { failed[i] <- do(i) }()
		}
		asked(t, d, names)
		server.Resume()
		errs := make([]error, names)
		for i := range errs {
			errs[i] = testbed.Receive(t, failed[i], "the end of a request")
		}
		if n := since(t, operator, before)["evalsha"]; n > maxRuns+1 {
			t.Errorf("%d requests for %d names", n, names)
		}
		return errs
	}
	check := func(errs []error, spoiled int) {
		t.Helper()
		for i, err := range errs {
			switch {
			case i != spoiled && err != nil:
				t.Errorf("name %d: %v", i, err)
			case i == spoiled && (err == nil || interlock.Kind(err) != interlock.Definite || !strings.Contains(err.Error(), "WRONGTYPE")):
				t.Errorf("the name with a foreign key: %v", err)
			}
		}
	}
	tokens := make([]interlock.Token, names)
	spoil(7)
	check(together(func(i int) error {
		g, err := d.Acquire(t.Context(), driver.Request{Name: fmt.Sprint("n/", i), Owner: fmt.Sprint("o/", i)})
		tokens[i] = g.Token
		return err
	}), 7)
	for i, token := range tokens {
		if i != 7 && token == 0 {
			t.Errorf("name %d has no token", i)
		}
	}
	spoil(30)
	check(together(func(i int) error { return d.Release(t.Context(), fmt.Sprint("n/", i), fmt.Sprint("o/", i)) })[8:], 30-8)
}

// TestReleaseFollowsItsGroup: a caller that leaves while its request waits in a group gets an
// unknown outcome, and its release does not overtake the request.
func TestReleaseFollowsItsGroup(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator := dial(t, server.Addr())
	d := grouped(t, server.Addr()+"?write_timeout=10m") // no request fails before its caller leaves
	runs := func(n int) {
		testbed.Eventually(t, fmt.Sprint(n, " runs are under way, for which nothing waits"), bound, func() bool {
			g := d.conn.groups[contendScript]
			g.mu.Lock()
			defer g.mu.Unlock()
			return g.runs == n && len(g.waiting) == 0
		})
	}
	const names = 2 * maxRuns // half of them wait for a run
	server.Pause()
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, names)
	for i := range names {
		go func() {
			_, err := d.Acquire(ctx, driver.Request{Name: fmt.Sprint("n/", i), Owner: fmt.Sprint("o/", i)})
			failed <- err
		}()
		asked(t, d, i+1)
		if i < maxRuns {
			runs(i + 1)
		}
	}
	cancel()
	released := make(chan error, names)
	for range names {
		if err := testbed.Receive(t, failed, "the end of an acquire"); !errors.Is(err, interlock.ErrUncertain) {
			t.Errorf("a caller that left: %v", err)
		}
	}
	for i := range names {
		go func() { released <- d.Release(t.Context(), fmt.Sprint("n/", i), fmt.Sprint("o/", i)) }()
	}
	server.Resume()
	for range names {
		if err := testbed.Receive(t, released, "the end of a release"); err != nil {
			t.Error(err)
		}
	}
	runs(0)
	for i := range names {
		if n, err := raw(t, operator, "EXISTS", fmt.Sprint("n/", i)).AsInt64(); n != 0 || err != nil {
			t.Errorf("n/%d is held after its release: %d, %v", i, n, err)
		}
	}
}

// TestRunOfSeveralNames: one run of a script decides each name separately, and reads the
// usual ones together.
func TestRunOfSeveralNames(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator, d := dial(t, server.Addr()), openOn(t, server.Addr(), nil)
	const names = 40
	holder := func(i int, want string) {
		t.Helper()
		if owner, err := raw(t, operator, "GET", fmt.Sprint("n/", i)).ToString(); ownerIn(owner) != want || err != nil && want != "" {
			t.Errorf("n/%d is held by %q, want %q: %v", i, owner, want, err)
		}
	}
	acquire := func(ws ...*waiter) []reply { return acquireRun(t, d, ws...) }
	release := func(ws ...*waiter) { releaseRun(t, d, ws...) }
	ours, theirs := contendersOf(d, names, "ours"), contendersOf(d, names, "theirs")

	fewest := names * names
	for range 20 { // one of 64 runs is a full one
		before := calls(t, operator)
		for i, r := range acquire(ours...) {
			if r.status != statusGranted {
				t.Fatalf("n/%d is free, but the answer is %q", i, r.status)
			}
		}
		release(ours...)
		spent := 0
		for name, n := range since(t, operator, before) {
			if name != "info" && name != "ping" {
				spent += n
			}
		}
		fewest = min(fewest, spent)
	}
	if fewest > names+10 {
		t.Errorf("%d commands for %d pairs, at most one each is allowed and ten for all", fewest, names)
	}

	twice := acquire(ours[0], theirs[0], ours[1])
	if twice[0].status != statusGranted || twice[1].status != statusWaiting || twice[2].status != statusGranted {
		t.Errorf("one name asked for twice in one run: %q and %q", twice[0].status, twice[1].status)
	}
	if mixed := acquire(theirs[1], ours[2], ours[3]); mixed[0].status != statusWaiting || mixed[1].status != statusGranted {
		t.Errorf("a held name and a free one: %q and %q", mixed[0].status, mixed[1].status)
	}
	others := contendersOf(d, 6, "others")
	acquire(ours[4], ours[5])
	alone, together := acquire(theirs[4]), acquire(theirs[5], others[5])
	if ahead := []int{alone[0].ahead, acquire(others[4])[0].ahead, together[0].ahead, together[1].ahead}; !slices.Equal(ahead, []int{0, 1, 0, 1}) {
		t.Errorf("waiters of two names have %v waiters before them", ahead)
	}
	release(ours[0], ours[1])
	holder(0, "theirs0")
	holder(1, "theirs1")
	release(theirs[2], theirs[3])
	holder(2, "ours2")
	holder(3, "ours3")
	release(theirs[0], theirs[1], ours[2], ours[3])
	for i := range 4 {
		holder(i, "")
	}
}

// contendersOf returns requests for names n/0, n/1, and so on.
func contendersOf(d *Driver, names int, owner string) (ws []*waiter) {
	for i := range names {
		r := driver.Request{Name: fmt.Sprint("n/", i), Owner: fmt.Sprint(owner, i)}
		ws = append(ws, newWaiter(r, r.Name))
	}
	return ws
}

// acquireRun requests all in one run of the script.
func acquireRun(t *testing.T, d *Driver, ws ...*waiter) []reply {
	t.Helper()
	m, err := d.conn.eval(t.Context(), request{op: "acquire"}, contendScript, d.contention(enqueue, ws...))
	testbed.OK(t, err)
	replies, err := parseReplies(m, len(ws))
	testbed.OK(t, err)
	return replies
}

// releaseRun releases all in one run of the script.
func releaseRun(t *testing.T, d *Driver, ws ...*waiter) {
	t.Helper()
	b := batch{args: []string{d.pushes.channel}}
	for _, w := range ws {
		b.keys, b.args = append(b.keys, w.keys[0]), append(b.args, w.request.Owner)
	}
	if _, err := d.conn.eval(t.Context(), request{op: "release"}, releaseScript, b); err != nil {
		t.Fatal(err)
	}
}

// TestRunDrawsACounterForEachName: the counters of one run rise, and so does the next one.
func TestRunDrawsACounterForEachName(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator, d := dial(t, server.Addr()), openOn(t, server.Addr(), nil)
	ws, counter := contendersOf(d, 10, "o"), keysOf("n/0").counter
	for _, last := range []int64{0, 1<<50 + 1} { // below the clock, and above it
		mustDo(t, operator, "SET", counter, strconv.FormatInt(last, 10))
		for range 3 {
			for i, r := range acquireRun(t, d, ws...) {
				if r.counter <= last {
					t.Errorf("counter %d of n/%d is not above %d", r.counter, i, last)
				}
				last = r.counter
			}
			if drawn, err := raw(t, operator, "GET", counter).AsInt64(); drawn != last || err != nil {
				t.Errorf("the last counter is %d, and %d is kept: %v", last, drawn, err)
			}
			releaseRun(t, d, ws...)
		}
	}
}

// TestRunsAreReported: watchers hear of each name that one run of a script grants or
// releases. The periodic hint about all names does not count.
func TestRunsAreReported(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	d := openOn(t, server.Addr(), nil)
	ws := contendersOf(d, 10, "o")
	var mu sync.Mutex
	subscribed, missing := false, map[string]bool{}
	changed := func(name string) {
		mu.Lock()
		defer mu.Unlock()
		subscribed = true
		delete(missing, name)
	}
	all := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return subscribed && len(missing) == 0
	}
	ctx, cancel := context.WithCancel(t.Context())
	watched := make(chan error, 1)
	go func() { watched <- d.Watch(ctx, "n/", changed) }()
	testbed.Eventually(t, "a subscription", bound, all)
	reports := func(what string, ws []*waiter, run func()) {
		t.Helper()
		mu.Lock()
		for _, w := range ws {
			missing[w.request.Name] = true
		}
		mu.Unlock()
		run()
		testbed.Eventually(t, fmt.Sprint(what, " of ", len(ws)), bound, all)
	}
	for _, run := range [][]*waiter{ws, ws[:1]} {
		reports("a grant", run, func() { acquireRun(t, d, run...) })
		reports("a release", run, func() { releaseRun(t, d, run...) })
	}
	cancel()
	_ = testbed.Receive(t, watched, "the end of the watch")
}
