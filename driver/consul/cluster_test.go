package consul

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func open(t *testing.T, o Options) *Driver {
	t.Helper()
	d, err := Open(t.Context(), &o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return d
}

// TestClaimsSurviveTheLeader of three servers: it is killed while processes at the other two
// compete for a lock. A holder holds on, one at a time is granted the contested lock, and
// tokens rise.
func TestClaimsSurviveTheLeader(t *testing.T) {
	t.Parallel()
	e := testbed.ConsulCluster(t, 3)
	leader := e.Leader()
	var followers []string
	for _, s := range e.Peers {
		if s != leader {
			followers = append(followers, s.Addr())
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	var contest contest
	var all sync.WaitGroup
	for _, addr := range followers {
		locks, err := lock.NewFenced(open(t, Options{Address: addr, TTL: patience}), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer locks.Close(context.WithoutCancel(ctx))
		for range 2 {
			all.Go(func() { contest.run(ctx, t, locks) })
		}
	}
	d := open(t, Options{Address: followers[0]})
	lost := make(chan error, 1)
	held, err := d.Acquire(ctx, driver.Request{Name: "held", Owner: "holder",
		Events: driver.Events{Lost: func(cause error) { lost <- cause }}})
	if err != nil {
		t.Fatal(err)
	}
	testbed.Eventually(t, "they compete", patience, func() bool { return contest.grants.Load() > 20 })
	leader.Kill()
	before := contest.grants.Load()
	if next := e.Leader(); next == leader {
		t.Fatal("the killed server leads")
	}
	testbed.Eventually(t, "they go on", 2*patience, func() bool { return contest.grants.Load() > before+20 })
	contest.over.Store(true)
	all.Wait()
	d.session.renew()
	if len(lost) > 0 || held.Lease.Remaining() <= 0 {
		t.Errorf("the claim was lost with the leader: %v, %v left", len(lost), held.Lease.Remaining())
	}
	if _, err := d.Acquire(ctx, driver.Request{Name: "held", Owner: "another", NoWait: true}); err == nil {
		t.Error("another is granted what is held")
	}
}

// contest is a lock that several want all the time.
type contest struct {
	grants atomic.Int64
	over   atomic.Bool
	mu     sync.Mutex
	last   interlock.Token
	holder string // whose claim is valid
}

func (c *contest) run(ctx context.Context, t *testing.T, locks *lock.Fenced) {
	for !c.over.Load() && ctx.Err() == nil {
		claim, err := locks.Acquire(ctx, "contested")
		if err != nil {
			if interlock.Kind(err) == interlock.Definite {
				t.Errorf("acquire: %v", err)
				return
			}
			continue
		}
		c.enter(t, claim)
		time.Sleep(time.Millisecond) // the work
		c.leave(claim)
		_ = claim.Release(ctx) // what is not confirmed lapses
	}
}

func (c *contest) enter(t *testing.T, claim *lock.Claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holder != "" || claim.Token() <= c.last {
		t.Errorf("token %d after %d, while %q holds", claim.Token(), c.last, c.holder)
	}
	c.holder, c.last = claim.Owner(), claim.Token()
	c.grants.Add(1)
}

func (c *contest) leave(claim *lock.Claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.holder == claim.Owner() {
		c.holder = ""
	}
}

// snapshot takes a snapshot of the server, or restores one.
func snapshot(t *testing.T, server *testbed.Server, method string, body []byte) []byte {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, server.URL()+"/v1/snapshot", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	answer, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("snapshot: %s: %v", answer.Status, err)
	}
	return text
}

// TestTokensOverARestore into a new cluster, whose index is behind: also a process whose
// session is in the snapshot, and that saw nothing of what was granted after it, grants above
// that.
func TestTokensOverARestore(t *testing.T) {
	t.Parallel()
	server := testbed.Consul(t)
	var later atomic.Int64 // the time that the restore takes
	now := func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
	d := open(t, Options{Address: server.Addr(), TTL: time.Hour, Now: now})
	other := open(t, Options{Address: server.Addr(), TTL: time.Hour, Now: now})
	session := other.session
	turn := func(d *Driver) (token interlock.Token) {
		testbed.Eventually(t, "a grant", patience, func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			g, err := d.Acquire(ctx, driver.Request{Name: "n", Owner: "o"})
			token = g.Token
			return errorsNil(err, d.Release(ctx, "n", "o"))
		})
		return token
	}
	turn(other)
	saved := snapshot(t, server, http.MethodGet, nil)
	var last interlock.Token
	for range 20 {
		last = turn(d)
	}
	server.Wipe()
	snapshot(t, server, http.MethodPut, saved)
	later.Store(int64(10 * time.Second))
	if next := turn(other); next <= last {
		t.Errorf("token %d after %d", next, last)
	}
	if other.session != session {
		t.Error("the session did not survive, so that this shows nothing")
	}
}

func errorsNil(errs ...error) bool {
	for _, err := range errs {
		if err != nil {
			return false
		}
	}
	return true
}
