package nats

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Headers that a dead letter has beside those of the message. "Nats-Msg-Id" is the id and the
// place: a stream that also stores the message would drop a dead letter with the same id.
const (
	HeaderLetter   = "Interlock-Id"       // the id of the message, percent-encoded
	HeaderReason   = "Interlock-Reason"   // why it was given up, percent-encoded
	HeaderAttempts = "Interlock-Attempts" // how often it was tried
	HeaderFrom     = "Interlock-From"     // stream/sequence
)

// received converts a message of a stream. The id of a message without one is its place. A header
// that is not percent-encoded is taken as it is.
func (a *assignment) received(m jetstream.Msg, meta *jetstream.MsgMetadata) driver.Received {
	r := driver.Received{Added: meta.Timestamp, Place: int64(meta.Sequence.Stream)}
	r.Payload = m.Data()
	for name, values := range m.Headers() {
		switch {
		case len(values) == 0:
		case name == HeaderLetter, name == HeaderID && r.ID == "":
			r.ID = unescape(values[0])
		case name == HeaderKey:
			r.Key = unescape(values[0])
		case !strings.HasPrefix(name, "Nats-"):
			if r.Headers == nil {
				r.Headers = map[string]string{}
			}
			r.Headers[name] = values[0]
		}
	}
	if r.ID == "" {
		r.ID = a.place(r.Place)
	}
	return r
}

func unescape(text string) string {
	if plain, err := url.PathUnescape(text); err == nil {
		return plain
	}
	return text
}

func (a *assignment) place(sequence int64) string {
	return fmt.Sprintf("%s/%d", a.session.stream, sequence)
}

// writeDeadLetters writes dead letters; see [lanes.Hooks].
func (c *consumer) writeDeadLetters(ctx context.Context, dead []driver.Settlement) []error {
	keys := map[string][]int{}
	for i, s := range dead {
		keys[s.Key] = append(keys[s.Key], i)
	}
	answers := make([]error, len(dead))
	var writes sync.WaitGroup
	for _, of := range keys {
		writes.Go(func() {
			for _, i := range of {
				answers[i] = c.deadLetter(ctx, dead[i])
			}
		})
	}
	writes.Wait()
	return answers
}

// deadLetter writes one dead letter.
func (c *consumer) deadLetter(ctx context.Context, s driver.Settlement) error {
	m := &nats.Msg{Subject: c.queue.options.DeadLetters, Header: nats.Header{}, Data: s.Payload}
	if m.Subject == "" {
		m.Subject = "dlq." + c.base
	}
	for name, value := range s.Headers {
		m.Header[name] = []string{value}
	}
	place := s.Claim.(*assignment).place(s.Place)
	m.Header[HeaderID], m.Header[HeaderLetter] = []string{url.PathEscape(s.ID + " " + place)}, []string{url.PathEscape(s.ID)}
	if s.Key != "" {
		m.Header[HeaderKey] = []string{url.PathEscape(s.Key)}
	}
	m.Header[HeaderReason] = []string{url.PathEscape(s.Reason)}
	m.Header[HeaderAttempts] = []string{strconv.Itoa(s.Attempt)}
	m.Header[HeaderFrom] = []string{place}
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	if _, err := c.queue.js.PublishMsg(ctx, m, jetstream.WithRetryAttempts(0)); err != nil {
		kind := classify(err)
		if kind == interlock.Definite {
			kind = interlock.Retryable // retried until an operator has changed the limits of the stream
		}
		return problem("write dead letter to "+m.Subject, s.ID, kind, err)
	}
	return nil
}
