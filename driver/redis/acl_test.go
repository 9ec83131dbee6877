package redis

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/renewal"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// grantRights creates the user of the package comment, with the password pw.
func grantRights(t *testing.T, operator rueidis.Client, more ...string) {
	t.Helper()
	rights := "ACL SETUSER app on >pw ~jobs/* ~interlock:{* ~redisson_lock_* resetchannels &interlock:push:* &interlock:changes:* " +
		"-@all +@read +@write +@scripting +@connection +@pubsub +info +time"
	mustDo(t, operator, append(strings.Fields(rights), more...)...)
}

// The rights of the package comment are enough for locks, lists, watches, breaks and
// guards.
func TestLeastRights(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator := dial(t, server.Addr())
	grantRights(t, operator)
	client := dial(t, "app:pw@"+server.Addr())
	d := openOn(t, "app:pw@"+server.Addr(), nil)
	mustMiss(t, d, "jobs/1")
	mustMiss(t, d, "other", "~other")
	h, _ := watching(t, d, "jobs/")
	owner, grant := take(t, d, "jobs/1")
	next := await(t, d, "jobs/1")
	h.await(t, "jobs/1", 1)
	if states, _, err := d.Locks(t.Context(), "jobs/", 10); err != nil || len(states) != 1 || len(states[0].Waiters) != 1 {
		t.Errorf("%+v, %v", states, err)
	}
	release(t, d, "jobs/1", owner)
	second := receive(t, next, bound)
	if _, ok, err := d.Break(t.Context(), breaking("jobs/1", second.owner)); !ok || err != nil {
		t.Errorf("break: %v, %v", ok, err)
	}
	if records, err := d.Breaks(t.Context(), "", 10); err != nil || len(records) != 1 {
		t.Errorf("breaks: %+v, %v", records, err)
	}
	raise := driver.Raise{Resource: "jobs/1", Token: grant.Token}
	if err := NewFence(client).Enter(t.Context(), raise, driver.Write{Key: "jobs/data", Value: []byte("x")}); err != nil {
		t.Errorf("guard: %v", err)
	}
	all, timed := guards(client)
	maps.Copy(all, timed)
	for name, call := range all {
		if err := call(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A name that the user may not use fails no other that is sent with it.
func TestForbiddenNameFailsNoOther(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator := dial(t, server.Addr())
	grantRights(t, operator)
	d := openOn(t, "app:pw@"+server.Addr(), nil)
	d.conn.groupFrom = 0
	take(t, d, "jobs/first") // opens the connection
	names := []string{"other"}
	for i := range 40 {
		names = append(names, fmt.Sprint("jobs/", i))
	}
	together := func(do func(name string) error) {
		t.Helper()
		server.Pause()
		failed := make([]chan error, len(names))
		for i, name := range names {
			failed[i] = make(chan error, 1)
			go func() { failed[i] <- do(name) }()
		}
		asked(t, d, len(names))
		server.Resume()
		for i, name := range names {
			switch err := testbed.Receive(t, failed[i], "the end of a request"); {
			case i > 0 && err != nil:
				t.Errorf("%s: %v", name, err)
			case i == 0 && interlock.Kind(err) != interlock.Definite:
				t.Errorf("the forbidden name: %v", err)
			}
		}
	}
	together(func(name string) error {
		_, err := d.Acquire(t.Context(), driver.Request{Name: name, Owner: name})
		return err
	})
	together(func(name string) error { return d.Release(t.Context(), name, name) })
}

// A name whose right is revoked ends neither the leases nor the waits of others.
func TestRevokedNameFailsNoOther(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator := dial(t, server.Addr())
	grantRights(t, operator, "~other/*")
	d, holder := openOn(t, "app:pw@"+server.Addr(), nil), openOn(t, server.Addr(), nil)
	names := []string{"jobs/1", "other/1", "jobs/2"}
	held := make([]*renewal.Holding, len(names))
	for i, name := range names {
		owner, _ := take(t, d, name)
		held[i] = &renewal.Holding{Request: driver.Request{Name: name, Owner: owner}}
	}
	first, _ := take(t, holder, "jobs/3")
	take(t, holder, "other/3")
	next, forbidden := await(t, d, "jobs/3"), await(t, d, "other/3")
	mustDo(t, operator, "ACL", "SETUSER", "app", "resetkeys", "~jobs/*", "~interlock:{*", "~redisson_lock_*")
	for i, e := range d.extend(testbed.Bounded(t), held) {
		switch revoked := i == 1; {
		case !revoked && (!e.Ours || e.Err != nil):
			t.Errorf("%s: %+v", names[i], e)
		case revoked && (e.Ours || e.Err == nil):
			t.Errorf("the revoked name: %+v", e)
		}
	}
	if o := testbed.Receive(t, forbidden, "the end of a wait without its right"); o.err == nil {
		t.Error("a wait without its right was granted")
	}
	release(t, holder, "jobs/3", first)
	receive(t, next, bound)
}

// A name whose right is revoked on every node ends no other lease of a quorum, and a lock that may not
// be read is not lost.
func TestRevokedRightsEndNoOtherLeaseOfAQuorum(t *testing.T) {
	t.Parallel()
	servers := startFive(t)
	var clients []rueidis.Client
	for _, s := range servers {
		grantRights(t, dial(t, s.Addr()), "~other/*")
		clients = append(clients, dial(t, "app:pw@"+s.Addr()))
	}
	change := func(rights ...string) {
		for _, s := range servers {
			mustDo(t, dial(t, s.Addr()), append([]string{"ACL", "SETUSER", "app"}, rights...)...)
		}
	}
	q, err := OpenQuorum(t.Context(), clients, &QuorumOptions{RestartDelay: -1, NodeTimeout: 10 * time.Second})
	testbed.OK(t, err)
	testbed.CloseAfter(t, q)
	names := []string{"jobs/1", "other/1", "jobs/2"}
	held := make([]*renewal.Holding, len(names))
	for i, name := range names {
		held[i] = &renewal.Holding{Request: driver.Request{Name: name, Owner: newOwner()}}
		takeQuorum(t, q, held[i].Request)
	}
	change("resetkeys", "~jobs/*")
	for i, e := range q.extend(testbed.Bounded(t), held) {
		switch revoked := i == 1; {
		case !revoked && (!e.Ours || e.Err != nil):
			t.Errorf("%s: %+v", names[i], e)
		case revoked && (e.Ours || interlock.Kind(e.Err) != interlock.Definite):
			t.Errorf("the revoked name: %+v", e)
		}
	}
	change("-get")
	for i, e := range q.extend(testbed.Bounded(t), held) {
		if e.Ours || e.Err == nil {
			t.Errorf("%s, which may not be read: %+v", names[i], e)
		}
	}
}

// A lock that the user may not read any more is not lost.
func TestUnreadableLockIsNotLost(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator := dial(t, server.Addr())
	grantRights(t, operator)
	d := openOn(t, "app:pw@"+server.Addr(), nil)
	owner, grant := take(t, d, "jobs/1")
	mustDo(t, operator, "ACL", "SETUSER", "app", "-get")
	held := []*renewal.Holding{{Request: driver.Request{Name: "jobs/1", Owner: owner}}}
	if e := d.extend(testbed.Bounded(t), held)[0]; e.Ours || e.Err == nil || grant.Lease.Remaining() <= 0 {
		t.Errorf("without a right: %+v", e)
	}
	mustDo(t, operator, "ACL", "SETUSER", "app", "+get")
	if e := d.extend(testbed.Bounded(t), held)[0]; !e.Ours || e.Err != nil {
		t.Errorf("with the right again: %+v", e)
	}
}

func mustMiss(t *testing.T, d *Driver, name string, want ...string) {
	t.Helper()
	if missing, known, err := d.MissingRights(t.Context(), name); !known || err != nil || !slices.Equal(missing, want) {
		t.Errorf("missing rights for %q: %q, %v, %v; want %q", name, missing, known, err, want)
	}
}

// A missing right is named as the ACL rule that grants it, and nothing is written.
func TestMissingRights(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator := dial(t, server.Addr())
	if err := newConn(operator).load(t.Context(), rightsScript); err != nil { // a user without eval cannot send it
		t.Fatal(err)
	}
	for user, c := range map[string]struct {
		rights string
		want   []string
	}{
		"all":        {"~* &* +@all", nil},
		"no zadd":    {"~* &* +@all -zadd", []string{"+zadd"}},
		"no time":    {"~* &* +@all -time", []string{"+time"}},
		"no eval":    {"~* &* +@all -eval", []string{"+eval"}},
		"no evalsha": {"~* &* +@all -evalsha", []string{"+evalsha", "+eval"}},
		"read only":  {"%R~* &* +@all", []string{"~n"}},
		"no wait":    {"~* &* +@all -wait", nil}, // nothing is confirmed
		"publishes":  {"~* &* +@all -publish", []string{"+publish &interlock:push:*"}},
	} {
		t.Run(user, func(t *testing.T) {
			name := strings.ReplaceAll(user, " ", "")
			rule := append([]string{"ACL", "SETUSER", name, "on", ">pw"}, strings.Fields(c.rights)...)
			mustDo(t, operator, rule...)
			d := openOn(t, name+":pw@"+server.Addr(), nil)
			if user == "read only" {
				missing, _, err := d.MissingRights(t.Context(), "n")
				if len(missing) != 5 || missing[0] != "~n" || missing[4] != "~interlock:{0}:names" {
					t.Errorf("missing rights: %q, %v; want the keys", missing, err)
				}
				return
			}
			mustMiss(t, d, "n", c.want...)
		})
	}
	if n, err := raw(t, operator, "DBSIZE").AsInt64(); n != 0 || err != nil {
		t.Errorf("%d keys, %v", n, err)
	}
}
