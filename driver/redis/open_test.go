package redis

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestImpossibleOptions(t *testing.T) {
	t.Parallel()
	for _, ttl := range []time.Duration{-1, MinTTL - 1, MaxTTL + 1} {
		_, err := Open(t.Context(), nil, &Options{TTL: ttl})
		if interlock.Kind(err) != interlock.Definite || !strings.Contains(err.Error(), "must be 100ms to 24h") {
			t.Errorf("a TTL of %v: %v", ttl, err)
		}
	}
	if _, err := Open(t.Context(), nil, nil); interlock.Kind(err) != interlock.Definite || !strings.Contains(err.Error(), "a client is needed") {
		t.Error(err)
	}
}

func TestDialSettings(t *testing.T) {
	t.Parallel()
	option, _, err := clientOption("redis://me:secret@127.0.0.1:1/3?dial_timeout=7s")
	testbed.OK(t, err)
	safe(&option)
	if !option.DisableRetry || !option.DisableCache || option.SelectDB != 3 || option.Dialer.Timeout != 7*time.Second {
		t.Errorf("settings: %+v", option)
	}
	for _, address := range []string{
		"http://me:secret@x", "redis://me:secret@[::1", "redis://me:secret@h:1/x", "redis://me:secret@h:1?addr=h:2", "\x00secret",
	} {
		if _, err := Dial(address); interlock.Kind(err) != interlock.Definite || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v; want a definite error that does not repeat the password", address, err)
		}
	}
	if _, err := Dial("redis://127.0.0.1:1"); interlock.Kind(err) != interlock.Retryable {
		t.Errorf("no server listens: %v", err)
	}
}

// TestMaxClients: a server with maxclients connections closes each further one, which its clients see
// as the end of the stream.
func TestMaxClients(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	operator := dial(t, server.Addr())
	mustDo(t, operator, "CONFIG", "SET", "maxclients", "1")
	_, err := Dial(server.URL())
	if interlock.Kind(err) != interlock.Retryable || !strings.Contains(err.Error(), "maxclients") {
		t.Errorf("a connection too many: %v", err)
	}
}

func TestParseInfo(t *testing.T) {
	t.Parallel()
	f := parseInfo("# Server\r\nredis_version:7.0.15\r\nrole:master\r\ncluster_enabled:0\r\naof_enabled:1\r\n" +
		"maxmemory:1048576\r\nmaxmemory_policy:allkeys-lru\r\n")
	if (f != facts{version: "7.0.15", role: "master", cluster: "0", policy: "allkeys-lru", durable: true}) {
		t.Errorf("%+v", f)
	}
	for _, f := range []facts{{version: "5.0.7"}, {role: "slave"}, {cluster: "1"}, {policy: "allkeys-lru"}, {policy: "volatile-ttl"}, {policy: ""}} {
		if f.version != "" || f.role != "" || f.cluster != "" {
			f.policy = "noeviction"
		}
		if err := f.refusal(Settings{}); interlock.Kind(err) != interlock.Definite || err == nil {
			t.Errorf("%+v was accepted", f)
		}
	}
	for _, f := range []facts{
		{version: "7.0.15", role: "master", cluster: "0", policy: "noeviction"},
		{version: "7.0.15", role: "slave", cluster: "1", clustered: true, policy: "noeviction"}, // one node of a cluster
	} {
		if err := f.refusal(Settings{}); err != nil {
			t.Errorf("%+v: %v", f, err)
		}
	}
}

