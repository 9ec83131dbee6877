package coordinate

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/interlock-dev/interlock/flow/outbox/webhook"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/branchhttp"
)

// TestSlowBodies checks that the service does not wait for a slow request before it is
// authenticated, also over HTTP/2.
func TestSlowBodies(t *testing.T) {
	t.Parallel()
	s := startWith(t, "etcd://"+testbed.Etcd(t).Addr(), Config{Timeout: 300 * time.Millisecond, Access: Access{TokenFile: secrets(t, "s3cret-0123456789")}})
	const head = "POST /v1/sagas/1 HTTP/1.1\r\nHost: localhost\r\n"
	for name, sent := range map[string]string{
		"a part of the body": head + "Content-Length: 100000\r\n\r\n{",
		"a part of a chunk":  head + "Transfer-Encoding: chunked\r\n\r\nffff\r\n{",
		"a part of the head": head,
		"HTTP/2":             "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", s.address)
			ok(t, err)
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(patience))
			_, _ = io.WriteString(conn, sent)
			began := time.Now()
			if _, err := io.Copy(io.Discard, conn); err != nil && os.IsTimeout(err) {
				t.Errorf("the service still waits after %v", time.Since(began))
			}
		})
	}
}

// TestFewConnections checks the limit of one address, and that another connection is
// accepted once one has ended.
func TestFewConnections(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]Access{"of an address": {Each: 2}, "in total": {Total: 2}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startWith(t, "etcd://"+testbed.Etcd(t).Addr(), Config{Access: limit})
			served := func() (net.Conn, bool) {
				conn, err := net.Dial("tcp", s.address)
				ok(t, err)
				_ = conn.SetDeadline(time.Now().Add(patience))
				_, _ = io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
				text := make([]byte, 12)
				_, err = io.ReadFull(conn, text)
				return conn, err == nil && string(text) == "HTTP/1.1 200"
			}
			var open []net.Conn
			for range 2 {
				conn, ok := served()
				if open = append(open, conn); !ok {
					t.Fatal("it is not served")
				}
			}
			if conn, ok := served(); ok {
				t.Error("a connection above the limit is served")
			} else {
				conn.Close()
			}
			open[0].Close()
			testbed.Eventually(t, "there is room again", patience, func() bool {
				conn, ok := served()
				open = append(open, conn)
				return ok
			})
			for _, conn := range open {
				conn.Close()
			}
		})
	}
}

// TestAddressesThatAreCalled checks that a resolved address is checked when it is dialed.
func TestAddressesThatAreCalled(t *testing.T) {
	t.Parallel()
	allowed := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("169.254.7.7/32")}
	for text, want := range map[string]struct{ public, local bool }{
		"93.184.216.34": {true, true}, "2606:2800:220:1::1": {true, true}, "10.1.2.3": {true, true}, "::ffff:10.1.2.3": {true, true}, "169.254.7.7": {true, true},
		"10.2.0.1": {false, true}, "192.168.1.1": {false, true}, "127.0.0.1": {false, true}, "::1": {false, true}, "fd00::1": {false, true}, "::ffff:127.0.0.1": {false, true},
		"169.254.169.254": {}, "::ffff:169.254.169.254": {}, "fe80::1": {}, "0.0.0.0": {}, "::": {}, "224.0.0.1": {}, "100.64.0.1": {}, "64:ff9b::a9fe:a9fe": {}, "2002:7f00:1::": {}, "255.255.255.255": {},
	} {
		ip := netip.MustParseAddr(text)
		if got := (Calls{Networks: allowed}).checkAddress(ip) == nil; got != want.public {
			t.Errorf("%s beyond loopback: %v", text, got)
		}
		if got := (Calls{Networks: allowed, Local: true}).checkAddress(ip) == nil; got != want.local {
			t.Errorf("%s on this machine: %v", text, got)
		}
	}
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	client, err := Calls{}.client(nil)
	ok(t, err)
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	call := branch.Call{Transaction: "1", Branch: "a", Operation: branch.Do, Attempt: 1, Begun: time.Now()}
	_, err = branchhttp.Caller{Client: client}.Post(t.Context(), "http://localhost:"+port, call, nil)
	if class, _ := branch.ClassOf(err); class != branch.ClassRetry || !strings.Contains(err.Error(), "--allow-network") {
		t.Errorf("a name that resolves to this machine: %v", err)
	}
}

