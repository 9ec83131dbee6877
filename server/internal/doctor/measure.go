package doctor

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/interlock-dev/interlock/driver/boottime"
)

// measured is the latency of requests and the pauses of this process during a measurement.
type measured struct {
	watched  time.Duration
	requests int
	latency  time.Duration // 99.9 % of the requests took no longer
	slowest  time.Duration
	pause    time.Duration // the longest time for which this process did not run
}

const (
	sampleInterval = 5 * time.Millisecond // between two samples of pauses
	pings          = 10                   // without watching
)

// measure sends requests one after the other, for a time or a few of them.
func measure(ctx context.Context, ping func(context.Context) error, watch time.Duration) (m measured, err error) {
	began := boottime.Now()
	pauses := make(chan time.Duration, 1)
	stop := make(chan struct{})
	var sampler sync.WaitGroup
	sampler.Go(func() { pauses <- samplePauses(stop) })
	var took []time.Duration
	for n := 0; n < pings || boottime.Now().Sub(began) < watch; n++ {
		sent := boottime.Now()
		if err = ping(ctx); err != nil {
			break
		}
		took = append(took, boottime.Now().Sub(sent))
		if err = wait(ctx, sampleInterval); err != nil {
			break
		}
	}
	close(stop)
	sampler.Wait()
	m.pause, m.watched, m.requests = <-pauses, boottime.Now().Sub(began), len(took)
	if len(took) > 0 {
		m.latency, m.slowest = percentile(took, 0.999), slices.Max(took)
	}
	return m, err
}

// samplePauses returns the longest delay of many short sleeps.
func samplePauses(stop <-chan struct{}) (longest time.Duration) {
	tick := time.NewTicker(sampleInterval)
	defer tick.Stop()
	for last := boottime.Now(); ; {
		select {
		case <-stop:
			return longest
		case <-tick.C:
			now := boottime.Now()
			longest, last = max(longest, now.Sub(last)-sampleInterval), now
		}
	}
}

// memberBound bounds the answers of one member of a cluster.
const memberBound = 2 * time.Second

// inParallel returns the results of do for all values, in their order.
func inParallel[V, R any](values []V, do func(V) R) []R {
	results := make([]R, len(values))
	var all sync.WaitGroup
	for i, v := range values {
		all.Go(func() { results[i] = do(v) })
	}
	all.Wait()
	return results
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}

// percentile returns the value that a part of the values does not exceed.
func percentile(values []time.Duration, part float64) time.Duration {
	sorted := slices.Sorted(slices.Values(values))
	i := int(part*float64(len(sorted))+0.999999) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// judge compares the measurements with the TTL. A claim is renewed every third of it, so two
// thirds are left if a pause begins at the worst moment.
func (r *Report) judge(m measured, o Options) {
	left := o.TTL * 2 / 3
	r.add("latency", grade(m.latency, o.TTL/30, o.TTL/3), "99.9 %% of %d requests took up to %v, the slowest %v; the TTL is %v",
		m.requests, round(m.latency), round(m.slowest), o.TTL)
	r.add("pause", grade(m.pause+m.latency, left/4, left),
		"this process was stopped for up to %v in %v; a claim with a TTL of %v outlives %v", round(m.pause), round(m.watched), o.TTL, left)
}

// grade returns Critical from one bound on, and Warning from another.
func grade[N time.Duration | float64](v, warning, critical N) Severity {
	switch {
	case v >= critical:
		return Critical
	case v >= warning:
		return Warning
	}
	return OK
}

func round(d time.Duration) time.Duration {
	switch {
	case d > time.Second:
		return d.Round(10 * time.Millisecond)
	case d > time.Millisecond:
		return d.Round(100 * time.Microsecond)
	}
	return d.Round(time.Microsecond)
}

// skew adds the offset of the server's clock. Its uncertainty is half of the round trip and the
// resolution of the server's answer.
func (r *Report) skew(server, sent, received time.Time, resolution time.Duration) {
	uncertainty := received.Sub(sent)/2 + resolution
	off := server.Sub(sent.Add(received.Sub(sent) / 2))
	far := max(off.Abs()-uncertainty, 0)
	r.add("clock", grade(far, 2*time.Second, time.Minute), "the server's clock differs from ours by %v ± %v", round2(off), round2(uncertainty))
}

func round2(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
