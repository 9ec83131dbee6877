// Package httpclient has the rules that all clients of HTTP here share.
package httpclient

import (
	"net/http"
	"strconv"
	"time"
)

// WithoutRedirects returns a copy of c that does not follow redirects; nil means a client with
// http.DefaultTransport.
func WithoutRedirects(c *http.Client) *http.Client {
	var client http.Client
	if c != nil {
		client = *c
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &client
}

// RetryAfter parses the header Retry-After: seconds or a date. It returns 0 for anything else, and
// for a past date.
func RetryAfter(h http.Header, now time.Time) time.Duration {
	text := h.Get("Retry-After")
	if n, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(n) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}
