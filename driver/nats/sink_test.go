package nats

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log"
	"net"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

func TestMain(m *testing.M) {
	if address := os.Getenv("NATS_TEST_CHILD"); address != "" {
		log.Fatal(child(address, os.Getenv("NATS_TEST_GUARD")))
	}
	testbed.Main(m)
}

func TestSinkSuite(t *testing.T) {
	t.Parallel()
	drivertest.RunSink(t, drivertest.SinkHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.SinkBackend {
			server := testbed.Shared(t, testbed.NATS)
			if exclusive {
				server = testbed.NATS(t)
			}
			prefix, js := rand.Text(), dial(t, server.Addr())
			return paths.At(server, func(t *testing.T, addr string) (drivertest.KeptSink, error) {
				s, err := OpenSink("nats://"+server.Addr()+"/"+prefix, &SinkOptions{Client: []nats.Option{nats.SetCustomDialer(by(addr)), nats.ReconnectWait(20 * time.Millisecond)}})
				if err != nil {
					return nil, err
				}
				t.Cleanup(s.Close)
				return &keptSink{s, js}, nil
			})
		},
	})
}

// dial connects a separate client.
func dial(t *testing.T, addr string) jetstream.JetStream {
	t.Helper()
	c, err := nats.Connect(addr, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.PingInterval(time.Second))
	testbed.OK(t, err)
	t.Cleanup(c.Close)
	js, err := jetstream.New(c)
	testbed.OK(t, err)
	return js
}

// by is a dialer that connects to one address only.
type by string

func (to by) Dial(network, _ string) (net.Conn, error) {
	return net.DialTimeout(network, string(to), 5*time.Second)
}

// keptSink reads streams like a consumer. Each topic has its own stream.
type keptSink struct {
	*Sink
	js jetstream.JetStream // bypasses the path
}

// name returns the name of the stream of a topic.
func (s *keptSink) name(topic string) string {
	return s.prefix[:len(s.prefix)-1] + hex.EncodeToString([]byte(topic))
}

// Publish creates the streams first.
func (s *keptSink) Publish(ctx context.Context, messages []driver.Message) []error {
	for _, m := range messages {
		if !legal(s.prefix + m.Topic) {
			continue
		}
		// errors are ignored: the server may be down, or the stream may exist
		_, _ = s.js.CreateStream(ctx, jetstream.StreamConfig{Name: s.name(m.Topic), Subjects: []string{s.prefix + m.Topic}})
	}
	return s.Sink.Publish(ctx, messages)
}

func (s *keptSink) Kept(ctx context.Context, topic string) ([]driver.Message, error) {
	kept, err := s.js.Stream(ctx, s.name(topic))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	return read(ctx, kept, topic)
}

// read returns the messages of a stream.
func read(ctx context.Context, kept jetstream.Stream, topic string) (all []driver.Message, err error) {
	info, err := kept.Info(ctx)
	if err != nil {
		return nil, err
	}
	for n := uint64(1); n <= info.State.LastSeq; n++ {
		raw, err := kept.GetMsg(ctx, n)
		if err != nil {
			return nil, err
		}
		m := driver.Message{Topic: topic, Payload: raw.Data}
		for name, values := range raw.Header {
			switch name {
			case HeaderID:
				m.ID, err = url.PathUnescape(values[0])
			case HeaderKey:
				m.Key, err = url.PathUnescape(values[0])
			default:
				if m.Headers == nil {
					m.Headers = map[string]string{}
				}
				m.Headers[name] = values[0]
			}
			if err != nil {
				return nil, err
			}
		}
		all = append(all, m)
	}
	return all, nil
}

// TestSinkOrderOfKeys: messages of a key are stored once and in order, while the server is killed
// and restarted. A message without an answer is sent again, as by a relay.
func TestSinkOrderOfKeys(t *testing.T) {
	t.Parallel()
	server := testbed.NATS(t)
	kept, err := dial(t, server.Addr()).CreateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.>"}})
	testbed.OK(t, err)
	drivertest.SinkOrder{Sink: openSink(t, server.Addr()), Topic: "orders.eu", Keys: 5, Rounds: 40, Each: 5, Fail: func(reach func(int)) {
		reach(11)
		server.Kill()
		server.Restart()
	}, Read: func(ctx context.Context) ([]driver.Message, error) { return read(ctx, kept, "orders.eu") }}.Check(t)
}

