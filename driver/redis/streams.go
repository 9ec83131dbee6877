package redis

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

var streamAddScript = newScript(lua("stream_add"))

// Bounds of one run of the script: messages, and bytes of payload.
const (
	streamRows  = 128
	streamBytes = 1 << 20
)

// StreamOptions of a Stream; nil and the zero value work.
type StreamOptions struct {
	// Prefix begins the names of the streams; the topic is the rest.
	Prefix string
	// MaxLen is about how many entries a stream keeps, the newest; 0 means all. A
	// reader that is too slow loses the older ones.
	MaxLen int64
}

// Stream adds messages to streams, one for each topic. It implements driver.Sink. An
// entry has the fields payload and, if the message has them, id, key and headers (a
// JSON object).
//
// A message counts as delivered when the server has it in memory. A crash loses what
// appendfsync had not written, and a failover what the replica did not have. The outbox
// has deleted those messages, so they are lost. After a lost answer an entry is added
// again, with another entry id and the same field id.
type Stream struct {
	conn    *conn
	options StreamOptions
}

var _ driver.Sink = (*Stream)(nil)

// NewStream returns a sink; it sends nothing. The caller closes the client.
func NewStream(client rueidis.Client, o *StreamOptions) *Stream {
	s := &Stream{conn: newConn(client)}
	if o != nil {
		s.options = *o
	}
	return s
}

// streamed holds the messages of one topic that are yet to be added.
type streamed struct {
	key  string
	left []int
}

// Publish adds messages, those of all topics in one pipeline, and those of one topic
// in one script for up to 128 of them; see driver.Sink.
func (s *Stream) Publish(ctx context.Context, messages []driver.Message) []error {
	answers := make([]error, len(messages))
	lanes := make([]string, len(messages))
	var topics []*streamed
	at := map[string]*streamed{}
	for lane, indices := range driver.Lanes(messages) {
		for _, i := range indices {
			lanes[i] = strconv.Itoa(lane)
		}
	}
	for i, m := range messages {
		answers[i] = s.check(m) // in the order of the others
		t := at[m.Topic]
		if t == nil {
			t = &streamed{key: s.options.Prefix + m.Topic}
			at[m.Topic], topics = t, append(topics, t)
		}
		t.left = append(t.left, i)
	}
	failed := map[string]bool{}
	for len(topics) > 0 {
		topics = s.round(ctx, topics, messages, lanes, answers, failed)
	}
	return answers
}

// check rejects messages that no stream can store.
func (s *Stream) check(m driver.Message) error {
	asked := request{op: "publish", name: m.ID}
	switch key := s.options.Prefix + m.Topic; {
	case m.ID == "" || m.Topic == "":
		return problem(asked, interlock.Bug, interlock.ErrName)
	case strings.HasPrefix(key, reserved):
		return problem(asked, interlock.Definite, fmt.Errorf("the stream %q cannot be written: names that begin with %s are reserved", key, reserved))
	case s.options.MaxLen < 0:
		return problem(asked, interlock.Bug, fmt.Errorf("a MaxLen of %d is invalid: it must be 0 or more", s.options.MaxLen))
	}
	return nil
}

// round adds some messages of each topic, and returns the topics that have more.
func (s *Stream) round(ctx context.Context, topics []*streamed, messages []driver.Message, lanes []string, answers []error, failed map[string]bool) (more []*streamed) {
	var batches []batch
	var chunks [][]int
	for _, t := range topics {
		chunk := t.take(messages, lanes, answers, failed)
		if len(t.left) > 0 {
			more = append(more, t)
		}
		if len(chunk) > 0 {
			chunks = append(chunks, chunk)
			batches = append(batches, s.batch(t.key, chunk, messages, lanes))
		}
	}
	if len(batches) == 0 {
		return more
	}
	results, err := s.conn.evalAll(ctx, request{op: "publish"}, streamAddScript, batches)
	for n, chunk := range chunks {
		texts, failure := []string(nil), err
		if err == nil {
			texts, failure = s.texts(results[n], len(chunk))
		}
		for at, i := range chunk {
			answers[i] = failure
			if failure == nil {
				answers[i] = answerOf(messages[i].ID, texts[at])
			}
			failed[lanes[i]] = failed[lanes[i]] || answers[i] != nil
		}
	}
	return more
}

// answerOf returns the error for the script's text about a message. A topic that is
// no stream is Definite; other refusals of the server, such as a missing right, are
// not the message's fault.
func answerOf(id, text string) error {
	switch text {
	case "":
		return nil
	case "held":
		return driver.ErrNotSent
	}
	kind := interlock.Retryable
	if strings.HasPrefix(text, "WRONGTYPE ") {
		kind = interlock.Definite
	}
	return problem(request{op: "publish", name: id}, kind, errors.New(text))
}

// blameless returns the failure of a request, which is not its messages' fault: if
// it is Definite they may be sent later.
func blameless(asked request, err error) error {
	if interlock.Kind(err) != interlock.Definite {
		return err
	}
	return problem(asked, interlock.Retryable, errors.Unwrap(err))
}

// texts returns the script's answers.
func (s *Stream) texts(r rueidis.RedisResult, n int) ([]string, error) {
	asked := request{op: "publish"}
	if err := r.Error(); err != nil {
		return nil, blameless(asked, failure(asked, err))
	}
	texts, err := r.AsStrSlice()
	if err != nil || len(texts) != n {
		return nil, uncertain(asked, errReply)
	}
	return texts, nil
}

// take takes as many messages as one script adds, of lanes that have not failed.
func (t *streamed) take(messages []driver.Message, lanes []string, answers []error, failed map[string]bool) (chunk []int) {
	size := 0
	for len(t.left) > 0 && len(chunk) < streamRows {
		i := t.left[0]
		switch {
		case failed[lanes[i]]:
			if answers[i] == nil {
				answers[i] = driver.ErrNotSent
			}
		case answers[i] != nil:
			failed[lanes[i]] = true
		default:
			if size += len(messages[i].Payload); size > streamBytes && len(chunk) > 0 {
				return chunk
			}
			chunk = append(chunk, i)
		}
		t.left = t.left[1:]
	}
	return chunk
}

// batch returns one run of the script.
func (s *Stream) batch(key string, chunk []int, messages []driver.Message, lanes []string) batch {
	b := batch{keys: []string{key}, args: []string{strconv.FormatInt(s.options.MaxLen, 10)}}
	for _, i := range chunk {
		m := messages[i]
		headers := ""
		if len(m.Headers) > 0 {
			text, _ := json.Marshal(m.Headers) // texts cannot fail
			headers = string(text)
		}
		b.args = append(b.args, lanes[i], m.ID, m.Key, headers, string(m.Payload))
	}
	return b
}
