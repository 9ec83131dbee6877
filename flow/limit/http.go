package limit

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// Handler limits the requests to next by the charges that of returns; without charges a request is not
// limited. A refused request gets 429, with Retry-After and a problem of type quota-exceeded
// (draft-ietf-httpapi-ratelimit-headers-10); if there is no decision, 503. Every answer has the headers
// RateLimit-Policy and RateLimit, and X-RateLimit-Limit, -Remaining and -Reset of the limit with the
// fewest units left. Keys are not shown: the name of a policy is its number, from 1.
func (l *Limits) Handler(of func(*http.Request) []Charge, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		charges := of(r)
		if len(charges) == 0 {
			next.ServeHTTP(w, r)
			return
		}
		d, err := l.Take(r.Context(), charges...)
		if err != nil {
			writeProblem(w, http.StatusServiceUnavailable, problem{Type: "about:blank", Title: "Service unavailable"})
			return
		}
		setHeaders(w.Header(), charges, d.Each)
		if d.Allowed {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Retry-After", seconds(d.RetryAfter))
		p := problem{Type: "https://iana.org/assignments/http-problem-types#quota-exceeded", Title: "Request cannot be satisfied as assigned quota has been exceeded"}
		for i, e := range d.Each {
			if !e.Allowed {
				p.Violated = append(p.Violated, strconv.Itoa(i+1))
			}
		}
		writeProblem(w, http.StatusTooManyRequests, p)
	})
}

// problem is a body of RFC 9457.
type problem struct {
	Type     string   `json:"type"`
	Title    string   `json:"title"`
	Status   int      `json:"status"`
	Violated []string `json:"violated-policies,omitempty"`
}

func writeProblem(w http.ResponseWriter, status int, p problem) {
	p.Status = status
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(p) // fails only if the client has gone
}

// setHeaders sets the headers of each limit. Without decisions (failure policy) it sets none.
func setHeaders(h http.Header, charges []Charge, each []driver.Decision) {
	var policies, limits []string
	least := 0
	for i, d := range each {
		c := charges[i]
		policies = append(policies, fmt.Sprintf(`"%d";q=%d;w=%s`, i+1, c.Rate.Capacity(), seconds(c.Rate.Period)))
		limits = append(limits, fmt.Sprintf(`"%d";r=%d;t=%s`, i+1, d.Remaining, seconds(d.ResetAfter)))
		if d.Remaining < each[least].Remaining {
			least = i
		}
	}
	if len(each) == 0 {
		return
	}
	h.Set("RateLimit-Policy", strings.Join(policies, ", "))
	h.Set("RateLimit", strings.Join(limits, ", "))
	h.Set("X-RateLimit-Limit", strconv.FormatInt(charges[least].Rate.Capacity(), 10))
	h.Set("X-RateLimit-Remaining", strconv.FormatInt(each[least].Remaining, 10))
	h.Set("X-RateLimit-Reset", seconds(each[least].ResetAfter))
}

// seconds returns whole seconds, rounded up.
func seconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10)
}

// Transport sends each request by next, or http.DefaultTransport if that is nil, as soon as its limit
// allows one unit. It fails when the context of the request ends.
func (l *Limits) Transport(of func(*http.Request) (key string, r Rate), next http.RoundTripper) http.RoundTripper {
	if next == nil {
		next = http.DefaultTransport
	}
	return transport(func(r *http.Request) (*http.Response, error) {
		key, rate := of(r)
		if err := l.Wait(r.Context(), key, rate); err != nil {
			if r.Body != nil {
				r.Body.Close()
			}
			return nil, err
		}
		return next.RoundTrip(r)
	})
}

type transport func(*http.Request) (*http.Response, error)

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }
