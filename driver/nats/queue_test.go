package nats

import (
	"crypto/rand"
	"net/url"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// lease is long enough for a busy machine.
const lease = 6 * time.Second

func TestQueueSuite(t *testing.T) {
	t.Parallel()
	drivertest.RunQueue(t, drivertest.QueueHarness{Partitioned: true, Start: func(t *testing.T) drivertest.QueueBackend {
		addr := testbed.Shared(t, testbed.NATS).Addr()
		b := &queueBackend{js: dial(t, addr), prefix: "t" + rand.Text()}
		newStream(t, b.js, b.prefix, b.prefix+".q")
		newStream(t, b.js, b.prefix+"-dlq", "dlq."+b.prefix+".q")
		var err error
		b.Queue, err = OpenQueue("nats://"+addr+"/"+b.prefix, nil)
		testbed.OK(t, err)
		t.Cleanup(b.Queue.Close)
		return b
	}})
}

func newStream(t *testing.T, js jetstream.JetStream, name string, subjects ...string) jetstream.Stream {
	t.Helper()
	s, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: subjects})
	testbed.OK(t, err)
	return s
}

// queueBackend has the queue "q" in a stream of the test.
type queueBackend struct {
	*Queue
	js     jetstream.JetStream // bypasses the queue's client
	prefix string
}

func (b *queueBackend) Add(t *testing.T, name string, messages ...driver.QueueMessage) error {
	for _, m := range messages {
		msg := &nats.Msg{Subject: b.prefix + "." + name, Header: nats.Header{HeaderID: {url.PathEscape(m.ID)}}, Data: m.Payload}
		if m.Key != "" {
			msg.Header[HeaderKey] = []string{url.PathEscape(m.Key)}
		}
		for key, value := range m.Headers {
			msg.Header[key] = []string{value}
		}
		if _, err := b.js.PublishMsg(t.Context(), msg); err != nil {
			return err
		}
	}
	return nil
}

func (b *queueBackend) DeadLetters(t *testing.T, _ string) (ids []string) {
	s, err := b.js.Stream(t.Context(), b.prefix+"-dlq")
	testbed.OK(t, err)
	all, err := read(t.Context(), s, "")
	testbed.OK(t, err)
	for _, m := range all {
		id := unescape(m.Headers[HeaderLetter])
		if unescape(m.Headers[HeaderReason]) != "reason of "+id || m.Headers[HeaderAttempts] != "1" {
			t.Errorf("%+v", m)
		}
		ids = append(ids, id)
	}
	return ids
}

func (b *queueBackend) Replay(t *testing.T, _ string, _ ...string) {
	t.Error("dead letters do not return")
}

func (b *queueBackend) Resume(t *testing.T, name, key string) {
	testbed.OK(t, b.Queue.Resume(name, key))
}
