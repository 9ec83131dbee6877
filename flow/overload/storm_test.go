package overload

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/generated"
	"github.com/interlock-dev/interlock/internal/picture"
	"github.com/interlock-dev/interlock/internal/virtual"
)

// The load run: a backend of 250 calls a second gets 80 % of that, then three times as much, then
// 80 % again. A call is good if it ends within the 3 seconds that its user waits.
const (
	workers  = 5
	service  = 20 * time.Millisecond
	capacity = 250 // calls a second: workers / service
	clients  = 10
	patience = 3 * time.Second

	before, storm, after = 5, 15, 25 // seconds
)

// backend runs one call at a time with each worker, including calls whose caller has left.
type backend struct {
	free  chan struct{}
	calls sync.WaitGroup
}

func newBackend() *backend {
	b := &backend{free: make(chan struct{}, workers)}
	for range workers {
		b.free <- struct{}{}
	}
	return b
}

func (b *backend) work() {
	<-b.free
	time.Sleep(service)
	b.free <- struct{}{}
}

// run generates the load, and returns how many calls of each second were good.
func run(t *testing.T, start func() (call func(ctx context.Context, b *backend, client int) error)) (good []int) {
	good = make([]int, before+storm+after)
	virtual.Test(t, func(t *testing.T) {
		b, call := newBackend(), start()
		var mu sync.Mutex
		var users sync.WaitGroup
		random := rand.New(rand.NewPCG(1, 2))
		for second := range good {
			rate := capacity * 8 / 10
			if second >= before && second < before+storm {
				rate = capacity * 3
			}
			for range rate {
				client := random.IntN(clients)
				users.Go(func() {
					ctx, cancel := context.WithTimeout(context.Background(), patience)
					defer cancel()
					if call(ctx, b, client) == nil && ctx.Err() == nil {
						mu.Lock()
						good[second]++
						mu.Unlock()
					}
				})
				time.Sleep(time.Duration(random.ExpFloat64() * float64(time.Second) / float64(rate)))
			}
		}
		users.Wait()
		b.calls.Wait()
	})
	return good
}

// unprotected runs clients with six attempts of half a second each.
func unprotected(t *testing.T) []int {
	return run(t, func() func(context.Context, *backend, int) error {
		return func(ctx context.Context, b *backend, _ int) error {
			for ctx.Err() == nil {
				answer := make(chan struct{})
				b.calls.Go(func() {
					b.work()
					close(answer)
				})
				select {
				case <-answer:
					return nil
				case <-time.After(patience / 6):
				}
			}
			return ctx.Err()
		}
	})
}

// protected runs the same backend and clients, with a policy each.
func protected(t *testing.T) []int {
	return run(t, func() func(context.Context, *backend, int) error {
		server, policies := policy(t, nil), make([]*Policy, clients)
		for i := range policies {
			policies[i] = policy(t, nil)
		}
		return func(ctx context.Context, b *backend, client int) error {
			_, err := Call(ctx, policies[client], func(ctx context.Context) (struct{}, error) {
				done, err := server.Admit(ctx)
				if err != nil {
					return struct{}{}, err
				}
				defer done()
				b.work()
				return struct{}{}, ctx.Err()
			})
			return err
		}
	})
}

func policy(t testing.TB, o *Options) *Policy {
	t.Helper()
	p, err := New(o)
	ok(t, err)
	return p
}

// TestStorm: with policies the goodput stays at the capacity, and recovers soon after the
// storm. Without them it falls to zero and stays there: the backend runs calls whose callers
// have left.
func TestStorm(t *testing.T) {
	const calm = capacity * 8 / 10
	with, without := protected(t), unprotected(t)
	t.Logf("good calls a second with policies: %v", with)
	t.Logf("without: %v", without)
	sum := 0
	for second, good := range with {
		switch {
		case second >= before && second < before+storm:
			if sum += good; good < capacity*8/10 {
				t.Errorf("second %d: %d good calls in the storm", second, good)
			}
		case second < before || second >= before+storm+5:
			if good < calm*9/10 {
				t.Errorf("second %d: %d good calls out of the storm", second, good)
			}
		}
	}
	if sum < storm*capacity*9/10 {
		t.Errorf("%d good calls in the storm, the capacity is %d", sum, storm*capacity)
	}
	for second := before + 5; second < before+storm+5; second++ {
		if without[second] > capacity/10 {
			t.Errorf("second %d: without policies %d calls are good, so there is nothing to protect from", second, without[second])
		}
	}
	checkPicture(t, storms{with, without})
}

// storms has the good calls of each second.
type storms struct{ With, Without []int }

// checkPicture compares docs/pictures/overload.svg with the recorded run. `make pictures` records this
// run.
func checkPicture(t *testing.T, present storms) {
	t.Helper()
	const recorded = "testdata/storm.json"
	if generated.Updating() {
		text, err := json.Marshal(present)
		if err == nil {
			err = os.WriteFile(recorded, append(text, '\n'), 0o644)
		}
		ok(t, err)
	}
	var drawn storms
	text, err := os.ReadFile(recorded)
	if err == nil {
		err = json.Unmarshal(text, &drawn)
	}
	ok(t, err)
	svg := picture.Plot{
		Title: "Good calls a second, before, in and after a storm of three times the capacity",
		Level: picture.Mark{At: capacity, Text: "capacity"},
		Marks: []picture.Mark{{At: before, Text: "the storm begins"}, {At: before + storm, Text: "it ends"}},
		Series: []picture.Series{{Name: "with policies", Tone: picture.Good, Values: drawn.With},
			{Name: "without", Tone: picture.Bad, Values: drawn.Without}},
	}.SVG()
	generated.Check(t, "../../docs/pictures/overload.svg", svg)
}
