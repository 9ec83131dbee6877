package consul

import (
	"cmp"
	"context"
	"crypto/tls"
	"os"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
)

func init() {
	backend.Register(backend.Scheme{
		Kind: "consul", Form: "consul://host:port", Port: "8500",
		Options: append([]string{"token"}, backend.TLSOptions...), Settings: map[string][]string{"lock_delay": nil}, Prefixes: true,
		Abilities: backend.Values,
		Hint:      "the ACL token is ?token=, or CONSUL_HTTP_TOKEN in the environment",
		MinTTL:    minTTL, MaxTTL: maxTTL,
		Check: func(u *backend.URL) error {
			if u.Path() != "" || u.User() != nil {
				return &backend.URLError{Reason: "a consul URL is consul://host:port; use ?prefix= or --prefix for a part of the key space, and ?token= for an ACL token"}
			}
			if _, err := lockDelay(u); err != nil {
				return err
			}
			return backend.CheckTLS(u)
		},
		Connect: func(_ context.Context, u *backend.URL) (backend.Connection, error) {
			secure, err := u.TLS()
			c := connection{url: u, secure: secure}
			c.client = newClient(*c.options(""))
			return c, err
		},
	})
}

func lockDelay(u *backend.URL) (time.Duration, error) {
	text := u.Setting("lock_delay")
	if text == "" {
		return 0, nil
	}
	delay, err := time.ParseDuration(text)
	if err != nil || delay < 0 || delay > maxLockDelay {
		return 0, &backend.URLError{Reason: "lock_delay is a duration such as 15s, from 0s to 1m"}
	}
	return delay, nil
}

// connection is what a URL opens.
type connection struct {
	url    *backend.URL
	secure *tls.Config
	client *client // of KeyValues
}

func (c connection) options(prefix string) *Options {
	delay, _ := lockDelay(c.url) // validated by Check
	return &Options{Address: c.url.Hosts()[0], TLS: c.secure, Prefix: prefix, LockDelay: delay,
		Token: cmp.Or(c.url.Query().Get("token"), os.Getenv("CONSUL_HTTP_TOKEN"))}
}

// Fenced opens a [Driver].
func (c connection) Fenced(ctx context.Context, o backend.LockOptions) (backend.Locks, error) {
	options := c.options(o.Prefix)
	options.TTL, options.Seed = o.TTL, o.Seed
	return Open(ctx, options)
}

// Values opens those of [NewValues].
func (c connection) Values(_ context.Context, prefix string) (driver.Values, error) {
	return NewValues(c.options(prefix))
}

// KeyValues opens the store of [NewKeyValues].
func (c connection) KeyValues(prefix string) driver.KeyValues {
	return newKeyValues(c.client, cmp.Or(prefix, defaultPrefix))
}

// Close closes idle connections: a [Driver] closes its own.
func (c connection) Close() error {
	c.client.idle()
	return nil
}
