package route

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/partition"
	"github.com/interlock-dev/interlock/driver"
)

// MessageKeyHeader carries the key by which a message is routed, escaped as a path segment.
const MessageKeyHeader = "Interlock-Message-Key"

// atOnce is the number of keys whose messages one Publish sends concurrently.
const atOnce = 16

// maxMessage is the length in bytes that [Receive] accepts of a message as JSON, in which a payload
// is a third longer.
const maxMessage = 2 << 20

// Messages returns a [driver.Sink] that sends each message to the owner of its key. It sends a
// request to path at that member, where [Receive] handles it. It routes a message without a key
// by its id. It sends the messages of one topic and key one after the other.
//
// The kind of an error is one of:
//
//   - Retryable, if no member accepted the message, its handler returned Retryable, or the claim was lost
//   - Definite, if the handler returned Definite, or [Receive] cannot read the message
//   - Uncertain, if the reply was lost, or is not that of Receive: the message may have been
//     handled, and must be sent again
//
// So a handler receives a message at least once; package guard/once detects duplicates.
func Messages(m *partition.Map, path string, o *Options) driver.Sink {
	return &messages{forwarder{m, o.resolve()}, path}
}

// Receive returns a handler for the messages that [Messages] sends to this member. It calls
// handle under the claim of the partition of the message's key; see [Owner]. The kind of
// handle's error decides whether the message is sent again. It accepts 2 MiB of JSON, or MaxBody
// if that is more.
func Receive(g *partition.Group, handle func(ctx context.Context, c interlock.Claim, m driver.Message) error, o *Options) http.Handler {
	options := o.resolve()
	return Owner(g, messageKey, func(w http.ResponseWriter, r *http.Request) {
		c, _ := Claim(r.Context())
		w.Header().Set(EpochHeader, c.Token().String())
		m, code := readMessage(http.MaxBytesReader(w, r.Body, max(options.MaxBody, maxMessage)))
		if code != 0 {
			http.Error(w, "the message cannot be read", code)
			return
		}
		if err := handle(r.Context(), c, m); err != nil {
			options.Failed(r, err)
			http.Error(w, "the message was not handled", statusOf[kindOf(c, err)])
		}
	})
}

// readMessage returns a message, or the status code for one that cannot be read.
func readMessage(body io.Reader) (m driver.Message, code int) {
	text, err := io.ReadAll(body)
	_, tooLarge := errors.AsType[*http.MaxBytesError](err)
	switch {
	case tooLarge:
		return m, http.StatusRequestEntityTooLarge
	case err != nil: // which says nothing about the message
		return m, http.StatusServiceUnavailable
	case json.Unmarshal(text, &m) != nil:
		return m, http.StatusBadRequest
	}
	return m, 0
}

// kindOf returns the kind of a handler's error. One of a lost claim says nothing about the message,
// which the next owner can handle.
func kindOf(c interlock.Claim, err error) interlock.ErrorKind {
	kind := interlock.Kind(err)
	if kind == interlock.Definite && (errors.Is(err, interlock.ErrStaleToken) || !c.Valid()) {
		return interlock.Retryable
	}
	return kind
}

// statusOf is the status code for an error of a handler.
var statusOf = map[interlock.ErrorKind]int{
	interlock.Definite:  http.StatusUnprocessableEntity,
	interlock.Bug:       http.StatusUnprocessableEntity,
	interlock.Retryable: http.StatusServiceUnavailable,
	interlock.Uncertain: http.StatusInternalServerError,
}

func messageKey(r *http.Request) (string, error) {
	key, err := url.PathUnescape(r.Header.Get(MessageKeyHeader))
	if err != nil || key == "" {
		return "", fmt.Errorf("it needs the header %s", MessageKeyHeader)
	}
	return key, nil
}

type messages struct {
	forwarder
	path string
}

// Publish implements driver.Sink.
func (s *messages) Publish(ctx context.Context, all []driver.Message) []error {
	return driver.SendLanes(all, atOnce, func(m driver.Message) error { return s.send(ctx, m) })
}

// send sends one message to the owner of its key.
func (s *messages) send(ctx context.Context, m driver.Message) error {
	key := cmp.Or(m.Key, m.ID)
	fail := func(kind interlock.ErrorKind, err error) error {
		return &interlock.Error{Op: "route message", Name: m.ID, Kind: kind, Err: err}
	}
	text, err := json.Marshal(m)
	if err != nil {
		return fail(interlock.Definite, err)
	}
	ctx = context.WithValue(context.WithValue(ctx, routedKey{}, key), bodyKey{}, body{read: text, whole: true})
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.o.Scheme+"://member"+s.path, bytes.NewReader(text))
	if err != nil {
		return fail(interlock.Bug, err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set(MessageKeyHeader, url.PathEscape(key))
	resp, err := s.RoundTrip(r)
	switch {
	case errors.Is(err, errNoOwner), errors.Is(err, errGaveUp), errors.Is(err, errNoWhere):
		return fail(interlock.Retryable, err)
	case err != nil:
		return fail(interlock.Uncertain, err)
	}
	defer resp.Body.Close()
	why, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	code := resp.StatusCode
	if resp.Header.Get(EpochHeader) == "" {
		code = 0 // it is the answer of another handler
	}
	switch code {
	case http.StatusOK:
		return nil
	case http.StatusServiceUnavailable:
		return fail(interlock.Retryable, fmt.Errorf("the owner answered with %s", resp.Status))
	case http.StatusUnprocessableEntity, http.StatusBadRequest, http.StatusRequestEntityTooLarge:
		return fail(interlock.Definite, fmt.Errorf("the owner answered with %s: %.200q", resp.Status, why))
	}
	return fail(interlock.Uncertain, errors.Join(fmt.Errorf("the owner answered with %s", resp.Status), err))
}
