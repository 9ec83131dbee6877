package elect_test

import (
	"testing"
	"time"

	"github.com/interlock-dev/interlock/claim/elect/electtest"
	"github.com/interlock-dev/interlock/driver/drivertest"
)

// TestOutagesLeaveNoCandidateBehind: the test for etcd is in its driver.
func TestOutagesLeaveNoCandidateBehind(t *testing.T) {
	t.Parallel()
	for name, s := range systems {
		t.Run(name, func(t *testing.T) {
			if testing.Short() {
				t.Skip("runs a server: not with -short")
			}
			t.Parallel()
			s := s.start(t)
			electtest.Outages(t, electtest.World{Open: s.open, Accept: s.accept, Faults: outages(s.paths)})
		})
	}
}

// outages returns faults that last longer than a lease, except one.
func outages(f drivertest.Faults) map[string]func() {
	const outage = leaseOfServers + time.Second
	return map[string]func(){
		"lost replies":   func() { f.(drivertest.ReplyDropper).DropReplies(); time.Sleep(outage); f.Heal() },
		"a stopped one":  func() { f.Pause(); time.Sleep(outage); f.Resume() },
		"a short outage": func() { f.Kill(); f.Restart() },
		"a long outage":  func() { f.Kill(); time.Sleep(outage); f.Restart() },
	}
}
