package redis

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

func TestStreamSuite(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	drivertest.RunSink(t, drivertest.SinkHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.SinkBackend {
			at := site{server: server, prefix: t.Name() + "/"}
			if exclusive {
				at = durable(t, true)
			}
			return &streamBackend{led[drivertest.KeptSink](at), at}
		},
	})
}

// streamBackend is a server to whose streams each sink has a path.
type streamBackend struct {
	*paths.Server[drivertest.KeptSink]
	at site
}

func (b *streamBackend) on(client rueidis.Client) drivertest.KeptSink {
	return &keptStream{NewStream(client, &StreamOptions{Prefix: b.at.prefix}), client, b.at.prefix}
}

func (b *streamBackend) Open(t *testing.T) (drivertest.KeptSink, error) {
	return b.Lead(t, func(path *testbed.Proxy) (drivertest.KeptSink, error) { return b.on(b.at.dialed(t, path)), nil })
}

func (b *streamBackend) Beside(t *testing.T) (drivertest.KeptSink, error) {
	return b.on(b.at.beside(t)), nil
}

func (b *streamBackend) Faults() drivertest.Faults { return b.Server }

// keptStream reads its entries as a consumer does.
type keptStream struct {
	*Stream
	client rueidis.Client
	prefix string
}

func (s *keptStream) Kept(ctx context.Context, topic string) (all []driver.Message, err error) {
	found, err := s.client.Do(ctx, s.client.B().Xrange().Key(s.prefix+topic).Start("-").End("+").Build()).AsXRange()
	for _, e := range found {
		m := driver.Message{ID: e.FieldValues["id"], Topic: topic, Key: e.FieldValues["key"], Payload: []byte(e.FieldValues["payload"])}
		if text := e.FieldValues["headers"]; text != "" {
			err = json.Unmarshal([]byte(text), &m.Headers)
		}
		all = append(all, m)
	}
	return all, err
}
