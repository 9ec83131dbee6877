package coordinate

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/flow/outbox/webhook"
	"github.com/interlock-dev/interlock/txn/branchhttp"
)

// Calls configures calls of branches.
type Calls struct {
	// Local permits loopback and private addresses. Link-local ones, at which clouds
	// serve credentials, need an entry in Networks nevertheless.
	Local bool
	// Networks are private networks whose addresses may be called.
	Networks []netip.Prefix
	// SecretFile has the secrets that sign calls, in the format of the Standard Webhooks
	// specification; empty means unsigned calls.
	SecretFile string
	// Certificate and Key are the files of a client certificate, read again at each
	// handshake; empty means none. CA has the certificates that verify servers; empty
	// means the system's.
	Certificate, Key, CA string
}

// client returns the client that calls branches.
func (c Calls) client(tell func(error)) (*http.Client, error) {
	dialer := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second, ControlContext: c.control}
	config, err := c.tls()
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{DialContext: dialer.DialContext, TLSClientConfig: config, ForceAttemptHTTP2: true,
		MaxIdleConns: 1000, MaxIdleConnsPerHost: 64, IdleConnTimeout: 90 * time.Second, TLSHandshakeTimeout: 10 * time.Second}
	if c.SecretFile == "" {
		return &http.Client{Transport: transport}, nil
	}
	secrets, err := openSecrets(c.SecretFile, 24, func(text string) error { _, err := signerOf(text); return err }, tell)
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: &signing{transport: transport, secrets: secrets}}, nil
}

// control rejects an address that must not be called. It checks the address to which a
// name has resolved, just before the connection.
func (c Calls) control(_ context.Context, _, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	return c.checkAddress(at.Addr())
}

// reservedNetworks are networks that are not public, or lead to others, in addition to those that
// netip identifies.
var reservedNetworks = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("fec0::/10"),
}

func (c Calls) checkAddress(ip netip.Addr) error {
	ip = ip.Unmap().WithZone("")
	for _, n := range c.Networks {
		if n.Contains(ip) {
			return nil
		}
	}
	odd := ip.IsLinkLocalUnicast() || ip.IsMulticast() || ip.IsUnspecified()
	for _, n := range reservedNetworks {
		odd = odd || n.Contains(ip)
	}
	if odd || !c.Local && (ip.IsPrivate() || ip.IsLoopback()) {
		return fmt.Errorf("%v is not a public address: allow its network with --allow-network", ip)
	}
	return nil
}

func (c Calls) tls() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CA != "" {
		var err error
		if config.RootCAs, err = driver.Authorities(c.CA); err != nil {
			return nil, err
		}
	}
	if c.Certificate == "" && c.Key == "" {
		return config, nil
	}
	if info, err := os.Stat(c.Key); err != nil {
		return nil, err
	} else if err := checkPrivate(c.Key, info); err != nil {
		return nil, err
	}
	load := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(c.Certificate, c.Key)
		return &pair, err
	}
	config.GetClientCertificate = load
	_, err := load(nil)
	return config, err
}

// signing signs requests.
type signing struct {
	transport http.RoundTripper
	secrets   *secretFile
}

// signer returns a signer with each secret.
func (s *signing) signer() (webhook.Signer, error) {
	var all []webhook.Signer
	for _, text := range s.secrets.all() {
		one, err := signerOf(text)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return webhook.Both(all...), nil
}

// signerOf returns a signer with one secret: whsec_ and base64, or the plain text.
func signerOf(text string) (webhook.Signer, error) {
	secret := []byte(text)
	if encoded, ok := strings.CutPrefix(text, "whsec_"); ok {
		var err error
		if secret, err = base64.StdEncoding.DecodeString(encoded); err != nil {
			return nil, errors.New("a secret with the prefix whsec_ must continue in base64")
		}
	}
	return webhook.NewSecret(secret)
}

// RoundTrip sends a signed copy of a call.
func (s *signing) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		defer r.Body.Close()
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	signer, err := s.signer()
	if err != nil {
		return nil, err
	}
	id, at := messageID(r), strconv.FormatInt(time.Now().Unix(), 10)
	r = r.Clone(r.Context())
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.GetBody = nil // the transport does not repeat requests
	r.Header.Set("webhook-id", id)
	r.Header.Set("webhook-timestamp", at)
	r.Header.Set("webhook-signature", signer.Sign(append([]byte(id+"."+at+"."), body...)))
	return s.transport.RoundTrip(r)
}

// CloseIdleConnections closes idle connections.
func (s *signing) CloseIdleConnections() {
	if t, ok := s.transport.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

// messageID returns the id that is signed with a call: the key of the call without dots,
// which separate the signed parts. For a request that is not a call, the id is derived
// from its address.
func messageID(r *http.Request) string {
	c, err := branchhttp.FromRequest(r)
	if ended := r.Header.Get(branchhttp.HeaderTransaction); err != nil && ended != "" {
		return strings.ReplaceAll(ended, ".", "%2E") + "/ended"
	}
	if err != nil {
		sum := sha256.Sum256([]byte(r.Method + " " + r.URL.String()))
		return base64.RawURLEncoding.EncodeToString(sum[:])
	}
	return strings.ReplaceAll(c.Key(), ".", "%2E")
}
