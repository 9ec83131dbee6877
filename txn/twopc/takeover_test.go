package twopc

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
)

// TestCrashLoop: if the commit of a participant crashes every process, the transaction waits
// for an operator: it stays decided, and its branches prepared.
func TestCrashLoop(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, gate := newWorld(), make(chan struct{})
		var crash atomic.Bool
		var halted []observe.TwoPCHalted
		crash.Store(true)
		meet := func(at string) error {
			if crash.Load() && strings.HasPrefix(at, "south commit") && strings.HasSuffix(at, leaving) {
				<-gate
				return errCrashed
			}
			return nil
		}
		o := &Options{Scan: time.Minute, Hooks: &observe.TwoPC{Halted: func(e observe.TwoPCHalted) { halted = append(halted, e) }}}
		p := w.start(t, meet, o)
		ok(t, p.Run(t.Context(), "1", p.add(map[string]int64{"north": -5, "south": 5})))
		var stops []func()
		for n := int64(1); n <= 20; n++ {
			stops = append(stops, p.serve(t, n))
			synctest.Wait()
			p = w.start(t, meet, o)
		}
		stops = append(stops, p.serve(t, 21))
		wantKind(t, txntest.Second(p.Wait(t.Context(), "1")), interlock.Uncertain, ErrHalted)
		out, err := p.Look(t.Context(), "1")
		if ok(t, err); out.State != Committing || out.Decision != Commit || !strings.Contains(out.Halted, "taken over 10 times") {
			t.Errorf("%+v", out)
		}
		if len(halted) != 1 || len(halted[0].Participants) != 2 || halted[0].Reason != out.Halted {
			t.Errorf("reported %+v", halted)
		}
		p.Scan(t.Context())
		if n := w.banks["south"].Get("sum"); n != 0 {
			t.Errorf("the scan has committed a halted transaction: %d", n)
		}
		crash.Store(false)
		wantKind(t, p.Operator().Retry(t.Context(), "2", By{Actor: "ann", Reason: "x"}), interlock.Definite, ErrNone)
		ok(t, p.Operator().Retry(t.Context(), "1", By{Actor: "ann", Reason: "the client has a fix"}))
		ok(t, txntest.Second(p.Wait(t.Context(), "1")))
		if north, south := w.banks["north"].Get("sum"), w.banks["south"].Get("sum"); north != -5 || south != 5 {
			t.Errorf("north has %d, south %d", north, south)
		}
		wantKind(t, p.Operator().Retry(t.Context(), "1", By{Actor: "ann", Reason: "once more"}), interlock.Definite, nil)
		close(gate)
		for _, stop := range stops {
			stop()
		}
	})
}
