package redis

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/backoff"
)

// pushes begins the channel name of a process.
const pushes = "interlock:push:"

// subscriber listens on the one channel of a process, on which the server pushes
// grants. Heartbeats find missed pushes.
type subscriber struct {
	client  rueidis.Client
	channel string
	waiting *waiters
	again   func() // called after each subscription: it may be another server

	once  sync.Once
	first chan error // nil once it is subscribed, or the error
	// patience is how many attempts may fail before first gets the error: the client may
	// choose a node of a cluster that is down.
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

// start starts to listen.
func (s *subscriber) start() {
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.loop.Go(func() { s.run(ctx) })
}

// run subscribes, and subscribes again after a lost connection.
func (s *subscriber) run(ctx context.Context) {
	var failed atomic.Int32 // attempts since the last success
	confirmed := func(rueidis.PubSubSubscription) {
		failed.Store(0)
		s.once.Do(func() { s.first <- nil })
		s.waiting.sendAllNow()
		s.again()
	}
	for ctx.Err() == nil {
		subscribe := s.client.B().Subscribe().Channel(s.channel).Build()
		err := s.client.Receive(rueidis.WithOnSubscriptionHook(ctx, confirmed), subscribe,
			func(m rueidis.PubSubMessage) { s.waiting.handlePush(m.Message) })
		err = failure(request{op: "subscribe"}, err)
		if failed.Load() >= s.patience || interlock.Kind(err) == interlock.Definite {
			s.once.Do(func() { s.first <- err })
		}
		resubscribe.Wait(ctx, int(failed.Add(1)))
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

// stop ends the subscription, so that the client's connection keeps nothing of
// ours. That may fail: then the connection is gone or there is no publisher.
func (s *subscriber) stop(ctx context.Context) {
	s.cancel()
	unsubscribe(ctx, s.client, topic{name: s.channel})
}

// unsubscribe ends a subscription on every node of a cluster: the client subscribes on
// a node of its choice, and does not report which.
func unsubscribe(ctx context.Context, client rueidis.Client, t topic) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var all sync.WaitGroup
	for _, node := range nodesOf(client) {
		all.Go(func() { node.Do(undated{ctx}, t.unsubscription(node.B())) })
	}
	all.Wait()
}