// TestSinkRefusals: the rejection of a message itself is Definite, a missing stream is not.
// Later messages of the key are not sent.
func TestSinkRefusals(t *testing.T) {
	t.Parallel()
	server := testbed.Shared(t, testbed.NATS)
	js := dial(t, server.Addr())
	kept, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "small", Subjects: []string{"small"}, MaxMsgSize: 200, MaxMsgs: 2, Discard: jetstream.DiscardNew})
	testbed.OK(t, err)
	sink := openSink(t, server.Addr())
	many := map[string]string{}
	for i := range 700 {
		many[fmt.Sprint("name", i)] = fmt.Sprintf("%0100d", i)
	}
	for name, c := range map[string]struct {
		m    driver.Message
		want interlock.ErrorKind
	}{
		"no stream":             {driver.Message{ID: "1", Topic: "nowhere"}, interlock.Retryable},
		"larger than a stream":  {driver.Message{ID: "2", Topic: "small", Payload: make([]byte, 500)}, interlock.Definite},
		"larger than a server":  {driver.Message{ID: "3", Topic: "small", Payload: make([]byte, 2<<20)}, interlock.Definite},
		"large headers":         {driver.Message{ID: "4", Topic: "small", Headers: many}, interlock.Definite},
		"wildcard":              {driver.Message{ID: "5", Topic: "a.*"}, interlock.Definite},
		"space":                 {driver.Message{ID: "6", Topic: "a b"}, interlock.Definite},
		"system":                {driver.Message{ID: "7", Topic: "$JS.API.INFO"}, interlock.Definite},
		"header of the server":  {driver.Message{ID: "8", Topic: "small", Headers: map[string]string{"nats-rollup": "all"}}, interlock.Definite},
		"header of our own":     {driver.Message{ID: "10", Topic: "small", Headers: map[string]string{HeaderLetter: "1"}}, interlock.Definite},
		"line break in headers": {driver.Message{ID: "9", Topic: "small", Headers: map[string]string{"a": "b\r\nNats-Rollup: all"}}, interlock.Definite},
		"no id":                 {driver.Message{Topic: "small"}, interlock.Bug},
	} {
		c.m.Key = name
		behind := driver.Message{ID: "behind", Topic: c.m.Topic, Key: name}
		answers := sink.Publish(t.Context(), []driver.Message{c.m, behind})
		if answers[0] == nil || interlock.Kind(answers[0]) != c.want || !errors.Is(answers[1], driver.ErrNotSent) {
			t.Errorf("%s: %v (%v), behind it %v", name, answers[0], interlock.Kind(answers[0]), answers[1])
		}
		if subject := "no stream answers for the subject nowhere"; c.m.Topic == "nowhere" && !strings.Contains(answers[0].Error(), subject) {
			t.Errorf("%v does not name the subject", answers[0])
		}
	}
	for n := range 3 {
		err := sink.Publish(t.Context(), []driver.Message{{ID: fmt.Sprint("full", n), Topic: "small"}})[0]
		if full := n == 2; (err != nil) != full || full && interlock.Kind(err) != interlock.Uncertain {
			t.Errorf("message %d of a stream for 2: %v (%v)", n+1, err, interlock.Kind(err))
		}
	}
	if info, err := kept.Info(t.Context()); err != nil || info.State.Msgs != 2 {
		t.Errorf("%v in the stream, %v", info.State.Msgs, err)
	}
}

// TestSinkWithoutServer: a sink opens while its server is down, buffers nothing, and works once
// the server is up. So does a sink whose server goes down later.
func TestSinkWithoutServer(t *testing.T) {
	t.Parallel()
	server := testbed.NATS(t)
	kept, err := dial(t, server.Addr()).CreateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders"}})
	testbed.OK(t, err)
	before := openSink(t, server.Addr())
	server.Kill()
	testbed.Eventually(t, "the client notices that its server is down", time.Minute, before.client.IsReconnecting)
	after := openSink(t, server.Addr())
	for id, sink := range map[string]*Sink{"before": before, "after": after} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		err := sink.Publish(ctx, []driver.Message{{ID: id, Topic: "orders"}})[0]
		if err == nil || interlock.Kind(err) != interlock.Retryable {
			t.Errorf("%s: without a server: %v (%v)", id, err, interlock.Kind(err))
		}
	}
	server.Restart()
	for _, sink := range []*Sink{before, after} {
		testbed.OK(t, drivertest.PublishAll(t.Context(), sink, []driver.Message{{ID: "there", Topic: "orders"}}))
	}
	all, err := read(t.Context(), kept, "orders")
	if err != nil || len(all) != 1 || all[0].ID != "there" {
		t.Errorf("%v, %v", all, err)
	}
}

