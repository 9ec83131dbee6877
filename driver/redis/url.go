package redis

import (
	"context"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
)

func init() {
	backend.Register(backend.Scheme{
		Kind: "redis", Also: []string{"rediss"}, Form: "redis://host:port[/number]", Port: "6379",
		Options: []string{"addr", "client_cache", "client_name", "cluster", "dial_timeout", "eviction", "fsync", "master_set", "max_retries",
			"protocol", "replicas", "sentinel_password", "sentinel_user", "skip_verify", "tls_ca", "tls_cert", "tls_key", "write_timeout"},
		Settings:  map[string][]string{"mode": {"fenced", "plain"}},
		Several:   true, // for the hint of Check
		Prefixes:  true,
		Hint:      "the number of a database is the path: redis://host:6379/1",
		Abilities: backend.Values | backend.Guards,
		MinTTL:    MinTTL, MaxTTL: MaxTTL,
		Check: checkURL,
		CheckFenced: func(u *backend.URL) error {
			if u.Setting("mode") == "plain" {
				return backend.WithoutTokens("plain")
			}
			return nil
		},
		Connect: func(ctx context.Context, u *backend.URL) (backend.Connection, error) {
			client, err := dialWithin(ctx, u.Client())
			if err != nil {
				return nil, err
			}
			return connection{client, u.Setting("mode") == "plain"}, nil
		},
	})
}

func checkURL(u *backend.URL) error {
	if len(u.Hosts()) > 1 {
		return &backend.URLError{Reason: "a redis URL names one host:port; further ones of a cluster or of sentinels are options: " +
			"redis://a:6379?cluster=true&addr=b:6379, redis://a:26379?master_set=NAME&addr=b:26379"}
	}
	if n := strings.TrimPrefix(u.Path(), "/"); u.Path() != "" {
		if _, err := strconv.ParseUint(n, 10, 31); err != nil { // the server knows how many there are
			return &backend.URLError{Reason: "a redis URL ends with the number of a database, 0 or more, as in redis://host:6379/1, or with nothing"}
		}
	}
	if _, err := rueidis.ParseURL(u.Client()); err != nil { // it knows the valid options
		return &backend.URLError{Reason: "the redis URL has an " + strings.TrimPrefix(err.Error(), "redis: ")}
	}
	return nil
}

// connection is what a URL opens.
type connection struct {
	client rueidis.Client
	plain  bool
}

// Fenced opens a [Driver].
func (c connection) Fenced(ctx context.Context, o backend.LockOptions) (backend.Locks, error) {
	if o.Seed != (driver.Seed{}) {
		return nil, &backend.URLError{Reason: "the tokens of Redis start at the clock of its server, and cannot be moved or repaired"}
	}
	return Open(ctx, c.client, &Options{Prefix: o.Prefix, TTL: o.TTL})
}

// View opens a [Plain] for ?mode=plain.
func (c connection) View(ctx context.Context, o backend.LockOptions) (backend.View, bool, error) {
	if !c.plain {
		return nil, false, nil
	}
	p, err := OpenPlain(ctx, c.client, &Options{Prefix: o.Prefix})
	return p, true, err
}

// Values opens the values of [NewValues].
func (c connection) Values(_ context.Context, prefix string) (driver.Values, error) {
	return NewValues(c.client, prefix), nil
}

// KeyValues opens the store of [NewKeyValues].
func (c connection) KeyValues(prefix string) driver.KeyValues { return NewKeyValues(c.client, prefix) }

// Fence opens that of [NewFence], whose keys have no prefix.
func (c connection) Fence(string) driver.Fence { return NewFence(c.client) }

// Requests opens the records of [NewIdempotency].
func (c connection) Requests(prefix string) driver.Idempotency {
	return NewIdempotency(c.client, prefix)
}

// Limiter opens that of [NewLimiter].
func (c connection) Limiter(prefix string) driver.Limiter { return NewLimiter(c.client, prefix) }

// Queue opens that of [NewQueue], whose streams have no prefix.
func (c connection) Queue() driver.Queue { return NewQueue(c.client, nil) }

// Close closes the connections.
func (c connection) Close() error {
	c.client.Close()
	return nil
}
