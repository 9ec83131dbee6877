package consul

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"net/http"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/internal/testbed"
)

const management = "11111111-2222-3333-4444-555555555555"

// TestTokenAndTLS: an agent that requires a certificate and an ACL token is reached by a URL
// with both. A token without the rights gets a Definite error with the reason.
func TestTokenAndTLS(t *testing.T) {
	t.Parallel()
	cert, key := testbed.CertificateFiles(t)
	server := testbed.ConsulTLS(t, cert, cert, key,
		`-hcl=acl { enabled = true default_policy = "deny" tokens { initial_management = "`+management+`" } }`)
	secure := "consul://" + server.Addr() + "?tls_ca=" + cert + "&tls_cert=" + cert + "&tls_key=" + key
	admin := newClient(Options{Address: server.Addr(), Token: management, TLS: tlsOf(t, secure)})
	defer admin.idle()
	var token string
	testbed.Eventually(t, "the server has a token", patience, func() bool {
		token = tokenFor(t, admin, `key_prefix "app" { policy = "write" } session_prefix "" { policy = "write" }`)
		return token != ""
	})
	if err := turn(t, secure+"&prefix=app/&token="+token); err != nil {
		t.Error(err)
	}
	var status *StatusError
	for what, url := range map[string]string{
		"a prefix without rights": secure + "&prefix=other/&token=" + token,
		"no token":                secure + "&prefix=app/",
		"a token of nobody":       secure + "&prefix=app/&token=66666666-2222-3333-4444-555555555555",
	} {
		if err := turn(t, url); interlock.Kind(err) != interlock.Definite || !errors.As(err, &status) || status.Code != http.StatusForbidden {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := turn(t, "consul://"+server.Addr()+"?tls_ca="+cert); err == nil {
		t.Error("let in without a certificate")
	}
}

// turn acquires and releases a lock and writes a value at a URL.
func turn(t *testing.T, url string) error {
	t.Helper()
	b, err := backend.Open(t.Context(), url)
	if err != nil {
		return err
	}
	defer b.Close(context.WithoutCancel(t.Context()))
	d, err := b.Fenced(t.Context(), backend.LockOptions{})
	if err != nil {
		return err
	}
	g, err := d.Acquire(t.Context(), driver.Request{Name: "n", Owner: "o"})
	if err != nil {
		return err
	}
	v, err := b.Values(t.Context(), "")
	if err != nil {
		return err
	}
	return errors.Join(v.Put(t.Context(), "n", driver.Value{Token: g.Token}), d.Release(t.Context(), "n", "o"))
}

// tokenFor creates a token with the rules; it returns none if Consul is not ready for it.
func tokenFor(t *testing.T, admin *client, rules string) string {
	t.Helper()
	put := func(path string, body map[string]any) (answer struct{ ID, SecretID string }) {
		text, err := json.Marshal(body)
		testbed.OK(t, err)
		if text, _, err = admin.do(t.Context(), admin.short, http.MethodPut, path, text); err == nil {
			err = json.Unmarshal(text, &answer)
		}
		if err != nil {
			t.Log(err)
		}
		return answer
	}
	policy := put("/v1/acl/policy", map[string]any{"Name": "locks", "Rules": rules})
	return put("/v1/acl/token", map[string]any{"Policies": []map[string]string{{"ID": policy.ID}}}).SecretID
}

func tlsOf(t *testing.T, url string) *tls.Config {
	t.Helper()
	u, err := backend.Parse(url)
	testbed.OK(t, err)
	c, err := u.TLS()
	testbed.OK(t, err)
	return c
}
