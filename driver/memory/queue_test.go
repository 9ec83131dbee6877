package memory_test

import (
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
)

func TestQueue(t *testing.T) {
	drivertest.RunQueue(t, drivertest.QueueHarness{Bubble: virtual.Test,
		Start: func(*testing.T) drivertest.QueueBackend { return queues{memory.NewQueue()} }})
}

// queues implements the suite's backend on one Queue.
type queues struct{ *memory.Queue }

func (q queues) Add(_ *testing.T, name string, messages ...driver.QueueMessage) error {
	return q.Queue.Add(name, messages...)
}

func (q queues) DeadLetters(_ *testing.T, name string) (ids []string) {
	for _, m := range q.Queue.DeadLetters(name) {
		ids = append(ids, m.ID)
	}
	return ids
}

func (q queues) Replay(t *testing.T, name string, ids ...string) {
	testbed.OK(t, q.Queue.Replay(name, ids...))
}

func (q queues) Resume(t *testing.T, name, key string) {
	testbed.OK(t, q.Queue.Resume(name, key))
}

// Age advances virtual time.
func (q queues) Age(_ *testing.T, _ string, d time.Duration) { time.Sleep(d) }
