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
	"github.com/interlock-dev/interlock/internal/leasequeue"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
)

// assigned is an assignment that lasts.
type assigned struct{ revoked chan struct{} }

func (assigned) Name() string               { return "q" }
func (assigned) Owner() string              { return "o" }
func (assigned) Token() interlock.Token     { return 1 << 12 }
func (assigned) Remaining() time.Duration   { return time.Hour }
func (assigned) Valid() bool                { return true }
func (a assigned) Revoked() <-chan struct{} { return a.revoked }
func (assigned) Context() context.Context   { return context.Background() }

// given is a queue that delivers its messages once, together, after begin is closed, if it is not nil.
type given struct {
	messages []*driver.Received
	begin    chan struct{}
}

func (g *given) Join(context.Context, string, driver.QueueOptions) (driver.QueueConsumer, error) {
	return g, nil
}

func (g *given) Receive(ctx context.Context, _ driver.QueueLimit) (some []*driver.Received, err error) {
	if g.begin != nil {
		<-g.begin
	}
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
		const batch = 10_000 // long enough for a worker to begin meanwhile
		var consumer *Consumer
		counts := make(chan int, batch)
		claim, q := &assigned{}, &given{begin: make(chan struct{})}
		for i := range batch {
			q.messages = append(q.messages, &driver.Received{QueueMessage: Message{Key: fmt.Sprint(i % 2)}, Claim: claim})
		}
		consumer, err := New(t.Context(), q, "q", func(context.Context, Received) error {
			consumer.mu.Lock()
			defer consumer.mu.Unlock()
			counts <- consumer.machine.messages
			return nil
		}, nil)
		testbed.OK(t, err)
		close(q.begin)
		if n := <-counts; n != batch {
			t.Errorf("%d messages are in flight when the first begins, want %d", n, batch)
		}
		testbed.OK(t, consumer.Close(t.Context()))
	})
}

