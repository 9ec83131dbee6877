package redis

import (
	"context"
	"errors"
	"net/url"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// dialTimeout bounds connecting. silence is how long an answer may take before the
// connection is closed, so that a new one can renew in time.
const (
	dialTimeout = 2 * time.Second
	silence     = 2 * time.Second
)

// rediscover is how often a client asks sentinels, or a cluster, who the masters are,
// in case it missed a change.
const rediscover = 5 * time.Second

// Dial connects to one server, to the master that sentinels know, or to a cluster, with
// settings that are safe for locks: nothing is sent twice, and a silent connection is
// closed after seconds. It blocks for at most a few seconds. URLs are redis://,
// rediss:// or unix://, as rueidis.ParseURL describes. Options in the query:
//
//   - dial_timeout and write_timeout change the timeouts.
//   - master_set=NAME: the address, and others as addr=HOST:PORT, are those of sentinels.
//   - sentinel_user=NAME, sentinel_password=TEXT: the account at the sentinels; the one
//     before the host is the account at the servers.
//   - cluster=true: the addresses are those of servers of a cluster.
//   - tls_ca=FILE, tls_cert=FILE, tls_key=FILE, of rediss://: the authorities that sign
//     the servers' certificates, instead of the system's, and a certificate of our own.
//   - eviction=none, replicas=N, fsync=true: [Settings].
//
// To one server it has one connection, and a second one while locks are acquired and
// released one at a time. Close the client after the drivers that use it.
func Dial(address string) (rueidis.Client, error) {
	option, settings, err := clientOption(address)
	if err != nil {
		return nil, problem(request{op: "connect"}, interlock.Definite, err)
	}
	return Connect(option, settings)
}

// dialWithin is Dial until ctx ends. A connection that opens later is closed.
func dialWithin(ctx context.Context, address string) (rueidis.Client, error) {
	type result struct {
		client rueidis.Client
		err    error
	}
	dialed := make(chan result)
	go func() { // ends when the dial does
		client, err := Dial(address)
		select {
		case dialed <- result{client, err}:
		case <-ctx.Done():
			if err == nil {
				client.Close()
			}
		}
	}()
	select {
	case r := <-dialed:
		return r.client, r.err
	case <-ctx.Done():
		return nil, unsent(request{op: "connect"}, context.Cause(ctx))
	}
}

// Connect connects as [Dial] does, with options of the client instead of a URL. It sets
// what locks need: nothing is sent twice, requests keep their order, and timeouts that
// are zero become short. option.Sentinel.MasterSet is for sentinels, several addresses
// in option.InitAddress are for a cluster.
func Connect(option rueidis.ClientOption, settings Settings) (rueidis.Client, error) {
	safe(&option)
	l := newLink(&option)
	client, err := rueidis.NewClient(option)
	if err != nil {
		if client != nil {
			client.Close()
		}
		return nil, failure(request{op: "connect", harmless: true}, err)
	}
	return &configured{client, settings, l}, nil
}

// clientOption returns the client's options; its errors do not repeat the URL,
// which may contain a password.
func clientOption(address string) (option rueidis.ClientOption, settings Settings, err error) {
	option, err = rueidis.ParseURL(address)
	var malformed *url.Error
	if errors.As(err, &malformed) {
		err = errors.Join(errors.New("not a URL"), malformed.Err)
	}
	if err != nil {
		return option, settings, err
	}
	u, err := url.Parse(address)
	if err != nil {
		return option, settings, errors.New("not a URL")
	}
	query := u.Query()
	sentinel, cluster := option.Sentinel.MasterSet != "", query.Get("cluster") == "true"
	switch {
	case !sentinel && (query.Has("sentinel_user") || query.Has("sentinel_password")):
		err = errors.New("sentinel_user and sentinel_password need master_set=NAME")
	case query.Has("cluster") && !cluster:
		err = errors.New("the option cluster must be true, or omitted")
	case cluster && (sentinel || option.SelectDB != 0):
		err = errors.New("a cluster has neither sentinels nor numbered databases")
	case len(option.InitAddress) > 1 && !sentinel && !cluster:
		err = errors.New("several addresses need master_set=NAME, for sentinels, or cluster=true")
	default:
		settings, err = settingsIn(query)
	}
	if err == nil {
		err = secure(&option, query, sentinel || cluster)
	}
	option.Sentinel.Username, option.Sentinel.Password = query.Get("sentinel_user"), query.Get("sentinel_password")
	option.ForceSingleClient = !sentinel && !cluster
	return option, settings, err
}

// safe sets the options that locks need.
func safe(option *rueidis.ClientOption) {
	if option.Dialer.Timeout == 0 {
		option.Dialer.Timeout = dialTimeout
	}
	option.Sentinel.Dialer.Timeout = option.Dialer.Timeout
	if option.ConnWriteTimeout == 0 {
		option.ConnWriteTimeout = silence
	}
	if option.ClientName == "" {
		option.ClientName = "interlock"
	}
	option.DisableRetry, option.DisableCache = true, true
	option.Sentinel.TopologyRefreshInterval, option.ClusterOption.ShardsRefreshInterval = rediscover, rediscover
	option.BlockingPoolCleanup = time.Minute // of connections that waited for a disk
	option.PipelineMultiplex = -1            // one connection, so that requests keep their order
	option.ReadBufferEachConn, option.WriteBufferEachConn = 1<<16, 1<<16
}

// secure reads the certificates. If there are several servers, each is verified by the
// name in its address.
func secure(option *rueidis.ClientOption, query url.Values, several bool) error {
	if option.TLSConfig == nil {
		if query.Get("tls_ca")+query.Get("tls_cert")+query.Get("tls_key") != "" {
			return errors.New("tls_ca, tls_cert and tls_key are options of rediss://")
		}
		return nil
	}
	if several {
		option.TLSConfig.ServerName = ""
	}
	option.Sentinel.TLSConfig = option.TLSConfig
	return driver.LoadTLS(option.TLSConfig, query)
}

// settingsIn returns the Settings in the query of a URL.
func settingsIn(query url.Values) (s Settings, err error) {
	if query.Has("eviction") {
		if s.NoEviction = query.Get("eviction") == "none"; !s.NoEviction {
			return s, errors.New("the option eviction must be none, or omitted")
		}
	}
	if query.Has("replicas") {
		if s.Replicas, err = strconv.Atoi(query.Get("replicas")); err != nil || s.Replicas < 0 {
			return s, errors.New("the option replicas is a number, 0 or more")
		}
	}
	if query.Has("fsync") {
		if s.Fsync = query.Get("fsync") == "true"; !s.Fsync {
			return s, errors.New("the option fsync must be true, or omitted")
		}
	}
	return s, nil
}