func TestServersThatCannotKeepLocksAreRefused(t *testing.T) {
	t.Parallel()
	cluster := testbed.Redis(t, "--cluster-enabled", "yes")
	client := dial(t, cluster.Addr())
	if _, err := Open(t.Context(), client, nil); err == nil || !strings.Contains(err.Error(), "Redis Cluster") {
		t.Errorf("a cluster: %v", err)
	}
	for _, name := range oddNames { // the reference for the slot of a key
		slot, err := raw(t, client, "CLUSTER", "KEYSLOT", name).AsInt64()
		if err != nil || int(slot) != slotOf(name) {
			t.Errorf("slot of %q is %d (%v), we say %d", name, slot, err, slotOf(name))
		}
	}

	master := testbed.Redis(t)
	host, port, _ := strings.Cut(master.Addr(), ":")
	replica := testbed.Redis(t, "--replicaof", host, port)
	if _, err := Open(t.Context(), dial(t, replica.Addr()), nil); err == nil || !strings.Contains(err.Error(), "replica") {
		t.Errorf("a replica: %v", err)
	}

	sentinel := testbed.Sentinel(t, master)
	for _, options := range []string{"", "?eviction=none"} {
		client, err := Dial("redis://" + sentinel.Addr() + options)
		testbed.OK(t, err)
		defer client.Close()
		if _, err := Open(t.Context(), client, nil); err == nil || !strings.Contains(err.Error(), "master_set=NAME") {
			t.Errorf("a sentinel: %v", err)
		}
	}

	operator := dial(t, master.Addr())
	for user, rights := range map[string][]string{
		"noscripts": {"~*", "&*", "+@all", "-@scripting"},
		"nochannel": {"~*", "resetchannels", "+@all"},
	} {
		mustDo(t, operator, append([]string{"ACL", "SETUSER", user, "on", ">pw"}, rights...)...)
		limited, err := Dial("redis://" + user + ":pw@" + master.Addr())
		testbed.OK(t, err)
		defer limited.Close()
		_, err = Open(t.Context(), limited, nil)
		var native *rueidis.RedisError
		if interlock.Kind(err) != interlock.Definite || !errors.As(err, &native) || !strings.Contains(err.Error(), "NOPERM") {
			t.Errorf("user %s: %v", user, err)
		}
	}
}

func TestConfigurationWithoutPermissionPromisesLess(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t, "--appendonly", "yes", "--appendfsync", "always")
	operator := dial(t, server.Addr())
	mustDo(t, operator, "ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-config")
	d := openOn(t, server.Addr(), nil)
	if !d.Guarantees().ExclusionSurvives.Has(interlock.ServerCrash) {
		t.Error("a durable server: exclusion should survive its crash")
	}
	limited := openOn(t, "app:pw@"+server.Addr(), nil)
	if limited.Guarantees().ExclusionSurvives.Has(interlock.ServerCrash) {
		t.Error("what cannot be known was promised")
	}
	mustDo(t, operator, "CONFIG", "SET", "no-appendfsync-on-rewrite", "yes")
	if openOn(t, server.Addr(), nil).Guarantees().ExclusionSurvives.Has(interlock.ServerCrash) {
		t.Error("a server that does not sync during a rewrite was taken for a durable one")
	}
}

// A call must return soon after its ctx is done, even while the client dials.
func TestCallsReturnWhileTheClientDials(t *testing.T) {
	server := testbed.Redis(t)
	path := testbed.NewProxy(t, server.Addr())
	d := openOn(t, path.Addr()+"?dial_timeout=10m", nil)
	take(t, d, "before") // from here on callers send their requests
	path.Cut()
	path.Heal() // closes the connection
	path.Delay(30 * time.Second)
	cause := errors.New("enough")
	// The first calls may use the closed connection.
	for waited, end := 0, time.Now().Add(bound); waited < 2; {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, cause)
		began := time.Now()
		_, err := d.Acquire(ctx, driver.Request{Name: "a", Owner: newOwner()})
		cancel()
		if took := time.Since(began); took > time.Second || interlock.Kind(err) != interlock.Uncertain {
			t.Fatalf("returned %v after %v", err, took)
		}
		if errors.Is(err, cause) {
			waited++
		}
		if time.Now().After(end) {
			t.Fatalf("the client never dialled: %v", err)
		}
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, cause)
	defer cancel()
	closed := make(chan error, 1)
	go func() { closed <- d.Close(ctx) }()
	if err := testbed.Receive(t, closed, "the end of Close"); !errors.Is(err, cause) {
		t.Errorf("Close while the client dials: %v", err)
	}
	path.Cut()
	path.Heal() // the dial fails
}

// To open a backend ends with its ctx, even if the server does not answer.
func TestOpeningEndsWithItsContext(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	server.Pause()
	cause := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, cause)
	defer cancel()
	opened := make(chan error, 1)
	go func() {
		_, err := backend.Open(ctx, server.URL()+"?dial_timeout=10m")
		opened <- err
	}()
	if err := testbed.Receive(t, opened, "the end of Open"); !errors.Is(err, cause) || interlock.Kind(err) != interlock.Definite {
		t.Errorf("a server that does not answer: %v", err)
	}
	server.Resume()
}
