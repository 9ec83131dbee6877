package backend

import (
	"errors"
	"testing"
	"time"
)

// What a driver would refuse is refused before anything is reached.
func TestCheckTTL(t *testing.T) {
	for _, c := range []struct {
		url string
		ttl time.Duration
		why string
	}{
		{"etcd://h", 1500 * time.Millisecond, "etcd grants leases in whole seconds; 2s would do"},
		{"etcd://h", time.Millisecond, "etcd grants leases of 1s to 24h0m0s, in whole seconds"},
		{"kube://", 2 * time.Second, "kube grants leases of 3s to 24h0m0s, in whole seconds"},
		{"kube://", 3500 * time.Millisecond, "kube grants leases in whole seconds; 4s would do"},
		{"redis://h", 99 * time.Millisecond, "redis grants leases of 100ms to 24h0m0s"},
		{"mysql://h/d", 999 * time.Millisecond, "mysql grants leases of 1s to 24h0m0s"},
		{"postgres://h", 25 * time.Hour, "postgres grants leases of 1s to 24h0m0s"},
		{"zookeeper://h", 499 * time.Millisecond, "zookeeper grants leases of 500ms to 24h0m0s"},
		{"consul://h", 25 * time.Hour, "consul grants leases of 1s to 24h0m0s"},
		{"zookeeper://h", 500 * time.Millisecond, ""}, {"postgres://h", time.Second, ""}, {"kube://", 24 * time.Hour, ""},
		{"mysql://h/d", 0, ""}, {"redis://h", 100 * time.Millisecond, ""}, {"etcd://h", 2 * time.Second, ""},
	} {
		target, err := Parse(c.url)
		if err != nil {
			t.Fatal(err)
		}
		err = target.CheckTTL(c.ttl)
		var bad *TTLError
		if c.why == "" && err != nil || c.why != "" && (!errors.As(err, &bad) || err.Error() != c.why) {
			t.Errorf("%s, %v: %v, want %q", c.url, c.ttl, err, c.why)
		}
	}
}
