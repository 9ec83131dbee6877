package redis

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/backoff"
)

// pushes begins the channel of a process.
const pushes = "interlock:push:"

// subscriber listens on the one channel of a process, on which the server
// pushes grants. What it misses is found by heartbeats.
type subscriber struct {
	client  rueidis.Client
	channel string
	waiting *waiters
	again   func() // called after each subscription: the server may be another one

	once  sync.Once
	first chan error // nil once it is subscribed, or why it cannot be
	// patience is how many attempts may fail before first says so: the client may choose
	// a node of a cluster that is down.
	patience int32

	cancel context.CancelFunc
	loop   sync.WaitGroup
}

// resubscribe bounds the waits between attempts to subscribe.
var resubscribe = backoff.Policy{First: 50 * time.Millisecond, Max: time.Second}

func newSubscriber(client rueidis.Client, channel string, waiting *waiters, again func()) *subscriber {
	s := &subscriber{client: client, channel: channel, waiting: waiting, again: again, first: make(chan error, 1)}
	if client.Mode() == rueidis.ClientModeCluster {
		s.patience = 5
	}
	return s
}

// start begins to listen.
func (s *subscriber) start() {
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.loop.Go(func() { s.run(ctx) })
}

// run subscribes, and again after the connection was lost.
func (s *subscriber) run(ctx context.Context) {
	var failed atomic.Int32 // attempts since the last success
	confirmed := func(rueidis.PubSubSubscription) {
		failed.Store(0)
		s.once.Do(func() { s.first <- nil })
		s.waiting.hurry()
		s.again()
	}
	for ctx.Err() == nil {
		subscribe := s.client.B().Subscribe().Channel(s.channel).Build()
		err := s.client.Receive(rueidis.WithOnSubscriptionHook(ctx, confirmed), subscribe,
			func(m rueidis.PubSubMessage) { s.waiting.pushed(m.Message) })
		err = failure(request{op: "subscribe"}, err)
		if failed.Load() >= s.patience || interlock.Kind(err) == interlock.Definite {
			s.once.Do(func() { s.first <- err })
		}
		pause(ctx, resubscribe.Delay(int(failed.Add(1)), rand.Float64()))
	}
}

// awaitFirst waits for the outcome of the first attempts.
func (s *subscriber) awaitFirst(ctx context.Context) error {
	select {
	case err := <-s.first:
		return err
	case <-ctx.Done():
		return uncertain(request{op: "subscribe"}, context.Cause(ctx))
	}
}

// stop ends listening. It leaves nothing of ours on the client's connection, as
// a courtesy: if that fails, the connection is gone or nobody publishes there.
func (s *subscriber) stop(ctx context.Context) {
	s.cancel()
	unsubscribe(ctx, s.client, topic{name: s.channel})
}

// unsubscribe ends a subscription on every node of a cluster: the client subscribes on
// one of its choice, and does not keep which.
func unsubscribe(ctx context.Context, client rueidis.Client, t topic) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var all sync.WaitGroup
	for _, node := range nodesOf(client) {
		all.Go(func() { node.Do(undated{ctx}, t.unsubscription(node.B())) })
	}
	all.Wait()
}

// pause waits, unless ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
