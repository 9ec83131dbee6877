package timestamp

import (
	"bytes"
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/history"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// flaky is a store that delays, refuses and loses requests and replies. Some requests
// take effect later, like those of a paused or disconnected process.
type flaky struct {
	driver.KeyValues
	random *rand.Rand
	mu     *sync.Mutex
	late   *sync.WaitGroup
}

func (f *flaky) draw(n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.random.IntN(n)
}

func (f *flaky) pause() {
	time.Sleep(time.Duration(f.draw(3)) * time.Millisecond)
	if f.draw(40) == 0 {
		time.Sleep(time.Duration(f.draw(4000)) * time.Millisecond) // within the time of a batch
	}
}

func (f *flaky) Get(ctx context.Context, keys ...string) ([]driver.KeyValue, error) {
	f.pause()
	kvs, err := f.KeyValues.Get(ctx, keys...)
	f.pause()
	if f.draw(20) == 0 {
		return nil, interlock.ErrUncertain
	}
	return kvs, err
}

func (f *flaky) Swap(ctx context.Context, swaps ...driver.Swap) (int64, error) {
	f.pause()
	switch f.draw(20) {
	case 0:
		return 0, &interlock.Error{Op: "swap", Kind: interlock.Retryable, Err: context.DeadlineExceeded}
	case 1: // it arrives much later
		delay := time.Duration(f.draw(10000)) * time.Millisecond
		f.late.Go(func() {
			time.Sleep(delay)
			_, _ = f.KeyValues.Swap(context.WithoutCancel(ctx), swaps...)
		})
		return 0, interlock.ErrUncertain
	case 2:
		_, _ = f.KeyValues.Swap(ctx, swaps...)
		return 0, interlock.ErrUncertain
	}
	revision, err := f.KeyValues.Swap(ctx, swaps...)
	f.pause()
	return revision, err
}

// run lets processes request timestamps concurrently, and returns the checker's report.
// Their clocks jump if jumps is set.
func run(t *testing.T, seed uint64, jumps bool) history.Report {
	random := rand.New(rand.NewPCG(seed, 1))
	var mu sync.Mutex
	var late, running sync.WaitGroup
	var text bytes.Buffer
	w, err := history.NewWriter(&text, history.Header{Run: t.Name(), Seed: int64(seed)}, nil)
	testbed.OK(t, err)
	store := memory.NewKeyValues()
	issued := 0
	for process := range 3 {
		o, err := NewOracle(&flaky{KeyValues: store, random: random, mu: &mu, late: &late}, "oracle", nil)
		testbed.OK(t, err)
		if jumps {
			o.wall = func() time.Time {
				mu.Lock()
				defer mu.Unlock()
				return time.Now().Add(time.Duration(random.IntN(7200)-3600) * time.Second)
			}
		}
		for caller := range 2 {
			running.Go(func() {
				for range 12 {
					mu.Lock()
					pause := time.Duration(random.IntN(2000)) * time.Millisecond
					mu.Unlock()
					time.Sleep(pause)
					call := w.Invoke(history.Event{Lane: string(rune('A'+process)) + string(rune('0'+caller)), Op: history.OpAcquire, Key: "oracle"})
					at, err := o.Next(t.Context())
					if err != nil {
						if interlock.Kind(err) != interlock.Retryable {
							t.Errorf("it failed for good: %v", err)
						}
						call.Fail(err.Error())
						continue
					}
					call.Granted(interlock.Token(at), "")
					mu.Lock()
					issued++
					mu.Unlock()
				}
			})
		}
	}
	running.Wait()
	late.Wait()
	testbed.OK(t, w.Close())
	if issued < 30 {
		t.Errorf("only %d timestamps were issued", issued)
	}
	reader, err := history.NewReader(&text)
	testbed.OK(t, err)
	report, err := history.CheckTokens(reader.Events())
	testbed.OK(t, err)
	return report
}
