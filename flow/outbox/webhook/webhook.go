// Package webhook delivers messages by HTTP. Delivery is at least once: receivers deduplicate by the
// header webhook-id, which is signed. If an answer is lost, the message is sent again. The sink follows
// no redirects. It does not filter addresses, which the program supplies. It rejects addresses with user
// information, and its errors do not show the query of an address.
//
//	signer, err := webhook.NewSecret(secret) // or webhook.NewKey, of Ed25519
//	sink, err := webhook.New("https://receiver.example/events", signer, nil)
//	relay, err := outbox.NewRelay(postgres.Pool(pool), box, sink, nil)
//
// and at the receiver
//
//	verifier := webhook.Verifier{Secrets: [][]byte{secret}}
//	m, err := verifier.Read(r) // then guard/once, by m.ID
//
// Requests follow the Standard Webhooks specification: POST, the payload as the body, and the headers
// webhook-id, webhook-timestamp and webhook-signature over "id.timestamp.body". Topic and key are in
// headers of Interlock, which are not signed.
package webhook

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/httpclient"
)

// Headers of a request.
const (
	HeaderID        = "webhook-id"
	HeaderTimestamp = "webhook-timestamp" // seconds since 1970
	HeaderSignature = "webhook-signature"
	HeaderTopic     = "interlock-topic" // percent-encoded, as is the key
	HeaderKey       = "interlock-key"
)

// Defaults of [Options].
const (
	DefaultTimeout = 10 * time.Second
	DefaultPerHost = 8
)

// Options of a sink; nil and the zero value work.
type Options struct {
	// Client sends the requests; nil means a new client. The sink uses a copy that does not follow
	// redirects.
	Client *http.Client
	// Timeout bounds each request; 0 means [DefaultTimeout].
	Timeout time.Duration
	// PerHost bounds the concurrent requests to one host; 0 means [DefaultPerHost].
	PerHost int
	// Address returns the address for a message; nil means that of New.
	Address func(m driver.Message) string
	// ContentType is the content type of messages without a header content-type; empty means
	// application/json.
	ContentType string
	// Now is the clock of the timestamps; nil means time.Now.
	Now func() time.Time
}

// Sink posts messages. It is safe for concurrent use.
type Sink struct {
	address string
	signer  Signer
	options Options
	client  *http.Client

	mu    sync.Mutex
	hosts map[string]*host
}

var _ driver.Sink = (*Sink)(nil)

// New returns a sink that posts to an http or https address. It sends nothing yet. Invalid arguments are
// a Bug.
func New(address string, signer Signer, o *Options) (*Sink, error) {
	s := &Sink{address: address, signer: signer, hosts: map[string]*host{}}
	s.options = *cmp.Or(o, &Options{})
	s.options.Timeout, s.options.PerHost = cmp.Or(s.options.Timeout, DefaultTimeout), cmp.Or(s.options.PerHost, DefaultPerHost)
	s.options.ContentType = cmp.Or(s.options.ContentType, "application/json")
	if s.options.Now == nil {
		s.options.Now = time.Now
	}
	client := s.options.Client
	if client == nil {
		client = &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone()}
	}
	s.client = httpclient.WithoutRedirects(client)
	switch {
	case signer == nil || signer.Sign(nil) == "":
		return nil, problem("", interlock.Bug, errors.New("a signer is required"))
	case s.options.Timeout < 0 || s.options.PerHost < 0:
		return nil, problem("", interlock.Bug, fmt.Errorf("invalid options: timeout %v, %d requests for each host", s.options.Timeout, s.options.PerHost))
	case s.options.Address == nil:
		if _, err := parse(address); err != nil {
			return nil, problem("", interlock.Bug, err)
		}
	}
	return s, nil
}

// Close closes idle connections.
func (s *Sink) Close() { s.client.CloseIdleConnections() }

func parse(address string) (*url.URL, error) {
	u, err := url.Parse(address)
	switch {
	case err != nil:
		return nil, failure.RedactError(err)
	case u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("%q is not an http or https address", failure.RedactURL(address))
	case u.User != nil:
		return nil, fmt.Errorf("the address %s has a user or a password: remove them; the receiver verifies the signature instead", failure.RedactURL(address))
	}
	return u, nil
}

// Publish posts messages; see [driver.Sink]. The receiver accepts a message by 2xx, and rejects it
// (Definite) by 4xx, except for 408, 425 and 429. Any other answer, including redirects, is Retryable. A
// request without an answer is Uncertain, or Retryable if there was no connection. The error has a
// Retry-After, as driver.Sink describes.
func (s *Sink) Publish(ctx context.Context, messages []driver.Message) []error {
	return driver.SendLanes(messages, len(messages), func(m driver.Message) error { return s.post(ctx, m) })
}

