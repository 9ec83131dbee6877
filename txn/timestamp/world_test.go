package timestamp

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/history"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
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

// An entry is a commit in a list.
type entry struct {
	at Timestamp
	id int
}

func (e entry) compare(at Timestamp) int { return cmp.Compare(e.at, at) }

// readList reads the list that commits append to, and its revision.
func readList(t *testing.T, store driver.KeyValues) (list []entry, revision int64) {
	t.Helper()
	kvs, err := store.Get(t.Context(), "list")
	testbed.OK(t, err)
	for text := range strings.FieldsSeq(string(kvs[0].Value)) {
		var e entry
		_, err := fmt.Sscanf(text, "%d/%d", &e.at, &e.id)
		testbed.OK(t, err)
		list = append(list, e)
	}
	return list, kvs[0].Revision
}

// TestCommitsAreInOrder: two processes append commits to a list, over a store that delays and
// loses requests. A process with a timestamp sees all commits below it, now and later. A commit that
// was acknowledged is in the list, a refused one is not.
func TestCommitsAreInOrder(t *testing.T) {
	commits, unknown := 0, 0
	for seed := range uint64(100) {
		virtual.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 2))
			var mu sync.Mutex
			var late, running sync.WaitGroup
			store := memory.NewKeyValues()
			var checks []func(end []entry)
			used := map[Timestamp]int{}
			later := func(check func(end []entry)) (id int) {
				mu.Lock()
				defer mu.Unlock()
				checks = append(checks, check)
				return len(checks)
			}
			for process, pause := range []int{300, 9000} { // the other one takes over now and then
				way := &flaky{KeyValues: store, random: random, mu: &mu, late: &late}
				o, err := NewOracle(way, "oracle", nil)
				testbed.OK(t, err)
				for range 3 {
					running.Go(func() {
						for range 40 / (1 + 9*process) {
							time.Sleep(time.Duration(way.draw(pause)) * time.Millisecond)
							after, err := o.Next(t.Context())
							if err != nil {
								continue
							}
							saw, revision := readList(t, store)
							id := later(func(end []entry) {
								used[after]++
								below, _ := slices.BinarySearchFunc(end, after, entry.compare)
								if below > len(saw) || !slices.Equal(end[:below], saw[:below]) {
									t.Errorf("%d of %d commits below %d were there", len(saw), below, after)
								}
							})
							at, err := o.Commit(t.Context(), func(at Timestamp) []driver.Swap {
								text := fmt.Appendf(nil, "%d/%d", at, id)
								for _, e := range slices.Backward(saw) {
									text = fmt.Appendf(nil, "%d/%d %s", e.at, e.id, text)
								}
								return []driver.Swap{{Key: "list", Revision: revision, Value: text}}
							})
							later(func(end []entry) {
								was := slices.IndexFunc(end, func(e entry) bool { return e.id == id })
								switch {
								case err != nil && interlock.Kind(err) == interlock.Uncertain:
									unknown++
								case err != nil, at > 0 != (was >= 0), at > 0 && (end[was].at != at || at <= after):
									t.Errorf("commit at %d after %d, in %v at %d: %v", at, after, end, was, err)
								case at > 0:
									commits++
									used[at]++
								}
							})
						}
					})
				}
			}
			running.Wait()
			late.Wait()
			end, _ := readList(t, store)
			if !slices.IsSortedFunc(end, func(a, b entry) int { return a.compare(b.at) }) {
				t.Errorf("the list is %v", end)
			}
			for _, check := range checks {
				check(end)
			}
			for at, n := range used {
				if n > 1 {
					t.Errorf("%d was issued %d times", at, n)
				}
			}
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		})
	}
	if commits < 500 || unknown < 50 {
		t.Errorf("only %d commits, and %d unknown ones", commits, unknown)
	}
}
