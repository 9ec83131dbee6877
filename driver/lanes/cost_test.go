package lanes

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// bare is a driver that stores nothing.
type bare struct{ Assignment }

// newBare is a consumer with one partition.
func newBare() (*Consumer[*bare], *bare) {
	c := NewConsumer(Hooks[*bare]{Queue: "q", Owner: "o",
		Problem: func(_, _ string, _ interlock.ErrorKind, err error) error { return err },
		Commit:  func(context.Context, []*bare) map[*bare]error { return nil }})
	a := &bare{NewAssignment("q", 0, "o", boottime.NewLease(boottime.Sent(), time.Hour))}
	if err := a.Begin(Restore(0, Committed{}, 1, 1000)); err != nil {
		panic(err)
	}
	a.Ready = true
	c.Parts[0] = a
	return c, a
}

// pass has n messages pass a consumer: they arrive, are received, and settled.
func pass(c *Consumer[*bare], a *bare, n int, keys [][]byte) {
	c.Update(func() {
		for range n {
			place := a.Offsets.next
			c.Arrive(a, place, keys[int(place)%len(keys)], 0)
		}
	})
	all, err := c.Receive(context.Background(), driver.QueueLimit{Messages: n, Bytes: 1 << 30})
	if err != nil || len(all) != n {
		panic(fmt.Sprint(len(all), err))
	}
	settlements := make([]driver.Settlement, 0, len(all))
	for len(all) > 0 {
		same := 1
		for same < len(all) && all[same].Key == all[0].Key {
			same++
		}
		settlements = append(settlements, driver.Settlement{Received: all[0], Later: all[1:same], Outcome: driver.Ack})
		all = all[same:]
	}
	c.Settle(context.Background(), settlements)
	if o := a.Offsets; o.Prefix() != o.next {
		panic(fmt.Sprint(o.next-o.Prefix(), " are not settled"))
	}
}

// TestAllocations: a message costs no allocation of its own, also if its key had none for a while.
func TestAllocations(t *testing.T) {
	c, a := newBare()
	const records = 500
	keys := manyKeys(1000)
	pass(c, a, records, keys[:10]) // settlements of 50 messages
	pass(c, a, records, keys)      // half of the keys; AllocsPerRun begins with the others
	if n := testing.AllocsPerRun(20, func() { pass(c, a, records, keys) }); n > 25 {
		t.Errorf("%d messages took %.0f allocations", records, n)
	}
}

func manyKeys(n int) (keys [][]byte) {
	for i := range n {
		keys = append(keys, fmt.Append(nil, "key/", i))
	}
	return keys
}
