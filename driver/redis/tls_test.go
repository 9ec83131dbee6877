package redis

import (
	"net"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// secured starts a server with TLS, and returns its address and the files of its
// self-signed certificate and of the key.
func secured(t *testing.T) (addr, cert, key string) {
	t.Helper()
	cert, key = testbed.CertificateFiles(t)
	server := testbed.Redis(t, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert, "--tls-auth-clients", "yes")
	operator := dial(t, server.Addr())
	// Another process may take the free port before the server does; then try another.
	testbed.Eventually(t, "the server listens for TLS", bound, func() bool {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return false
		}
		addr = l.Addr().String()
		_ = l.Close()
		_, port, _ := net.SplitHostPort(addr)
		return raw(t, operator, "CONFIG", "SET", "tls-port", port).Error() == nil
	})
	mustDo(t, operator, "ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all")
	return addr, cert, key
}

// Locks over TLS, with authority and certificates from files. An unknown authority,
// and a client without certificate, are refused.
func TestTLS(t *testing.T) {
	t.Parallel()
	addr, cert, key := secured(t)
	own := "&tls_cert=" + cert + "&tls_key=" + key
	client, err := Dial("rediss://app:pw@" + addr + "?tls_ca=" + cert + own)
	testbed.OK(t, err)
	defer client.Close()
	d := openWith(t, client, nil)
	openDirect(t, d)
	owner, _ := take(t, d, "a")
	release(t, d, "a", owner)
	d.Close(t.Context())
	for what, url := range map[string]string{
		"an unknown authority": "rediss://app:pw@" + addr + "?" + own[1:],
		"no certificate":       "rediss://app:pw@" + addr + "?tls_ca=" + cert,
		"without TLS":          "redis://app:pw@" + addr,
		"a missing file":       "rediss://app:pw@" + addr + "?tls_ca=" + cert + ".missing",
	} {
		if _, err := Dial(url); err == nil || interlock.Kind(err) == interlock.Bug {
			t.Errorf("%s: %v: %v", what, interlock.Kind(err), err)
		}
	}
}
