package backend

import (
	"context"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/driver/redis"
)

// kind is what is particular to the backends of one sort.
type kind struct {
	port    string                                                 // what a URL without a port means
	several bool                                                   // a URL may name several servers
	min     time.Duration                                          // the shortest lease that the driver asks for
	max     time.Duration                                          // the longest
	open    func(Target, context.Context, Options) (*Locks, error) // the fenced locks
}

// kinds are set up by init, because what they open refers to them.
var kinds map[string]kind

func init() {
	kinds = map[string]kind{
		"etcd":      {port: "2379", several: true, min: time.Second, max: 24 * time.Hour, open: Target.etcdLocks},
		"kube":      {min: 3 * time.Second, max: 24 * time.Hour, open: Target.kubeLocks},
		"mysql":     {port: "3306", min: mysql.MinTTL, max: mysql.MaxTTL, open: Target.mysqlLocks},
		"postgres":  {port: "5432", min: postgres.MinTTL, max: postgres.MaxTTL, open: Target.postgresLocks},
		"redis":     {port: "6379", min: redis.MinTTL, max: redis.MaxTTL, open: Target.redisLocks},
		"zookeeper": {port: "2181", several: true, min: 500 * time.Millisecond, max: 24 * time.Hour, open: Target.zookeeperLocks},
	}
}

// A TTLError says which TTL a backend can grant instead of the one asked for.
type TTLError struct{ Reason string }

// Error is one sentence, without the TTL that was asked for.
func (e *TTLError) Error() string { return e.Reason }

// CheckTTL knows without connecting what cannot be granted; 0 is the default.
// Errors are [*TTLError].
func (t Target) CheckTTL(ttl time.Duration) error {
	k, units := kinds[t.kind], ""
	whole := t.kind == "etcd" || t.kind == "kube"
	if whole {
		units = ", in whole seconds"
	}
	switch {
	case ttl == 0:
	case ttl < k.min || ttl > k.max:
		return &TTLError{fmt.Sprintf("%s grants leases of %v to %v%s", t.kind, k.min, k.max, units)}
	case whole && ttl%time.Second != 0:
		return &TTLError{fmt.Sprintf("%s grants leases in whole seconds; %v would do", t.kind, ttl.Truncate(time.Second)+time.Second)}
	}
	return nil
}
