package backend

import (
	"context"
	"crypto/tls"
	"net"

	"github.com/interlock-dev/interlock/driver"
)

// TLSOptions are options of URLs whose scheme does not tell whether TLS is used: each of
// them turns it on. A driver that lists them in [Scheme.Options] has [CheckTLS] called by
// its Check, and uses [URL.TLS].
var TLSOptions = []string{"tls", "tls_ca", "tls_cert", "tls_key"}

// CheckTLS refuses values of [TLSOptions] that mean nothing, with a [*URLError].
func CheckTLS(u *URL) error {
	if u.query.Has("tls") && u.query.Get("tls") != "true" {
		return &URLError{"the option tls of " + article(u.Kind()) + " URL has the value true, or is left out"}
	}
	if u.query.Has("tls_cert") != u.query.Has("tls_key") {
		return &URLError{"tls_cert and tls_key are given together"}
	}
	return nil
}

// TLS is how the [TLSOptions] of the URL want the servers to be reached; nil is without TLS.
// It reads the files that they name (driver.LoadTLS). Errors are [*URLError].
func (u *URL) TLS() (*tls.Config, error) {
	wanted := false
	for _, name := range TLSOptions {
		wanted = wanted || u.query.Has(name)
	}
	if !wanted {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if err := driver.LoadTLS(c, u.query); err != nil {
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

// Probe is nil if at least one of the servers accepts a connection. The clients of etcd and
// ZooKeeper wait for servers that refuse as patiently as for slow ones.
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
