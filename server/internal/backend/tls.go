package backend

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
)

// tlsOptions are those of URLs whose schemes do not say whether TLS is used: each of them
// turns it on.
var tlsOptions = []string{"tls", "tls_ca", "tls_cert", "tls_key"}

// TLS is how the options of an etcd or ZooKeeper URL want its servers to be reached; nil
// is without TLS. tls_ca is a file with the authorities that sign the servers' certificates,
// instead of the system's; tls_cert and tls_key are files with a certificate of our own. It
// reads the files. Errors are [*URLError].
func (t Target) TLS() (*tls.Config, error) {
	ca, cert, key := t.query.Get("tls_ca"), t.query.Get("tls_cert"), t.query.Get("tls_key")
	if (t.kind != "etcd" && t.kind != "zookeeper") || len(t.query) == 0 {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		text, err := os.ReadFile(ca)
		if err != nil {
			return nil, &URLError{"tls_ca: " + err.Error()}
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, &URLError{"tls_ca: " + ca + " has no certificate in PEM form"}
		}
	}
	if cert != "" || key != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, &URLError{"tls_cert and tls_key: " + err.Error()}
		}
		c.Certificates = []tls.Certificate{pair}
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