// TestCallsAreSigned checks that all secrets of the file sign, and that the id is the call's.
func TestCallsAreSigned(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var wrong []string
	secret, next := strings.Repeat("a", 32), strings.Repeat("b", 32)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		c, err := branchhttp.FromRequest(r)
		mu.Lock()
		defer mu.Unlock()
		for _, s := range []string{secret, next} {
			if err := (webhook.Verifier{Secrets: [][]byte{[]byte(s)}}).Verify(r.Header, body); err != nil {
				wrong = append(wrong, err.Error())
			}
		}
		if id := r.Header.Get("webhook-id"); err != nil || id != strings.ReplaceAll(c.Key(), ".", "%2E") || string(body) != "7" {
			wrong = append(wrong, id)
		}
	}))
	defer server.Close()
	file := secrets(t, secret+"\n"+next+"\n")
	client, err := Calls{Local: true, SecretFile: file}.client(nil)
	ok(t, err)
	defer client.CloseIdleConnections()
	call := branch.Call{Transaction: "order/1.2", Branch: "a.b", Operation: branch.Undo, Attempt: 1, Begun: time.Now()}
	if _, err := (branchhttp.Caller{Client: client}).Post(t.Context(), server.URL, call, []byte("7")); err != nil || len(wrong) > 0 {
		t.Error(err, wrong)
	}
	for _, bad := range []string{"short", "whsec_?????????????????????????", strings.Repeat("a", 65)} {
		rewrite(t, file, bad, 0o600)
		client.Transport.(*signing).secrets.looked = time.Time{}
		if _, err := (branchhttp.Caller{Client: client}).Post(t.Context(), server.URL, call, []byte("7")); err != nil || len(wrong) > 0 {
			t.Errorf("the former secrets are replaced by %q: %v, %v", bad, err, wrong)
		}
		if _, err := (Calls{SecretFile: secrets(t, bad)}).client(nil); err == nil {
			t.Errorf("the secret %q is accepted", bad)
		}
	}
	open := secrets(t, secret)
	ok(t, os.Chmod(open, 0o604))
	if _, err := (Calls{SecretFile: open}).client(nil); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a file that others can read: %v", err)
	}
}

// closeRecorder records that a body was closed.
type closeRecorder struct {
	io.Reader
	closed bool
}

func (c *closeRecorder) Close() error {
	c.closed = true
	return nil
}

// TestUnsentBodiesAreClosed checks calls that are not sent: http.RoundTripper requires it of them too.
func TestUnsentBodiesAreClosed(t *testing.T) {
	t.Parallel()
	for secret, body := range map[string]io.Reader{
		"whsec_!":               strings.NewReader("{}"), // it cannot sign
		strings.Repeat("s", 24): iotest.ErrReader(io.ErrUnexpectedEOF),
	} {
		b := &closeRecorder{Reader: body}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1/", b)
		testbed.OK(t, err)
		s := &signing{secrets: &secretFile{looked: time.Now().Add(time.Hour), secrets: []string{secret}}}
		if answer, err := s.RoundTrip(r); err == nil || !b.closed {
			t.Errorf("%.8s: %v, %v, closed %v", secret, answer, err, b.closed)
		}
	}
}

// TestCallsShowACertificate calls a participant that requires one.
func TestCallsShowACertificate(t *testing.T) {
	t.Parallel()
	cert, key := testbed.CertificateFiles(t)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%q", r.TLS.PeerCertificates[0].Subject.CommonName)
	}))
	server.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	server.StartTLS()
	defer server.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	ok(t, os.WriteFile(ca, text, 0o600))
	c := Calls{Local: true, Certificate: cert, Key: key, CA: ca}
	client, err := c.client(nil)
	ok(t, err)
	defer client.CloseIdleConnections()
	call := branch.Call{Transaction: "1", Branch: "a", Operation: branch.Do, Attempt: 1, Begun: time.Now()}
	if got, err := (branchhttp.Caller{Client: client}).Post(t.Context(), server.URL, call, nil); err != nil || string(got) != `"testbed"` {
		t.Errorf("%s, %v", got, err)
	}
	ok(t, os.Chmod(c.Key, 0o644))
	if _, err := c.client(nil); err == nil {
		t.Error("a key that others can read is accepted")
	}
}

// TestShardsThatDoNotFit checks that Serve fails before it serves.
func TestShardsThatDoNotFit(t *testing.T) {
	t.Parallel()
	url := "etcd://" + testbed.Etcd(t).Addr()
	first := start(t, url) // has two shards
	s, err := Open(t.Context(), Config{Backend: first.target, Shards: 4, TTL: 3 * time.Second, Tell: func(err error) { t.Log(err) }})
	if err == nil {
		l, e := net.Listen("tcp", "127.0.0.1:0")
		if e != nil {
			t.Fatal(e)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		err = s.Serve(ctx, l, func() { t.Error("it serves") })
		s.Close()
	}
	if err == nil || ctxEnded(err) {
		t.Errorf("it ended with %v", err)
	}
}

func ctxEnded(err error) bool { return strings.Contains(err.Error(), "deadline exceeded") }
