package drivertest

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// SinkOrder publishes messages, as a relay does, to a system that fails meanwhile.
type SinkOrder struct {
	Sink               driver.Sink
	Topic              string
	Keys, Rounds, Each int // in each round Each messages of each key
	// Fail breaks and repairs the system. reach waits until a round has begun.
	Fail func(reach func(round int))
	Read func(ctx context.Context) ([]driver.Message, error)
	// Repeats allows that a message is stored several times.
	Repeats bool
}

// Check requires that no message is lost, and that those of a key are stored in order.
func (o SinkOrder) Check(t *testing.T) {
	t.Helper()
	var round atomic.Int32
	published := make(chan error, 1)
	go func() {
		var err error
		for n := 0; n < o.Rounds && err == nil; n++ {
			round.Store(int32(n))
			var some []driver.Message
			for i := range o.Each * o.Keys {
				some = append(some, driver.Message{ID: fmt.Sprintf("%d/%04d", i%o.Keys, n*o.Each+i/o.Keys), Topic: o.Topic, Key: fmt.Sprint(i % o.Keys)})
			}
			err = PublishAll(t.Context(), o.Sink, some)
		}
		published <- err
	}()
	o.Fail(func(n int) {
		testbed.Eventually(t, fmt.Sprint("round ", n), time.Minute, func() bool { return int(round.Load()) >= n })
	})
	t.Logf("repaired in round %d of %d", round.Load(), o.Rounds)
	testbed.OK(t, <-published)
	all, err := o.Read(t.Context())
	testbed.OK(t, err)
	stored := map[string][]string{}
	for _, m := range all {
		if !o.Repeats || !slices.Contains(stored[m.Key], m.ID) {
			stored[m.Key] = append(stored[m.Key], m.ID)
		}
	}
	for k := range o.Keys {
		if ids := stored[fmt.Sprint(k)]; len(ids) != o.Rounds*o.Each || !slices.IsSorted(ids) || len(slices.Compact(ids)) != o.Rounds*o.Each {
			t.Errorf("key %d: %d of %d messages, %v", k, len(ids), o.Rounds*o.Each, ids)
		}
	}
}
