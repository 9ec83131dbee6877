package kafka

import (
	"context"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/flow/queue/queuetest"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestSoak runs drivertest.RunQueueSoak for INTERLOCK_SOAK_KAFKA, a duration, with both protocols of
// groups: on one broker, and on three, of which the leader of a partition is killed.
func TestSoak(t *testing.T) {
	length, err := time.ParseDuration(os.Getenv("INTERLOCK_SOAK_KAFKA"))
	if err != nil {
		t.Skip("INTERLOCK_SOAK_KAFKA is not set to a duration")
	}
	for name, o := range map[string]QueueOptions{"classic": {}, "server-side": {ServerSide: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testbed.Kafka(t)
			sceneOn(t, server.Addr(), 6).soak(o, length, func() {
				server.Kill()
				server.Restart()
			})
		})
	}
	for name, o := range map[string]QueueOptions{"three brokers": {}, "three brokers server-side": {ServerSide: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := testbed.KafkaCluster(t, 3)
			s := sceneOn(t, strings.Join(cluster.Addrs(), ","), 6)
			o.Client = []kgo.Opt{kgo.RequestTimeoutOverhead(time.Second)}
			s.soak(o, length, func() {
				leader := s.leader(cluster, s.topic)
				leader.Kill()
				leader.Restart()
			})
		})
	}
}

func (s *scene) soak(o QueueOptions, length time.Duration, restart func()) {
	newTopicOf(s.T, s.addr, s.topic+".dlq", 1)
	drivertest.RunQueueSoak(s.T, length, drivertest.QueueSoak{Add: s.add, Restart: restart, Retry: queue.Retry, Dead: queue.Dead,
		Join: func(handler drivertest.QueueHandler) drivertest.SoakMember {
			path := newPath(s)
			o := o
			o.Client = append([]kgo.Opt{kgo.Dialer(path.dial)}, o.Client...)
			q := s.queue(&o)
			return drivertest.SoakMember{Path: path, Consumer: s.start(q, handler), Done: func() bool {
				backlogs, err := q.Backlogs(s.Context(), s.topic)
				return queuetest.Drained(backlogs, err, 6)
			}}
		}})
}

// path leads through a proxy to each broker.
type path map[string]*testbed.Proxy

func newPath(s *scene) path {
	p := path{}
	for addr := range strings.SplitSeq(s.addr, ",") {
		p[addr] = testbed.NewProxy(s.T, addr)
	}
	return p
}

func (p path) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, network, p[addr].Addr())
}

func (p path) Cut() {
	for _, proxy := range p {
		proxy.Cut()
	}
}

func (p path) Heal() {
	for _, proxy := range p {
		proxy.Heal()
	}
}
