package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-dev/interlock/bench/compare"
)

// arrivals records the messages of one run as they are handled. It detects repeated messages, and
// those that come after a later one of their key.
type arrivals struct {
	began   sync.Once
	meter   compare.Meter
	early   bool // the measurement ends with the last message, not when the consumer has ended
	done    atomic.Int64
	effects effects

	mu    sync.Mutex
	last  map[string]int64 // number of the last message of a key
	wrong []string         // the first message that overtook another
	sent  map[int64]time.Time
	waits []time.Duration // of the messages in sent
}

func newArrivals() *arrivals { return &arrivals{last: map[string]int64{}, sent: map[int64]time.Time{}} }

// begin starts the measurement, unless it has started.
func (a *arrivals) begin() { a.began.Do(func() { a.meter = compare.Start() }) }

// fromHere measures from now until the last message arrives. Otherwise it is from the first
// message until the consumer has ended, and thus recorded what it handled.
func (a *arrivals) fromHere() {
	a.begin()
	a.early = true
}

// handled records one message, whose id is a number. Messages with an empty key have no order.
func (a *arrivals) handled(key, id string) {
	now := time.Now()
	a.begin()
	a.effects.add(id)
	number, _ := strconv.ParseInt(id, 10, 64) // 0 comes after all others
	a.mu.Lock()
	defer a.mu.Unlock()
	if last := a.last[key]; key != "" && number <= last && len(a.wrong) == 0 {
		a.wrong = append(a.wrong, fmt.Sprintf("message %d of %s came after %d", number, key, last))
	}
	a.last[key] = number
	if sent, found := a.sent[number]; found {
		a.waits = append(a.waits, now.Sub(sent))
	}
	a.done.Add(1)
}

// send adds a message to those whose time until they are handled is measured.
func (a *arrivals) send(number int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sent[number] = time.Now()
}

// end waits until n messages were handled, and for closing.
func (a *arrivals) end(ctx context.Context, n int, closing func(context.Context) error) (s compare.Sample, err error) {
	err = until(ctx, func() bool { return a.done.Load() >= int64(n) })
	s = a.meter.Sample(n)
	err = errors.Join(err, closing(ctx))
	if !a.early {
		s = a.meter.Sample(n)
	}
	s.Waits = a.waits
	s.Violations = append(a.effects.check(n), a.wrong...)
	return s, err
}

// adder adds messages with these numbers in one transaction or request.
type adder func(ctx context.Context, numbers []int64) error

// backlog returns a side that adds 20,000 messages for each second of the window, 500 at a time,
// and measures how start handles them.
func backlog(name string, add adder, start func(ctx context.Context, a *arrivals) (end func(context.Context) error, err error)) compare.Side {
	return compare.Side{Name: name, Run: func(ctx context.Context, window time.Duration) (s compare.Sample, err error) {
		n, a := int(20_000*window.Seconds()), newArrivals()
		began := time.Now()
		for left := n; left > 0; left -= 500 {
			if err := add(ctx, numbers(min(left, 500))); err != nil {
				return s, err
			}
		}
		added := float64(n) / time.Since(began).Seconds()
		end, err := start(ctx, a)
		if err != nil {
			return s, err
		}
		s, err = a.end(ctx, n, end)
		s.Values["added"] = added
		return s, err
	}}
}

// numbers returns n new numbers of messages.
func numbers(n int) []int64 {
	all := make([]int64, n)
	for i := range all {
		all[i] = fresh.Add(1)
	}
	return all
}

// keyOf returns the key of a message among so many keys; with none it is empty.
func keyOf(number, keys int64) string {
	if keys == 0 {
		return ""
	}
	return fmt.Sprint("key/", number%keys)
}
