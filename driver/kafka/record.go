package kafka

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/interlock-dev/interlock/driver"
)

// Headers of dead letters, beside those of the message and [HeaderID].
const (
	HeaderReason   = "interlock-reason"   // why it was given up
	HeaderAttempts = "interlock-attempts" // how often it was tried
	HeaderFrom     = "interlock-from"     // topic/partition/offset
)

// fill sets the message of a record. A record without an id gets its place as one.
func (a *assignment) fill(m *driver.Received, r *kgo.Record) {
	m.Payload, m.Added = r.Value, r.Timestamp
	for _, h := range r.Headers {
		if h.Key == HeaderID {
			m.ID = a.text("", h.Value)
			continue
		}
		if m.Headers == nil {
			m.Headers = map[string]string{}
		}
		m.Headers[h.Key] = string(h.Value)
	}
	if m.ID == "" {
		var number [24]byte
		m.ID = a.text(a.Name(), strconv.AppendInt(append(number[:0], '/'), r.Offset, 10))
	}
}

// records are slices to decode records into. They hold no payloads, which messages refer to.
type records struct{ pool sync.Pool }

// GetRecords implements [kgo.PoolRecords].
func (p *records) GetRecords(n int) []kgo.Record {
	if r, _ := p.pool.Get().(*[]kgo.Record); r != nil && cap(*r) >= n {
		return *r
	}
	return make([]kgo.Record, n)
}

// PutRecords implements [kgo.PoolRecords].
func (p *records) PutRecords(r []kgo.Record) { p.pool.Put(&r) }

// text joins two texts. Many share an allocation, which lives as long as any of them.
func (a *assignment) text(prefix string, b []byte) string {
	n := len(prefix) + len(b)
	if a.texts.Cap()-a.texts.Len() < n {
		a.texts = strings.Builder{}
		a.texts.Grow(max(1024, n))
	}
	from := a.texts.Len()
	a.texts.WriteString(prefix)
	a.texts.Write(b)
	return a.texts.String()[from:]
}

// deadLetter is the record of a dead letter.
func (c *consumer) deadLetter(s driver.Settlement) *kgo.Record {
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
	headers[HeaderFrom] = s.Claim.Name() + "/" + strconv.FormatInt(s.Place, 10)
	for _, key := range slices.Sorted(maps.Keys(headers)) {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: key, Value: []byte(headers[key])})
	}
	return r
}

// sizeOf returns an upper bound of the bytes of a record in a batch.
func sizeOf(r *kgo.Record) int {
	size := 64 + len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		size += 10 + len(h.Key) + len(h.Value)
	}
	return size
}
