package memory_test

import (
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/memory"
)

func TestQueue(t *testing.T) {
	drivertest.RunQueue(t, drivertest.QueueHarness{Bubble: inBubble,
		Start: func(*testing.T) drivertest.QueueBackend { return queues{memory.NewQueue()} }})
}

// queues are those of one memory.
type queues struct{ *memory.Queue }

func (q queues) Add(_ *testing.T, name string, messages ...driver.QueueMessage) error {
	return q.Queue.Add(name, messages...)
}

func (q queues) Letters(_ *testing.T, name string) (ids []string) {
	for _, m := range q.Queue.Letters(name) {
		ids = append(ids, m.ID)
	}
	return ids
}

func (q queues) Replay(t *testing.T, name string, ids ...string) {
	if err := q.Queue.Replay(name, ids...); err != nil {
		t.Fatal(err)
	}
}

func (q queues) Resume(t *testing.T, name, key string) {
	if err := q.Queue.Resume(name, key); err != nil {
		t.Fatal(err)
	}
}

// TestQueueStarvesNobody: a key of low priority that has waited long enough goes first.
func TestQueueStarvesNobody(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		q := memory.NewQueue()
		add := func(id string, p driver.Priority) {
			if err := q.Add("q", driver.QueueMessage{ID: id, Key: id, Priority: p}); err != nil {
				t.Fatal(err)
			}
		}
		add("low", driver.LowPriority)
		time.Sleep(2*time.Minute + time.Second)
		add("high", driver.HighPriority)
		c, err := q.Join(t.Context(), "q", driver.QueueOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close(t.Context()) }()
		some, err := c.Receive(t.Context(), driver.QueueLimit{Messages: 1, Bytes: 1})
		if err != nil || len(some) != 1 || some[0].ID != "low" {
			t.Errorf("received %v, %v; want the one that waited", some, err)
		}
	})
}
