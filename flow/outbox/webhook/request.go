package webhook

import (
	"bytes"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

// request returns a signed request for m. Its errors are permanent.
func (s *Sink) request(m driver.Message) (*http.Request, error) {
	address := s.address
	if s.options.Address != nil {
		address = s.options.Address(m)
	}
	u, err := parse(address)
	if err != nil {
		return nil, err
	}
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
