package redis

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
)

const (
	redisPyValue   = "5f2b0c9e8d7a11ef9c3b0242ac120002"
	redsyncValue   = "q83vEjRWeJCrze8SNFZ4kA=="
	redislockValue = "q83vEjRWeJCrze8SNFZ4kA"
	redissonField  = "8743c9c0-0795-4907-87fd-6c719a6b4586:41"
)

var rueidislockValue = strings.Repeat("\xfe\x01\x02\xff", 6)

func TestForeignValuesAreKnownByTheirShape(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		key, value, text string
		known            bool
	}{
		{"x", redisPyValue, "redis-py " + redisPyValue, true},
		{"x", redsyncValue, "redsync " + redsyncValue, true},
		{"x", redislockValue, "redislock " + redislockValue, true},
		{"x", redislockValue + "worker 7", "redislock " + redislockValue + " (worker 7)", true},
		{"rueidislock:0:x", rueidislockValue, "rueidislock " + strings.Repeat("fe0102ff", 6), true},
		{"x", rueidislockValue, `"` + strings.Repeat(`\xfe\x01\x02\xff`, 6) + `"`, false},
		{"x", "theirs", "theirs", false},
		{"x", "host-17/4711/some-owner-of-a-lock", "host-17/4711/some-owner-of-a-lock", false},
		{"x", "a-name-of-22-characters", "a-name-of-22-characters", false},
		{"x", redsyncValue[:21] + "B==", redsyncValue[:21] + "B==", false}, // no encoding ends like this
		{"x", "line\nbreak", `"line\nbreak"`, false},
		{"x", "", "", false},
	} {
		if text, known := nameForeign(c.key, c.value); text != c.text || known != c.known {
			t.Errorf("%q in %q: %q, %v", c.value, c.key, text, known)
		}
	}
}

// strangers writes locks of other clients below locks/.
func strangers(t testing.TB, operator rueidis.Client) {
	t.Helper()
	for _, c := range [][]string{
		{"SET", "locks/py", redisPyValue, "PX", "60000"},
		{"SET", "locks/sync", redsyncValue, "PX", "60000"},
		{"SET", "locks/some text", "no lock"},
		{"SET", "locks/long", strings.Repeat("x", 5000)},
		{"HSET", "locks/son", redissonField, "2"},
		{"PEXPIRE", "locks/son", "30000"},
		{"RPUSH", "redisson_lock_queue:{locks/son}", redissonField + "1", redissonField + "2"},
		{"ZADD", "redisson_lock_timeout:{locks/son}", "1", redissonField + "1"},
		{"HSET", "locks/rw", "mode", "read", redissonField, "1", redissonField + "3", "1"},
		{"HSET", "locks/hash", "a", "1"},
		{"RPUSH", "locks/list", "a"},
		{"ZADD", "locks/zset", "1", "a"},
		{"SADD", "locks/set", "a"},
		{"XADD", "locks/stream", "*", "a", "b"},
		{"RPUSH", "redisson_lock_timeout:{locks/py}", "not a zset"},
		{"SET", "redisson_lock_queue:{locks/sync}", "not a list"},
	} {
		mustDo(t, operator, c...)
	}
}

