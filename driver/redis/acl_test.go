package redis

import (
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// The rights of the package comment are enough for locks, lists, watches, breaks and
// guards.
func TestLeastRights(t *testing.T) {
	server := testbed.Redis(t)
	operator := dial(t, server.Addr())
	rights := "on >pw ~jobs/* ~interlock:{* ~redisson_lock_* resetchannels &interlock:push:* &interlock:changes:* " +
		"-@all +@read +@write +@scripting +@connection +@pubsub +info +time"
	if err := raw(t, operator, append([]string{"ACL", "SETUSER", "app"}, strings.Fields(rights)...)...).Error(); err != nil {
		t.Fatal(err)
	}
	client := dial(t, "app:pw@"+server.Addr())
	d := openOn(t, "app:pw@"+server.Addr(), nil)
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
	marks, timed := guards(client)
	for name, call := range marks {
		if err := call(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, call := range timed {
		if err := call(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
