package redis

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestStreamSuite(t *testing.T) {
	t.Parallel()
	drivertest.RunSink(t, drivertest.SinkHarness{
		Start: suiteBackends(sharing(testbed.Redis(t)), func(client rueidis.Client, prefix string) drivertest.KeptSink {
			return &keptStream{NewStream(client, &StreamOptions{Prefix: prefix}), client, prefix}
		}),
	})
}

// keptStream reads its entries like a consumer.
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