func TestForeignLocksAreShown(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	strangers(t, dial(t, server.Addr()))
	d := openOn(t, server.Addr(), &Options{Prefix: "locks/"})
	take(t, d, "ours")
	owners := map[string]string{
		"py": "redis-py " + redisPyValue, "sync": "redsync " + redsyncValue, "son": "Redisson " + redissonField,
		"rw": "Redisson read lock " + redissonField + ", " + redissonField + "3",
	}
	states, more, err := d.ForeignLocks(t.Context(), "", 100)
	if err != nil || more || len(states) != len(owners) {
		t.Fatalf("%+v, %v, %v", states, more, err)
	}
	for _, s := range states {
		want, expected := owners[s.Name]
		if !expected || s.Holder == nil || !s.Holder.Foreign || s.Holder.Owner != want {
			t.Errorf("%s: %+v, want %q", s.Name, s.Holder, want)
		}
		if one, err := d.Lock(t.Context(), s.Name); err != nil || one.Holder == nil || one.Holder.Owner != s.Holder.Owner {
			t.Errorf("alone %s is %+v, %v", s.Name, one.Holder, err)
		}
	}
	son, err := d.Lock(t.Context(), "son")
	if err != nil || son.Holder.Expires <= 20*time.Second || len(son.Waiters) != 2 ||
		son.Waiters[0].Owner != "Redisson "+redissonField+"1" || !son.Waiters[0].Foreign {
		t.Errorf("%+v, %v", son, err)
	}
	for _, odd := range []string{"hash", "list", "zset", "set", "stream", "long", "some text"} {
		s, err := d.Lock(t.Context(), odd)
		if err != nil || s.Holder == nil || !s.Holder.Foreign || s.Holder.Owner == "" {
			t.Errorf("%s: %+v, %v", odd, s.Holder, err)
		}
	}
	if states, more, err := d.Locks(t.Context(), "", 100); err != nil || more || len(states) != 1 || states[0].Name != "ours" {
		t.Errorf("ours: %+v, %v, %v", states, more, err)
	}
	all := openOn(t, server.Addr(), nil)
	if states, _, err := all.ForeignLocks(t.Context(), "", 100); err != nil || len(states) != 0 {
		t.Errorf("foreign locks without a prefix: %+v, %v", states, err)
	}
	if states, _, err := all.Locks(t.Context(), "", 100); err != nil || len(states) != 1 || states[0].Name != "locks/ours" {
		t.Errorf("without a prefix: %+v, %v", states, err)
	}
	states, _, err = plainOn(t, server.Addr(), &Options{Prefix: "locks/"}).Locks(t.Context(), "", 100)
	if want := []string{"ours", "py", "rw", "some text", "son", "sync"}; err != nil || !slices.Equal(namesOf(states), want) {
		t.Errorf("plain: %q, %v", namesOf(states), err)
	}
}

func TestForeignLocksAreBroken(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator := dial(t, server.Addr())
	strangers(t, operator)
	d := openOn(t, server.Addr(), &Options{Prefix: "locks/"})

	listener := dial(t, server.Addr())
	woken, subscribed := make(chan string, 1), make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		hooked := rueidis.WithOnSubscriptionHook(ctx, func(rueidis.PubSubSubscription) { subscribed <- struct{}{} })
		listener.Receive(hooked, listener.B().Subscribe().Channel("redisson_lock__channel:{locks/son}").Build(),
			func(m rueidis.PubSubMessage) { woken <- m.Message })
	}()
	defer func() { cancel(); <-ended }()
	<-subscribed

	for _, name := range []string{"py", "son", "some text"} {
		s, err := d.Lock(t.Context(), name)
		testbed.OK(t, err)
		record, ok, err := d.Break(t.Context(), breaking(name, s.Holder.Owner))
		if !ok || err != nil || record.Owner != s.Holder.Owner || record.Token != 0 {
			t.Fatalf("%s: %+v, %v, %v", name, record, ok, err)
		}
		owner, _ := take(t, d, name)
		release(t, d, name, owner)
	}
	if m := testbed.Receive(t, woken, "the message to Redisson's waiters"); m != "0" {
		t.Errorf("Redisson's waiters received %q", m)
	}
	for _, name := range []string{"rw", "list"} {
		s, err := d.Lock(t.Context(), name)
		testbed.OK(t, err)
		if _, ok, err := d.Break(t.Context(), breaking(name, s.Holder.Owner)); ok || interlock.Kind(err) != interlock.Definite || err == nil {
			t.Errorf("%s: %v, %v", name, ok, err)
		}
	}
	if records, err := d.Breaks(t.Context(), "", 10); err != nil || len(records) != 3 {
		t.Errorf("%+v, %v", records, err)
	}
}
