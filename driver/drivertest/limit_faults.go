package drivertest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// limitPatience bounds one call during faults.
const limitPatience = 200 * time.Millisecond

// slowUnits is the size of a limit whose units do not return. It is more than one call takes and
// not a multiple of that.
const slowUnits = 200

// limitHistory is what processes were granted of one limit during faults.
type limitHistory struct {
	key  string
	rate driver.Rate
	cost int64 // of each call

	mu      sync.Mutex
	granted []granted
	refused int
	unknown int64 // units of calls with an unknown outcome
}

// testLimiterFaults takes units from several processes while the server is paused, loses replies,
// is cut off and is killed. No limit admits more than its bound. A limit whose units do not return
// has lost the granted and perhaps the unknown units, in whole calls: refused calls consume nothing,
// and no call consumes twice.
func testLimiterFaults(s *limiterScene) {
	var histories []*limitHistory
	for _, a := range algorithms {
		histories = append(histories, &limitHistory{key: "quick/" + a.String(), rate: driver.Rate{Count: 20, Period: 500 * time.Millisecond, Algorithm: a}, cost: 2},
			&limitHistory{key: "slow/" + a.String(), rate: driver.Rate{Count: slowUnits, Period: 10 * 24 * time.Hour, Algorithm: a}, cost: 7})
	}
	var answered, failed atomic.Int64
	ctx, stop := context.WithCancel(s.Context())
	begun, workers := time.Now(), sync.WaitGroup{}
	for w := range 4 {
		store := s.open()
		workers.Go(func() {
			for i := w; ctx.Err() == nil; i++ {
				if histories[i%len(histories)].take(s.T, store, begun) {
					answered.Add(1)
				} else {
					failed.Add(1)
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	rises := func(what string, n *atomic.Int64, by int64) {
		s.Helper()
		from := n.Load()
		testbed.Eventually(s, what, restarted, func() bool { return n.Load() >= from+by })
	}
	defer workers.Wait()
	defer stop()
	for _, f := range []struct{ begin, end func() }{
		{s.faults.Pause, s.faults.Resume}, {s.faults.(ReplyDropper).DropReplies, s.faults.Heal}, {s.faults.Cut, s.faults.Heal}, {s.faults.Kill, s.faults.Restart},
	} {
		rises("decisions", &answered, 200)
		f.begin()
		rises("failures", &failed, 4)
		f.end()
	}
	rises("decisions", &answered, 200)
	stop()
	workers.Wait()
	s.store = s.beside()
	for _, h := range histories {
		// A busy machine may have made too few calls to exceed the rate.
		for end := time.Now().Add(restarted); h.refused == 0 && time.Now().Before(end); {
			h.take(s.T, s.store, begun)
		}
		h.check(s)
	}
}

// take makes one call and reports whether it was decided.
func (h *limitHistory) take(t *testing.T, store driver.Limiter, begun time.Time) bool {
	ctx, cancel := context.WithTimeout(context.Background(), limitPatience)
	defer cancel()
	sent := time.Since(begun)
	x := store.Take(ctx, []driver.LimitCall{{{Key: h.key, Rate: h.rate, Cost: h.cost}}})[0]
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case x.Allowed():
		for range h.cost {
			h.granted = append(h.granted, granted{sent, time.Since(begun)})
		}
	case x.Err == nil:
		h.refused++
	case interlock.Kind(x.Err) == interlock.Uncertain:
		h.unknown += h.cost
	case interlock.Kind(x.Err) == interlock.Bug:
		t.Error(x.Err)
	}
	return x.Err == nil
}

func (h *limitHistory) check(s *limiterScene) {
	slow := h.rate.Period > time.Hour
	if len(h.granted) < 20 || h.refused == 0 {
		s.Errorf("%s: only %d units were granted, and %d calls refused", h.key, len(h.granted), h.refused)
	}
	checkRate(s.T, h.rate, h.granted)
	if !slow {
		return
	}
	left := int64(-1)
	s.persist("peek", func(ctx context.Context) error {
		x := s.store.Take(ctx, []driver.LimitCall{{{Key: h.key, Rate: h.rate}}})[0]
		if x.Err == nil {
			left = x.Decisions[0].Remaining
		}
		return x.Err
	})
	if most := slowUnits - int64(len(h.granted)); left > most || left < most-h.unknown || (slowUnits-left)%h.cost != 0 {
		s.Errorf("%s: %d units remain of 200, %d were granted and %d may have been", h.key, left, len(h.granted), h.unknown)
	}
}
