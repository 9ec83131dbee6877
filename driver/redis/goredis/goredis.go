// Package goredis lets users of go-redis pass their client to package driver/redis. It
// sends nothing by that client: a go-redis client repeats a command whose answer was lost,
// by default up to three times, on any connection of its pool. An acquired lock would then
// seem to be held by another owner, and a late request could overtake a release. So the
// result has connections of its own to the same servers, configured like those of the
// go-redis client.
//
//	client, err := goredis.Client(rdb, redis.Settings{})
//	d, err := redis.Open(ctx, client, nil) // github.com/interlock-dev/interlock/driver/redis
//
// # Configuration
//
// Address, database, account and credentials provider, TLS, dialer, protocol and client
// name are copied from a *redis.Client or a *redis.ClusterClient. A client of
// redis.NewFailoverClient asks its sentinels for the master at each connection. Pools,
// timeouts, retries, hooks, limiters and caches are not copied: the timeouts are those of
// driver/redis.
package goredis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/redis"
)

// credentialsFor bounds a call of a credentials provider.
const credentialsFor = 5 * time.Second

// Client connects to the servers of c, with settings that are safe for locks; see
// [redis.Dial]. It blocks for a few seconds at most. Close the result after the drivers
// that use it and before c, whose sentinels it asks.
//
// The error is Definite if c cannot be copied. It may be neither a *redis.Client nor a
// *redis.ClusterClient (a Ring is neither). Or it has OnConnect, a streaming credentials
// provider or ClusterSlots, which only go-redis can call.
func Client(c goredis.UniversalClient, s redis.Settings) (rueidis.Client, error) {
	option, err := optionOf(c)
	if err != nil {
		return nil, &interlock.Error{Op: "connect", Driver: "redis", Kind: interlock.Definite, Err: err}
	}
	return redis.Connect(option, s)
}

func optionOf(c goredis.UniversalClient) (rueidis.ClientOption, error) {
	switch c := c.(type) {
	case *goredis.Client:
		if c == nil {
			break
		}
		o := c.Options()
		option := rueidis.ClientOption{InitAddress: []string{o.Addr}, SelectDB: o.DB, ForceSingleClient: true,
			DialCtxFn: dialer(o.Network, o.Dialer)} // with TLS, if configured
		err := account{o.ClientName, o.Username, o.Password, o.Protocol, o.CredentialsProvider, o.CredentialsProviderContext,
			o.StreamingCredentialsProvider != nil, o.OnConnect != nil}.add(&option)
		return option, err
	case *goredis.ClusterClient:
		if c == nil {
			break
		}
		o := c.Options()
		option := rueidis.ClientOption{InitAddress: o.Addrs, TLSConfig: o.TLSConfig}
		if o.Dialer != nil {
			option.DialCtxFn = dialer("tcp", o.Dialer)
		}
		if o.ClusterSlots != nil {
			return option, errors.New("ClusterSlots of the go-redis client cannot be used: it must be a Redis Cluster")
		}
		err := account{o.ClientName, o.Username, o.Password, o.Protocol, o.CredentialsProvider, o.CredentialsProviderContext,
			o.StreamingCredentialsProvider != nil, o.OnConnect != nil}.add(&option)
		return option, err
	}
	return rueidis.ClientOption{}, fmt.Errorf("a %T is not supported: use a *redis.Client or a *redis.ClusterClient", c)
}

// dialer dials as go-redis does. An error means that nothing was sent.
func dialer(network string, dial func(ctx context.Context, network, address string) (net.Conn, error)) func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
	return func(ctx context.Context, address string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, d.Timeout)
		defer cancel()
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, &net.OpError{Op: "dial", Net: network, Err: err}
		}
		return conn, nil
	}
}

// account is the account of a connection.
type account struct {
	client, user, password string
	protocol               int
	provider               func() (user, password string)
	providerContext        func(context.Context) (user, password string, err error)
	streams, onConnect     bool
}

func (a account) add(option *rueidis.ClientOption) error {
	if a.streams {
		return errors.New("the StreamingCredentialsProvider of the go-redis client cannot be used: use CredentialsProviderContext")
	}
	if a.onConnect {
		return errors.New("OnConnect of the go-redis client cannot be called: use a client without it")
	}
	option.ClientName, option.AlwaysRESP2 = a.client, a.protocol == 2
	option.Username, option.Password = a.user, a.password
	if a.provider != nil || a.providerContext != nil {
		option.AuthCredentialsFn = a.credentials
	}
	return nil
}

// credentials returns the credentials of a new connection.
func (a account) credentials(rueidis.AuthCredentialsContext) (c rueidis.AuthCredentials, err error) {
	if a.providerContext == nil {
		c.Username, c.Password = a.provider()
		return c, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), credentialsFor)
	defer cancel()
	c.Username, c.Password, err = a.providerContext(ctx)
	return c, err
}
