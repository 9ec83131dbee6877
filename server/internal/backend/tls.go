package backend

import (
	"context"
	"crypto/tls"
	"net"

	"github.com/interlock-dev/interlock/driver"
)

// tlsOptions are those of URLs whose schemes do not say whether TLS is used: each of them
// turns it on.
var tlsOptions = []string{"tls", "tls_ca", "tls_cert", "tls_key"}

// TLS is how the options of an etcd or ZooKeeper URL want its servers to be reached; nil
// is without TLS. It reads the files that they name ([driver.LoadTLS]). Errors are
// [*URLError].
func (t Target) TLS() (*tls.Config, error) {
	if (t.kind != "etcd" && t.kind != "zookeeper") || len(t.query) == 0 {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if err := driver.LoadTLS(c, t.query); err != nil {
		return nil, &URLError{err.Error()}
	}
	return c, nil
}

// Dialer connects by TCP, and by TLS with a configuration that is not nil. A server's
// certificate is checked for the host that is dialed.
func Dialer(c *tls.Config) func(ctx context.Context, network, address string) (net.Conn, error) {
	if c == nil {
		return new(net.Dialer).DialContext
	}
	return (&tls.Dialer{Config: c}).DialContext
}

// Probe is nil if at least one of the servers accepts a connection: the clients of etcd
// and ZooKeeper wait for servers that refuse as patiently as for slow ones.
func Probe(ctx context.Context, servers []string, c *tls.Config) (first error) {
	dial := Dialer(c)
	for _, server := range servers {
		conn, err := dial(ctx, "tcp", server)
		if err == nil {
			return conn.Close()
		}
		if first == nil {
			first = err
		}
	}
	return first
}

// checkTLS refuses options that mean nothing.
func (t Target) checkTLS() error {
	if t.kind != "etcd" && t.kind != "zookeeper" {
		return nil
	}
	if t.query.Has("tls") && t.query.Get("tls") != "true" {
		return &URLError{"the option tls of " + article(t.kind) + " URL has the value true, or is left out"}
	}
	if t.query.Has("tls_cert") != t.query.Has("tls_key") {
		return &URLError{"tls_cert and tls_key are given together"}
	}
	return nil
}
