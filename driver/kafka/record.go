package kafka

import (
	"maps"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/interlock-dev/interlock/driver"
)

// Headers of dead letters, beside those of the message and [HeaderID].
const (
	HeaderReason   = "interlock-reason"   // why it was given up
	HeaderAttempts = "interlock-attempts" // how often it was tried
	HeaderFrom     = "interlock-from"     // topic/partition/offset
)

// received is the message of a record. A record without an id gets its place as one, a record
// with an empty key has none.
func (a *assignment) received(r *kgo.Record, key string, attempt int) driver.Received {
	m := driver.Received{Queue: r.Topic, Added: r.Timestamp, Claim: a, Place: r.Offset, Attempt: attempt}
	m.Key, m.Payload = key, r.Value
	for _, h := range r.Headers {
		if h.Key == HeaderID {
			m.ID = string(h.Value)
			continue
		}
		if m.Headers == nil {
			m.Headers = map[string]string{}
		}
		m.Headers[h.Key] = string(h.Value)
	}
	if m.ID == "" {
		m.ID = place(r.Topic, r.Partition, r.Offset)
	}
	return m
}

func place(topic string, partition int32, offset int64) string {
	var buffer [300]byte // for the longest topic
	text := append(append(buffer[:0], topic...), '/')
	text = append(strconv.AppendInt(text, int64(partition), 10), '/')
	return string(strconv.AppendInt(text, offset, 10))
}

// letter is the record of a dead letter.
func (c *consumer) letter(s driver.Settlement) *kgo.Record {
	r := &kgo.Record{Topic: c.queue.options.DeadLetters, Value: s.Payload}
	if r.Topic == "" {
		r.Topic = c.Queue + ".dlq"
	}
	if s.Key != "" {
		r.Key = []byte(s.Key)
	}
	headers := maps.Clone(s.Headers)
	if headers == nil {
		headers = map[string]string{}
	}
	headers[HeaderID], headers[HeaderReason], headers[HeaderAttempts] = s.ID, s.Reason, strconv.Itoa(s.Attempt)
	headers[HeaderFrom] = place(c.Queue, s.Claim.(*assignment).Partition, s.Place)
	for _, key := range slices.Sorted(maps.Keys(headers)) {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: key, Value: []byte(headers[key])})
	}
	return r
}
