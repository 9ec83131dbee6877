package backend_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/server/internal/backend"
	"github.com/interlock-dev/interlock/server/internal/doctor"
)

// locked takes and releases a lock of a URL, reads one of its values, and examines it.
func locked(t *testing.T, address string) error {
	t.Helper()
	target, err := backend.Parse(address)
	testbed.OK(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	l, err := target.Locks(ctx, backend.Options{})
	if err != nil {
		return err
	}
	defer func() {
		if err := l.Close(ctx); err != nil {
			t.Error(err)
		}
	}()
	if _, err := l.Acquire(ctx, driver.Request{Name: "a", Owner: "me"}); err != nil {
		return err
	}
	v, disconnect, err := target.Values(ctx, "")
	if err != nil {
		return err
	}
	defer disconnect()
	_, err = v.Get(ctx, "a")
	_, examined := doctor.Examine(ctx, address, doctor.Options{})
	return errors.Join(err, l.Release(ctx, "a", "me"), examined)
}

// TestEtcdTLS requires that URL options reach an etcd that requires certificates.
func TestEtcdTLS(t *testing.T) {
	t.Parallel()
	cert, key := testbed.CertificateFiles(t)
	secured(t, "etcd://"+testbed.EtcdTLS(t, cert, cert, key).Addr(), cert, key)
}

// TestConsulTLS requires the same for a Consul agent.
func TestConsulTLS(t *testing.T) {
	t.Parallel()
	cert, key := testbed.CertificateFiles(t)
	secured(t, "consul://"+testbed.ConsulTLS(t, cert, cert, key).Addr(), cert, key)
}

// TestZooKeeperTLS uses a TLS proxy before the server, which requires certificates.
func TestZooKeeperTLS(t *testing.T) {
	t.Parallel()
	cert, key := testbed.CertificateFiles(t)
	secured(t, "zookeeper://"+terminated(t, testbed.ZooKeeper(t).Addr(), cert, key), cert, key)
}

// secured requires that a backend is reached with both certificates, and not without its
// authority's. An unreadable file is an error of the URL.
func secured(t *testing.T, address, cert, key string) {
	t.Helper()
	query := url.Values{"tls_ca": {cert}, "tls_cert": {cert}, "tls_key": {key}}
	testbed.OK(t, locked(t, address+"?"+query.Encode()))
	err := locked(t, address+"?tls=true")
	var unknown *tls.CertificateVerificationError
	if !errors.As(err, &unknown) {
		t.Errorf("with the system's authorities: %v (%v)", err, interlock.Kind(err))
	}
	for _, query := range []string{"tls_ca=/nowhere", "tls_ca=" + url.QueryEscape(key), "tls_cert=/nowhere&tls_key=/nowhere"} {
		if err := locked(t, address+"?"+query); !errors.As(err, new(*backend.URLError)) {
			t.Errorf("%s: %v", query, err)
		}
	}
}

// terminated starts a TLS proxy with client certificates for a plain server.
func terminated(t *testing.T, server, cert, key string) (address string) {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(cert, key)
	testbed.OK(t, err)
	pool, err := driver.Authorities(cert)
	testbed.OK(t, err)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert})
	testbed.OK(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return // the test is over
			}
			go pass(client, server)
		}
	}()
	return l.Addr().String()
}

// pass copies both ways until either side closes.
func pass(client net.Conn, server string) {
	defer client.Close()
	to, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	defer to.Close()
	go func() {
		_, _ = io.Copy(to, client)
		to.Close()
	}()
	_, _ = io.Copy(client, to)
}