// post sends one message.
func (s *Sink) post(ctx context.Context, m driver.Message) error {
	u, err := s.addressOf(m)
	if err != nil {
		return problem(m.ID, interlock.Definite, err)
	}
	leave, err := s.enter(ctx, u.Host)
	if err != nil {
		return problem(m.ID, interlock.Retryable, err)
	}
	defer leave()
	request, err := s.request(m, u) // not before the wait, because it has the time
	if err != nil {
		return problem(m.ID, interlock.Definite, err)
	}
	ctx, cancel := context.WithTimeout(ctx, s.options.Timeout)
	defer cancel()
	response, err := s.client.Do(request.WithContext(ctx))
	if err != nil {
		return problem(m.ID, unanswered(err), failure.RedactError(err))
	}
	defer response.Body.Close()
	var why []byte
	if response.StatusCode != http.StatusSwitchingProtocols { // its body is the connection, which ignores the timeout
		why, _ = io.ReadAll(io.LimitReader(response.Body, 512))
	}
	return verdict(m.ID, response, why, s.options.Now())
}

// A StatusError is an answer with a status other than 2xx.
type StatusError struct {
	Status int
	Body   string // its beginning
	after  time.Duration
}

// Error returns a message with the status and the beginning of the body.
func (e *StatusError) Error() string {
	return strings.TrimRight(fmt.Sprintf("answered %d %s: %s", e.Status, http.StatusText(e.Status), e.Body), ": ")
}

// RetryAfter returns the pause that the receiver requests; 0 means none.
func (e *StatusError) RetryAfter() time.Duration { return e.after }

// verdict returns the error of an answer; nil if the message was accepted.
func verdict(id string, r *http.Response, body []byte, now time.Time) error {
	if r.StatusCode >= 200 && r.StatusCode < 300 {
		return nil
	}
	kind := interlock.Retryable
	if r.StatusCode >= 400 && r.StatusCode < 500 {
		kind = interlock.Definite
	}
	switch r.StatusCode {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		kind = interlock.Retryable
	}
	return problem(id, kind, &StatusError{r.StatusCode, strings.TrimSpace(string(body)), httpclient.RetryAfter(r.Header, now)})
}

// unanswered returns the kind of error of a request without an answer: Retryable if there was no
// connection.
func unanswered(err error) interlock.ErrorKind {
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		return interlock.Retryable
	}
	return interlock.Uncertain
}

func problem(id string, kind interlock.ErrorKind, err error) error {
	return &interlock.Error{Op: "post", Driver: "webhook", Name: id, Kind: kind, Err: err}
}

// A host has running or waiting requests.
type host struct {
	turns chan struct{}
	users int
}

// enter waits until a host has fewer than Options.PerHost requests.
func (s *Sink) enter(ctx context.Context, name string) (leave func(), err error) {
	h := s.use(name)
	select {
	case h.turns <- struct{}{}:
		return func() { <-h.turns; s.disuse(name, h) }, nil
	case <-ctx.Done():
		s.disuse(name, h)
		return nil, context.Cause(ctx)
	}
}

func (s *Sink) use(name string) *host {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.hosts[name]
	if h == nil {
		h = &host{turns: make(chan struct{}, s.options.PerHost)}
		s.hosts[name] = h
	}
	h.users++
	return h
}

// disuse deletes a host without requests: messages may name any number of hosts.
func (s *Sink) disuse(name string, h *host) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.users--; h.users == 0 {
		delete(s.hosts, name)
	}
}

// addressOf returns the address for m. Its errors are permanent.
func (s *Sink) addressOf(m driver.Message) (*url.URL, error) {
	if s.options.Address == nil {
		return parse(s.address)
	}
	return parse(s.options.Address(m))
}

// request returns a request for m that is signed now. Its errors are permanent.
func (s *Sink) request(m driver.Message, u *url.URL) (*http.Request, error) {
	if err := driver.CheckMessageID(m.ID); err != nil {
		return nil, err
	}
	r, err := http.NewRequest(http.MethodPost, u.String(), bytes.NewReader(m.Payload))
	if err != nil {
		return nil, failure.RedactError(err)
	}
	r.Header.Set("content-type", s.options.ContentType)
	for name, value := range m.Headers {
		if strings.HasPrefix(strings.ToLower(name), "webhook-") || strings.HasPrefix(strings.ToLower(name), "interlock-") {
			return nil, fmt.Errorf("header %q is reserved", name)
		}
		r.Header.Set(name, value)
	}
	at := s.options.Now().Unix()
	r.Header.Set(HeaderID, m.ID)
	r.Header.Set(HeaderTimestamp, strconv.FormatInt(at, 10))
	r.Header.Set(HeaderSignature, s.signer.Sign(signed(m.ID, at, m.Payload)))
	r.Header.Set(HeaderTopic, url.PathEscape(m.Topic))
	if m.Key != "" {
		r.Header.Set(HeaderKey, url.PathEscape(m.Key))
	}
	return r, checkHeaders(r.Header)
}

// checkHeaders rejects invalid headers. The client would report them with errors that look like a lost
// answer.
func checkHeaders(h http.Header) error {
	for name, values := range h {
		if name == "" || strings.ContainsFunc(name, func(c rune) bool { return !strings.ContainsRune(letters, c) }) {
			return fmt.Errorf("header %q has an invalid name", name)
		}
		if strings.ContainsFunc(values[0], func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }) {
			return fmt.Errorf("header %q has an invalid value", name)
		}
	}
	return nil
}

// letters are the characters of a header name (RFC 9110, token).
const letters = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
