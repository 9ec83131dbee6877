package queue

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
)

// assigned is an assignment that lasts. A message begins by a call of Context.
type assigned struct {
	revoked chan struct{}
	begins  func()
}

func (assigned) Name() string               { return "q" }
func (assigned) Owner() string              { return "o" }
func (assigned) Token() interlock.Token     { return 1 << 12 }
func (assigned) Remaining() time.Duration   { return time.Hour }
func (assigned) Valid() bool                { return true }
func (a assigned) Revoked() <-chan struct{} { return a.revoked }
func (a assigned) Context() context.Context {
	a.begins()
	return context.Background()
}

// given is a queue that delivers its messages once, together.
type given struct{ messages []driver.Received }

func (g *given) Join(context.Context, string, driver.QueueOptions) (driver.QueueConsumer, error) {
	return g, nil
}

func (g *given) Receive(ctx context.Context, _ driver.QueueLimit) (some []driver.Received, err error) {
	if some, g.messages = g.messages, nil; len(some) == 0 {
		<-ctx.Done()
	}
	return some, ctx.Err()
}

func (g *given) Settle(_ context.Context, all []driver.Settlement) []error {
	return make([]error, len(all))
}
func (g *given) Close(context.Context) error { return nil }

// TestBatchIsInFlight: all messages that were received together count before the first begins. If
// that one failed and was settled before, nothing would hold the next one of its key.
func TestBatchIsInFlight(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		consumer, counts := make(chan *Consumer, 1), make(chan int, 3)
		claim := &assigned{begins: func() {
			c := <-consumer
			c.mu.Lock()
			counts <- c.machine.messages
			c.mu.Unlock()
			consumer <- c
		}}
		q := &given{}
		for _, key := range []string{"a", "a", "b"} {
			q.messages = append(q.messages, driver.Received{QueueMessage: Message{Key: key}, Claim: claim})
		}
		c, err := New(t.Context(), q, "q", func(context.Context, Received) error { return nil }, nil)
		testbed.OK(t, err)
		consumer <- c
		if n := <-counts; n != 3 {
			t.Errorf("%d messages are in flight when the first begins, want 3", n)
		}
		testbed.OK(t, c.Close(t.Context()))
	})
}

// source is a model of a queue of one key.
type source struct {
	waiting []int64 // places, in order
	out     map[int64]bool
	blocked bool // a message was given back, and others are out
}

// give delivers messages from the first place that is not out.
func (s *source) give(n int) (places []int64) {
	for _, p := range s.waiting {
		if len(places) == n || s.out[p] && len(places) > 0 {
			break
		}
		if !s.out[p] {
			places = append(places, p)
		}
	}
	for _, p := range places {
		s.out[p] = true
	}
	return places
}

// TestModel runs a key whose messages fail at random: they succeed in order, the bounds hold, and
// nothing is left.
func TestModel(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		claim := &assigned{revoked: make(chan struct{})}
		x := newMachine(Options{InFlight: 1 + r.IntN(5), Bytes: 1 + r.IntN(50)})
		s := &source{out: map[int64]bool{}}
		for p := range int64(8) {
			s.waiting = append(s.waiting, p)
		}
		var begun []*delivery
		var done []int64
		for steps := 0; len(s.waiting) > 0; steps++ {
			if steps > 5000 {
				t.Fatalf("seed %d: stuck with %v of %v", seed, s.out, s.waiting)
			}
			switch r.IntN(4) {
			case 0:
				room, ok := x.room()
				if ok && !s.blocked {
					for _, p := range s.give(1 + r.IntN(room.Messages)) {
						x.receive([]driver.Received{{QueueMessage: Message{ID: fmt.Sprint(p), Key: "k", Payload: make([]byte, 5)}, Claim: claim, Place: p, Attempt: 1}})
					}
				}
			case 1:
				if d := x.begin(); d != nil {
					begun = append(begun, d)
				}
				if len(begun) > 1 {
					t.Fatalf("seed %d: two messages of a key are handled", seed)
				}
			case 2:
				for _, d := range begun {
					outcome := []driver.Outcome{driver.Ack, driver.Retry, driver.Release}[r.IntN(3)]
					if outcome == driver.Ack {
						done = append(done, d.Place)
					}
					x.end(d, verdict{Outcome: outcome})
				}
				begun = nil
			case 3:
				for _, d := range x.take(nil) {
					if d.Outcome == driver.Ack {
						s.waiting = without(s.waiting, d.Place)
					}
					delete(s.out, d.Place)
					s.blocked = (s.blocked || d.Outcome != driver.Ack) && len(s.out) > 0
					x.recorded(d)
				}
			}
			if x.messages > x.limit.Messages || x.messages < 0 || x.bytes < 0 {
				t.Fatalf("seed %d: %d messages, %d bytes in flight", seed, x.messages, x.bytes)
			}
		}
		for i, p := range done {
			if p != int64(i) {
				t.Fatalf("seed %d: handled in the order %v", seed, done)
			}
		}
		if x.messages != 0 || x.bytes != 0 || x.waiting != 0 || len(x.lanes) != 0 {
			t.Fatalf("seed %d: left %+v", seed, x)
		}
	}
}

