package drivertest

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"
)

// QueueSoak tells [RunQueueSoak] how to reach the queue under test, and the server behind it.
type QueueSoak struct {
	// Add appends messages with such ids, KEY/NUMBER.
	Add func(ids ...string)
	// Join begins a consumer, with a path of its own to the server, whose handlers write to the audit.
	Join func() SoakMember
	// Restart kills the server and starts it again.
	Restart func()
	Audit   *QueueAudit
}

// A SoakMember is a consumer of a soak.
type SoakMember interface {
	Stop()      // closes it
	Crash()     // ends it without a goodbye
	Cut()       // cuts its path to the server
	Heal()      // undoes Cut
	Done() bool // all partitions are its own, and nothing is left of them
}

// RunQueueSoak adds messages for a length of time, while consumers join, leave, crash and are cut off
// and the server restarts, at random. None is lost, and the order of keys holds.
func RunQueueSoak(t *testing.T, length time.Duration, s QueueSoak) {
	const keys, each = 50, 4
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	members := []SoakMember{s.Join()}
	any := func() int { return random.IntN(len(members)) }
	remove := func() SoakMember {
		i := any()
		m := members[i]
		members = append(members[:i], members[i+1:]...)
		return m
	}
	var all []string
	for end, n := time.Now().Add(length), 0; time.Now().Before(end); n++ {
		some := QueueIDs(keys, n*each, each)
		s.Add(some...)
		all = append(all, some...)
		switch r := random.IntN(40); {
		case r < 6 && len(members) < 5:
			members = append(members, s.Join())
		case r < 9 && len(members) > 1:
			remove().Stop()
		case r == 9 && len(members) > 1:
			remove().Crash()
		case r >= 10 && r < 13:
			m := members[any()]
			m.Cut()
			time.AfterFunc(time.Duration(random.IntN(4000))*time.Millisecond, m.Heal)
		case r == 13:
			s.Restart()
		}
		pause(t.Context(), 200*time.Millisecond)
	}
	last := s.Join()
	for _, m := range members {
		m.Heal()
		m.Stop()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for !last.Done() {
		if pause(ctx, 50*time.Millisecond); ctx.Err() != nil {
			t.Error("the last consumer has not handled everything")
			break
		}
	}
	s.Audit.Check(t, all, 1000)
	t.Logf("%d messages", len(all))
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
