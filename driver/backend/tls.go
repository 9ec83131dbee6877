package backend

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"sync"

	"github.com/interlock-dev/interlock/driver"
)

// TLSOptions are URL options for schemes that do not imply TLS: each of them enables it. A
// driver that lists them in [Scheme.Options] calls [CheckTLS] in its Check, and uses
// [URL.TLS].
var TLSOptions = []string{"tls", "tls_ca", "tls_cert", "tls_key"}

// CheckTLS rejects invalid values of [TLSOptions], with a [*URLError].
func CheckTLS(u *URL) error {
	if u.query.Has("tls") && u.query.Get("tls") != "true" {
		return &URLError{"the option tls of " + article(u.Kind()) + " URL has the value true, or is left out"}
	}
	if u.query.Has("tls_cert") != u.query.Has("tls_key") {
		return &URLError{"tls_cert and tls_key are given together"}
	}
	return nil
}

// TLS returns the configuration that the [TLSOptions] of the URL request; nil means no TLS.
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

// Dialer returns a function that connects by TCP, and by TLS if c is not nil. TLS verifies
// the certificate for the dialed host.
func Dialer(c *tls.Config) func(ctx context.Context, network, address string) (net.Conn, error) {
	if c == nil {
		return new(net.Dialer).DialContext
	}
	return (&tls.Dialer{Config: c}).DialContext
}

// Probe returns nil once a server accepts a connection, else the error of the first one. It asks
// all servers at once: a machine that is switched off refuses nothing, and would use up the time.
// The clients of etcd and ZooKeeper wait as long for servers that refuse as for slow ones.
func Probe(ctx context.Context, servers []string, c *tls.Config) error {
	dial := Dialer(c)
	ctx, cancel := context.WithCancel(ctx)
	errs, answers := make([]error, len(servers)), make(chan error, len(servers))
	var dials sync.WaitGroup
	defer dials.Wait()
	defer cancel()
	for i, server := range servers {
		dials.Go(func() {
			conn, err := dial(ctx, "tcp", server)
			if err == nil {
				err = conn.Close()
			}
			errs[i] = err
			answers <- err
		})
	}
	for range servers {
		if <-answers == nil {
			return nil
		}
	}
	return cmp.Or(errs...)
}
