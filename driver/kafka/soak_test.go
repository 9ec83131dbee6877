package kafka

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestSoak runs for INTERLOCK_SOAK_KAFKA, a duration: consumers join, leave, crash and are cut
// off, the broker is killed, handlers fail, while messages arrive. None is lost, and the order
// of keys holds.
func TestSoak(t *testing.T) {
	length, err := time.ParseDuration(os.Getenv("INTERLOCK_SOAK_KAFKA"))
	if err != nil {
		t.Skip("INTERLOCK_SOAK_KAFKA is not set to a duration")
	}
	for name, o := range map[string]QueueOptions{"classic": {}, "server-side": {ServerSide: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testbed.Kafka(t)
			s := &scene{t, server.Addr(), newTopic(t, server.Addr(), 6)}
			newTopicOf(t, server.Addr(), s.topic+".dlq", 1)
			k := &soak{scene: s, server: server, audit: newAudit(), o: o, random: rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))}
			k.run(length)
		})
	}
}

type soak struct {
	*scene
	server  *testbed.Server
	audit   *audit
	o       QueueOptions
	random  *rand.Rand
	members []*member
}

// member is a consumer with a path of its own.
type member struct {
	*queue.Consumer
	queue *Queue
	path  *testbed.Proxy
}

func (k *soak) handle(ctx context.Context, m queue.Received) error {
	pause(ctx, time.Duration(rand.IntN(5))*time.Millisecond)
	n := rand.IntN(200)
	if n < 5 {
		return queue.Retry(time.Duration(rand.IntN(50))*time.Millisecond, errors.New("again"))
	}
	if err := k.audit.handle(ctx, m); err != nil || n > 5 {
		return err
	}
	return queue.Dead(errors.New("dead"))
}

func (k *soak) join() {
	m := &member{path: testbed.NewProxy(k, k.addr)}
	o := k.o
	o.Client = []kgo.Opt{kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, m.path.Addr())
	})}
	m.queue = k.queue(&o)
	var err error
	if m.Consumer, err = queue.New(k.Context(), m.queue, k.topic, k.handle, &queue.Options{Lease: lease, MinPause: time.Millisecond, Hooks: quiet(k.T)}); err != nil {
		k.Fatal(err)
	}
	k.Cleanup(func() { k.stop(m.Consumer) })
	k.members = append(k.members, m)
}

// remove takes a member, but not the last one.
func (k *soak) remove() *member {
	if len(k.members) < 2 {
		return nil
	}
	i := k.random.IntN(len(k.members))
	m := k.members[i]
	k.members = append(k.members[:i], k.members[i+1:]...)
	return m
}

// fault does one thing, or nothing.
func (k *soak) fault() {
	switch r := k.random.IntN(40); {
	case r < 6 && len(k.members) < 5:
		k.join()
	case r < 9:
		if m := k.remove(); m != nil {
			k.stop(m.Consumer)
		}
	case r == 9:
		if m := k.remove(); m != nil {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			_ = m.Close(ctx)
		}
	case r < 13:
		path := k.members[k.random.IntN(len(k.members))].path
		path.Cut()
		time.AfterFunc(time.Duration(k.random.IntN(4000))*time.Millisecond, path.Heal)
	case r == 13:
		k.server.Kill()
		k.server.Restart()
	}
}

func (k *soak) run(length time.Duration) {
	const keys, each = 50, 4
	k.join()
	var all []string
	for end, n := time.Now().Add(length), 0; time.Now().Before(end); n++ {
		some := ids(keys, n*each, each)
		k.add(some...)
		all = append(all, some...)
		k.fault()
		pause(k.Context(), 200*time.Millisecond)
	}
	k.join()
	last := k.members[len(k.members)-1]
	for _, m := range k.members {
		m.path.Heal()
		if m != last {
			k.stop(m.Consumer)
		}
	}
	testbed.Eventually(k, "the last consumer has handled everything", time.Minute, func() bool {
		backlogs, err := last.queue.Backlogs(k.Context(), k.topic)
		lag := int64(0)
		for _, b := range backlogs {
			lag += b.Lag
		}
		return err == nil && len(backlogs) == 6 && lag == 0
	})
	k.audit.check(k.T, all, 1000)
	k.Logf("%d messages", len(all))
}
