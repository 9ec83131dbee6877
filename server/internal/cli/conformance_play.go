package cli

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/interlock-dev/interlock/txn/barrier/conformance"
)

// progress is the interval at which a long play reports its progress.
const progress = 10 * time.Second

// play judges a participant, and says every few seconds that it is still at it.
func (a *app) play(ctx context.Context, o conformance.Options) (conformance.Report, error) {
	count := &counted{}
	o.Client = &http.Client{Transport: count}
	over, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		ticker := time.NewTicker(progress)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				a.say("still playing to the participant: %d requests so far", count.requests.Load())
			case <-over:
				return
			}
		}
	}()
	defer func() { close(over); <-gone }()
	return conformance.Run(ctx, o)
}

// counted is the default transport, which counts.
type counted struct{ requests atomic.Int64 }

// RoundTrip is [http.RoundTripper]'s.
func (c *counted) RoundTrip(r *http.Request) (*http.Response, error) {
	c.requests.Add(1)
	return http.DefaultTransport.RoundTrip(r)
}