// TestTurns: a worker handles up to maxShare messages of a key in one turn, if they are fast. If one
// takes longer than shareTime, another key is next.
func TestTurns(t *testing.T) {
	for takes, want := range map[time.Duration]int{0: maxShare, shareTime + 1: 1} {
		virtual.Test(t, func(t *testing.T) {
			claim, q, keys := &assigned{}, &given{}, make(chan string, maxShare+10)
			for i := range cap(keys) {
				key := "a"
				if i == cap(keys)-1 {
					key = "b"
				}
				q.messages = append(q.messages, &driver.Received{QueueMessage: Message{Key: key}, Claim: claim})
			}
			c, err := New(t.Context(), q, "q", func(_ context.Context, m Received) error {
				time.Sleep(takes)
				keys <- m.Key
				return nil
			}, &Options{Concurrency: 1})
			testbed.OK(t, err)
			before := 0
			for <-keys == "a" {
				before++
			}
			if before != want {
				t.Errorf("handlers of %v: %d messages of the first key are handled before the second, want %d", takes, before, want)
			}
			testbed.OK(t, c.Close(t.Context()))
		})
	}
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
		var begun []share
		var done []int64
		for steps := 0; len(s.waiting) > 0; steps++ {
			if steps > 5000 {
				t.Fatalf("seed %d: stuck with %v of %v", seed, s.out, s.waiting)
			}
			switch r.IntN(4) {
			case 0:
				room, ok := x.room()
				if ok && !s.blocked {
					var some []*driver.Received
					for _, p := range s.give(1 + r.IntN(room.Messages)) {
						some = append(some, &driver.Received{QueueMessage: Message{ID: fmt.Sprint(p), Key: "k", Payload: make([]byte, 5)}, Claim: claim, Place: p, Attempt: 1})
					}
					x.receive(some)
				}
			case 1:
				if d := x.begin(); d.lane != nil {
					begun = append(begun, d)
				}
				if len(begun) > 1 {
					t.Fatalf("seed %d: messages of a key are handled by two workers", seed)
				}
			case 2:
				for _, d := range begun {
					n, outcome := r.IntN(len(d.messages)+1), driver.Release
					if n > 0 {
						outcome = []driver.Outcome{driver.Ack, driver.Retry, driver.Release}[r.IntN(3)]
					}
					for i, m := range d.messages[:n] {
						if outcome == driver.Ack || i < n-1 {
							done = append(done, m.Place)
						}
					}
					x.end(d, n, driver.Settlement{Outcome: outcome})
				}
				begun = nil
			case 3:
				for _, d := range x.take(nil) {
					for m := range d.All() {
						if d.Outcome == driver.Ack {
							s.waiting = without(s.waiting, m.Place)
						}
						delete(s.out, m.Place)
						s.blocked = (s.blocked || d.Outcome != driver.Ack) && len(s.out) > 0
					}
					x.recorded(&d)
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
	x.receive([]*driver.Received{{QueueMessage: Message{ID: "a", Key: "k"}, Claim: claim}, {QueueMessage: Message{ID: "b", Key: "k"}, Claim: claim}})
	d := x.begin()
	if d.lane == nil {
		t.Fatal("it is not begun before")
	}
	close(claim.revoked)
	x.end(d, 1, driver.Settlement{Outcome: driver.Ack})
	if x.begin().lane != nil {
		t.Error("it is begun afterwards")
	}
	if all := x.take(nil); len(all) != 2 || all[1].ID != "b" || all[1].Outcome != driver.Release {
		t.Errorf("to be recorded: %+v", all)
	}
}

// TestAllocations: messages of a key cost at most two allocations together, and a settlement for each
// share.
func TestAllocations(t *testing.T) {
	claim := &assigned{revoked: make(chan struct{})}
	for _, keys := range []int{1, 500} {
		some := make([]*driver.Received, 500)
		for i := range some {
			some[i] = &driver.Received{QueueMessage: Message{Key: fmt.Sprint(i % keys)}, Claim: claim}
		}
		x := newMachine(Options{InFlight: len(some), Bytes: 1})
		var batch []result
		n := testing.AllocsPerRun(10, func() {
			x.receive(some)
			for s := x.begin(); s.lane != nil; s = x.begin() {
				x.end(s, len(s.messages), driver.Settlement{Outcome: driver.Ack})
			}
			batch = x.take(batch[:0])
			for i := range batch {
				x.recorded(&batch[i])
			}
		})
		if shares := keys * ((500/keys + maxShare - 1) / maxShare); x.messages != 0 || n > 2*float64(keys) || len(batch) != shares {
			t.Errorf("%d keys: %d messages are left, and took %.0f allocations and %d settlements", keys, x.messages, n, len(batch))
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

// TestLittleRoomWaitsForOutcomes: the consumer does not fetch a few messages while outcomes are
// recorded, which makes room for many.
func TestLittleRoomWaitsForOutcomes(t *testing.T) {
	x, claim := newMachine(Options{InFlight: 8, Bytes: 100}), &assigned{}
	for i := range 7 {
		x.receive([]*driver.Received{{QueueMessage: Message{ID: fmt.Sprint(i)}, Claim: claim}})
	}
	want := func(messages int, has bool) {
		t.Helper()
		if room, ok := x.room(); room.Messages != messages || ok != has {
			t.Errorf("room for %d is %v, want %d and %v", room.Messages, ok, messages, has)
		}
	}
	handle := func() { x.end(x.begin(), 1, driver.Settlement{Outcome: driver.Ack}) }
	want(1, true)
	handle()
	want(1, false)
	all := x.take(nil)
	want(1, false)
	x.recording = false // one could not be recorded
	want(1, true)
	x.recorded(&all[0])
	handle()
	handle()
	for _, r := range x.take(nil) {
		x.recorded(&r)
	}
	want(4, true)
}

// TestDepth: a claim of few messages does not hide that groups have many.
func TestDepth(t *testing.T) {
	var d depth
	claimed := func(groups, each, most int) {
		all := make([]leasequeue.Group, groups)
		for i := range all {
			all[i].Messages = make([]driver.Received, each)
		}
		d.learn(all, most)
	}
	claimed(64, 16, 16)
	claimed(2, 1, 1)
	if n := d.groups(2000); n != minGroups {
		t.Errorf("%d groups, want %d", n, minGroups)
	}
	claimed(64, 3, 16)
	if n := d.groups(900); n != 300 {
		t.Errorf("%d groups of three messages, want 300", n)
	}
}
