package drivertest

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// QueueSoak gives [RunQueueSoak] access to the queue under test and its server.
type QueueSoak struct {
	// Add appends messages with the given ids, KEY/NUMBER.
	Add func(ids ...string)
	// Join starts a consumer that has its own path to the server.
	Join func(handler QueueHandler) SoakMember
	// Restart kills a server and starts it again.
	Restart func()
	// Retry and Dead are the functions of flow/queue.
	Retry func(after time.Duration, err error) error
	Dead  func(err error) error
}

// SoakMember is a consumer of a soak.
type SoakMember struct {
	// Path is its path to the server. Heal undoes Cut.
	Path interface {
		Cut()
		Heal()
	}
	Consumer interface{ Close(context.Context) error }
	// Done reports whether no message is left and this consumer has all partitions.
	Done func() bool
}

// stop closes the consumer. If patience is 0, the consumer crashes: it does not leave its group.
func (m SoakMember) stop(patience time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = m.Consumer.Close(ctx)
}

// RunQueueSoak adds messages for a given time. At random, consumers join, leave, crash and lose
// their connection, handlers fail, and the server restarts. No message is lost, and keys stay in
// order.
func RunQueueSoak(t *testing.T, length time.Duration, s QueueSoak) {
	const keys, each = 50, 4
	audit := NewQueueAudit()
	handle := s.handler(audit)
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	members := []SoakMember{s.Join(handle)}
	faults := map[string]int{}
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
			members = append(members, s.Join(handle))
		case r < 9 && len(members) > 1:
			faults["leaves"]++
			remove().stop(patience)
		case r == 9 && len(members) > 1:
			faults["crashes"]++
			remove().stop(0)
		case r >= 10 && r < 13:
			faults["cuts"]++
			m := members[any()]
			m.Path.Cut()
			time.AfterFunc(time.Duration(random.IntN(10_000))*time.Millisecond, m.Path.Heal) // some outlast a session
		case r == 13:
			faults["restarts"]++
			s.Restart()
		}
		pause(t.Context(), 200*time.Millisecond)
	}
	last := s.Join(handle)
	for _, m := range members {
		m.Path.Heal()
		m.stop(patience)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for !last.Done() {
		if pause(ctx, 50*time.Millisecond); ctx.Err() != nil {
			t.Error("the last consumer has not handled everything")
			break
		}
	}
	audit.Check(t, all, 1000)
	t.Logf("%d messages, faults %v, %d stale writes rejected", len(all), faults, audit.Refused())
}

// handler takes up to 5 ms, fails 1 call in 40, and writes to the audit otherwise. 1 message in 200
// becomes a dead letter after its write.
func (s QueueSoak) handler(audit *QueueAudit) QueueHandler {
	return func(ctx context.Context, m driver.Received) error {
		pause(ctx, time.Duration(rand.IntN(5))*time.Millisecond)
		n := rand.IntN(200)
		if n < 5 {
			return s.Retry(time.Duration(rand.IntN(50))*time.Millisecond, errors.New("again"))
		}
		if err := audit.Handle(ctx, m); err != nil || n > 5 {
			return err
		}
		return s.Dead(errors.New("dead"))
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
