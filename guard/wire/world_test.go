package wire_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/guard/wire"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// bound limits each wait for a condition.
const bound = 20 * time.Second

// start is the counter of a system that started just now.
var start = interlock.CounterAt(time.Now())

// token returns the n-th token of that system.
func token(n int) interlock.Token {
	t, err := interlock.NewToken(start+int64(n), 0)
	if err != nil {
		panic(err)
	}
	return t
}

// ahead returns a token that is d ahead of the clock.
func ahead(d time.Duration) interlock.Token {
	t, err := interlock.NewToken(interlock.CounterAt(time.Now().Add(d)), 0)
	if err != nil {
		panic(err)
	}
	return t
}

type claim = testbed.Claim

func grant(name string, t interlock.Token, ttl time.Duration) *claim {
	return testbed.NewClaim(name, "web-1", t, ttl)
}

// service serves h until the test ends.
func service(t *testing.T, h http.Handler) (url string) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// client returns a client of a transport with its own connections.
func client(t *testing.T, by *wire.Transport) *http.Client {
	t.Helper()
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	by.Base = base
	return &http.Client{Transport: by}
}

// account returns the resource of every request.
func account(r *http.Request) (string, error) {
	if id := r.URL.Query().Get("id"); id != "" {
		return "account/" + id, nil
	}
	return "", errors.New("which account?")
}

// post sends a request under a claim, and reads the answer.
func post(ctx context.Context, by *http.Client, url string) (status int, text string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return 0, "", err
	}
	resp, err := by.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	if err := wire.Check(resp); err != nil {
		return resp.StatusCode, "", err
	}
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

var ok = testbed.OK

// wantReason requires a refusal with a reason.
func wantReason(t *testing.T, err error, reason wire.Reason) *wire.Refusal {
	t.Helper()
	var r *wire.Refusal
	if !errors.As(err, &r) || r.Reason != reason {
		t.Errorf("%v, want %s", err, reason)
		return &wire.Refusal{}
	}
	return r
}