// TestWrongCredentials: sinks and consumers report rejected credentials, and work once the server
// accepts them.
func TestWrongCredentials(t *testing.T) {
	t.Parallel()
	server := testbed.NATS(t, "--user=shop", "--pass=right")
	password := atomic.Pointer[string]{}
	wrong, right := "wrong", "right"
	password.Store(&wrong)
	login := []nats.Option{nats.UserInfoHandler(func() (string, string) { return "shop", *password.Load() }), nats.ReconnectWait(20 * time.Millisecond)}
	sink, err := OpenSink("nats://"+server.Addr(), &SinkOptions{Client: login})
	testbed.OK(t, err)
	defer sink.Close()
	q, err := OpenQueue("nats://"+server.Addr(), &QueueOptions{Client: login})
	testbed.OK(t, err)
	defer q.Close()
	for what, try := range map[string]func(ctx context.Context) error{
		"publish": func(ctx context.Context) error {
			return sink.Publish(ctx, []driver.Message{{ID: "1", Topic: "orders"}})[0]
		},
		"join": func(ctx context.Context) error {
			_, err := q.Join(ctx, "orders", driver.QueueOptions{})
			return err
		},
	} {
		testbed.Eventually(t, what+" reports the refusal", time.Minute, func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			err := try(ctx)
			if interlock.Kind(err) != interlock.Retryable {
				t.Fatalf("%s: %v", what, err)
			}
			return errors.Is(err, nats.ErrAuthorization)
		})
	}
	password.Store(&right)
	testbed.Eventually(t, "the server takes the credentials", time.Minute, func() bool {
		_, err := sink.stream.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.*", "orders"}})
		return err == nil && sink.Publish(t.Context(), []driver.Message{{ID: "1", Topic: "orders"}})[0] == nil && q.client.IsConnected()
	})
}

func openSink(t *testing.T, addr string) *Sink {
	t.Helper()
	sink, err := OpenSink("nats://"+addr, &SinkOptions{Client: []nats.Option{nats.ReconnectWait(20 * time.Millisecond)}})
	testbed.OK(t, err)
	t.Cleanup(sink.Close)
	return sink
}

func TestSinkURLs(t *testing.T) {
	for _, url := range []string{"", "redis://h:1", "nats://", "nats://h", "nats://:4222", "nats://h:1,", "nats://u:p@h:1", "nats://h:1/a b", "nats://h:1/a/ b", "nats://h:1/.", "nats://h:1/*", "nats://h:1?x=y"} {
		if _, err := OpenSink(url, nil); interlock.Kind(err) != interlock.Bug || err == nil {
			t.Errorf("%q: %v", url, err)
		}
	}
}

// TestUnknownOutcome: only the rejection of the message itself is Definite.
func TestUnknownOutcome(t *testing.T) {
	for _, c := range []struct {
		err  error
		want interlock.ErrorKind
	}{
		{&jetstream.APIError{Code: 400, ErrorCode: 10054}, interlock.Definite}, {fmt.Errorf("x: %w", nats.ErrMaxPayload), interlock.Definite},
		{&jetstream.APIError{Code: 503, ErrorCode: 10077}, interlock.Uncertain}, {jetstream.ErrNoStreamResponse, interlock.Retryable},
		{nats.ErrReconnectBufExceeded, interlock.Retryable}, {nats.ErrConnectionClosed, interlock.Uncertain},
		{nats.ErrDisconnected, interlock.Uncertain}, {context.DeadlineExceeded, interlock.Uncertain},
	} {
		if got := classify(c.err); got != c.want {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
	}
}