func without(all []int64, p int64) (rest []int64) {
	for _, a := range all {
		if a != p {
			rest = append(rest, a)
		}
	}
	return rest
}

// TestRevoked: no message of a revoked assignment begins.
func TestRevoked(t *testing.T) {
	claim := &assigned{revoked: make(chan struct{})}
	x := newMachine(Options{InFlight: 2, Bytes: 1})
	x.receive([]driver.Received{{QueueMessage: Message{ID: "a", Key: "k"}, Claim: claim}, {QueueMessage: Message{ID: "b", Key: "k"}, Claim: claim}})
	d := x.begin()
	if d == nil {
		t.Fatal("it is not begun before")
	}
	close(claim.revoked)
	x.end(d, verdict{Outcome: driver.Ack})
	if x.begin() != nil {
		t.Error("it is begun afterwards")
	}
	if all := x.take(nil); len(all) != 2 || all[1].ID != "b" || all[1].Outcome != driver.Release {
		t.Errorf("to be recorded: %+v", all)
	}
}

// TestAllocations: a message costs at most two allocations, whether keys repeat or not.
func TestAllocations(t *testing.T) {
	claim := &assigned{revoked: make(chan struct{})}
	for _, keys := range []int{1, 500} {
		some := make([]driver.Received, 500)
		for i := range some {
			some[i] = driver.Received{QueueMessage: Message{Key: fmt.Sprint(i % keys)}, Claim: claim}
		}
		x := newMachine(Options{InFlight: len(some), Bytes: 1})
		var batch []*delivery
		n := testing.AllocsPerRun(10, func() {
			x.receive(some)
			for d := x.begin(); d != nil; d = x.begin() {
				x.end(d, verdict{Outcome: driver.Ack})
			}
			batch = x.take(batch[:0])
			for _, d := range batch {
				x.recorded(d)
			}
		})
		if len(batch) != len(some) || x.messages != 0 || n > 2*float64(len(some)) {
			t.Errorf("%d keys: %d of %d messages ended, with %.0f allocations", keys, len(batch), len(some), n)
		}
	}
}

func TestJudgement(t *testing.T) {
	mine := fmt.Errorf("mine\xff")
	held := fmt.Errorf("wrapped: %w", interlock.ErrHeld)
	for _, c := range []struct {
		failing   Failing
		attempt   int
		err       error
		gone      bool
		want      driver.Outcome
		uncounted bool
		after     time.Duration
	}{
		{Block, 9, mine, false, driver.Retry, false, time.Minute / 2},
		{Skip, 1, mine, false, driver.Retry, false, time.Second / 2},
		{Skip, 2, mine, false, driver.Retry, false, time.Second},
		{Skip, 3, mine, false, driver.Dead, false, 0},
		{Pause, 3, mine, false, driver.Park, false, 0},
		{Pause, 3, mine, true, driver.Release, false, 0},
		{Skip, 3, held, false, driver.Retry, true, time.Second / 2},
		{Skip, 3, Retry(time.Hour, mine), false, driver.Retry, false, time.Hour},
		{Block, 1, fmt.Errorf("wrapped: %w", Dead(mine)), true, driver.Dead, false, 0},
		{Block, 1, Park(nil), false, driver.Park, false, 0},
	} {
		j := judgement{c.failing, 3, backoff.Policy{First: time.Second, Max: time.Minute}, func() float64 { return 0.5 }}
		s := j.judge(c.attempt, c.err, c.gone)
		if s.Outcome != c.want || s.Uncounted != c.uncounted || s.After != c.after || s.Reason == "" {
			t.Errorf("%+v: %v, uncounted %t, after %v, reason %q", c, s.Outcome, s.Uncounted, s.After, s.Reason)
		}
	}
}
