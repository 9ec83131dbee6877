package limit_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/flow/limit"
	"github.com/interlock-dev/interlock/internal/virtual"
	"github.com/interlock-dev/interlock/observe"
)

func TestHandler(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		l := gate(t, &gated{}, nil)
		served := 0
		h := l.Handler(func(r *http.Request) []limit.Charge {
			if r.URL.Path == "/health" {
				return nil
			}
			return []limit.Charge{{Key: "user", Rate: limit.Rate{Count: 2, Period: 3 * time.Second, Burst: 2}, Cost: 1}, {Key: "all", Rate: limit.PerHour(100), Cost: 1}}
		}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ }))
		get := func(path string) *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", path, nil))
			return w
		}
		expect := func(w *httptest.ResponseRecorder, status int, headers map[string]string) {
			t.Helper()
			if w.Code != status {
				t.Fatalf("%d: %s", w.Code, w.Body)
			}
			for name, want := range headers {
				if got := w.Header().Get(name); got != want {
					t.Errorf("%s: %q, want %q", name, got, want)
				}
			}
		}
		get("/")
		expect(get("/"), 200, map[string]string{"RateLimit-Policy": `"1";q=2;w=3, "2";q=100;w=3600`, "RateLimit": `"1";r=0;t=3, "2";r=98;t=72`,
			"X-RateLimit-Limit": "2", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "3", "Retry-After": ""})
		w := get("/")
		expect(w, 429, map[string]string{"Retry-After": "2", "Content-Type": "application/problem+json", "RateLimit": `"1";r=0;t=3, "2";r=98;t=72`})
		if body := w.Body.String(); !strings.Contains(body, `quota-exceeded"`) || !strings.Contains(body, `"status":429,"violated-policies":["1"]`) {
			t.Error(body)
		}
		expect(get("/health"), 200, map[string]string{"RateLimit": ""})
		time.Sleep(2 * time.Second) // the Retry-After
		expect(get("/"), 200, nil)
		if served != 4 {
			t.Errorf("%d served", served)
		}
	})
}

func TestHandlerWithoutDecision(t *testing.T) {
	for _, c := range []struct {
		o      limit.Options
		status int
	}{{limit.Options{}, 503}, {limit.Options{OnFailure: limit.Admit}, 200}} {
		c.o.Hooks = &observe.Limit{Log: observe.Silent}
		l := gate(t, &gated{err: errors.New("down")}, &c.o)
		w := httptest.NewRecorder()
		l.Handler(func(*http.Request) []limit.Charge { return []limit.Charge{{Key: "k", Rate: limit.PerHour(1), Cost: 1}} },
			http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/", nil))
		if w.Code != c.status || w.Header().Get("RateLimit") != "" || strings.Contains(w.Body.String(), "down") {
			t.Errorf("%d: %s", w.Code, w.Body)
		}
	}
}

// sent answers requests, and counts them.
type sent int

func (s *sent) RoundTrip(*http.Request) (*http.Response, error) {
	*s++
	return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(""))}, nil
}

func TestTransport(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		var n sent
		client := http.Client{Transport: gate(t, &gated{}, nil).Transport(func(r *http.Request) (string, limit.Rate) {
			return r.Host, limit.Rate{Count: 10, Period: time.Second, Burst: 1}
		}, &n)}
		begun := time.Now()
		for range 11 {
			r, err := client.Get("http://provider/")
			ok(t, err)
			r.Body.Close()
		}
		if took := time.Since(begun); took < time.Second || took > 1001*time.Millisecond {
			t.Errorf("11 requests at 10/s took %v", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, "GET", "http://provider/", nil)
		ok(t, err)
		if _, err := client.Do(r); !errors.Is(err, context.DeadlineExceeded) || n != 11 {
			t.Errorf("%v after %d requests", err, n)
		}
	})
}
