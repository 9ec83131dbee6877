package consul

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func open(t *testing.T, o Options) *Driver {
	t.Helper()
	d, err := Open(t.Context(), &o)
	testbed.OK(t, err)
	testbed.CloseAfter(t, d)
	return d
}

// TestClaimsSurviveTheLeader of three servers, for processes at the other two.
func TestClaimsSurviveTheLeader(t *testing.T) {
	t.Parallel()
	e := testbed.ConsulCluster(t, 3)
	leader := e.Leader()
	var competing []driver.Fenced
	var follower string
	for _, s := range e.Peers {
		if s != leader {
			follower = s.Addr()
			competing = append(competing, open(t, Options{Address: follower, TTL: patience}))
		}
	}
	holder := open(t, Options{Address: follower})
	drivertest.LeaderLoss(t, competing, holder, func() {
		leader.Kill()
		if e.Leader() == leader {
			t.Fatal("the killed server leads")
		}
	}, func() { holder.session.renew() })
}

// snapshot takes a snapshot of the server, or restores one.
func snapshot(t *testing.T, server *testbed.Server, method string, body []byte) []byte {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, server.URL()+"/v1/snapshot", bytes.NewReader(body))
	testbed.OK(t, err)
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	answer, err := transport.RoundTrip(r)
	testbed.OK(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("snapshot: %s: %v", answer.Status, err)
	}
	return text
}

// TestTokensOverARestore into a new cluster, whose index is lower. A process whose session is
// in the snapshot, and that saw no later grants, also grants above them.
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
			return errors.Join(err, d.Release(ctx, "n", "o")) == nil
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
