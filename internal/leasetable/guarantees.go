package leasetable

import (
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Guarantees are those of a table. pushed says that a release wakes other processes, and
// durable that the server keeps what it has committed.
func Guarantees(name string, pushed, durable bool, ttl, minTTL, maxTTL time.Duration) interlock.Guarantees {
	g := interlock.Guarantees{
		Driver: name, Class: interlock.Fenced,
		TokenFrom: "counter in the name's row, at least the server's microseconds since 2020",
		Liveness:  interlock.ServerTTL, Clock: interlock.ServerClock,
		Order: interlock.Barging, Wait: interlock.Poll,
		CrossProcess: true,
		TokensSurvive: interlock.HolderPause | interlock.Partition | interlock.DataLoss |
			interlock.ServerClockJump | interlock.OperatorDelete,
		ExclusionSurvives: interlock.Partition,
		TTL:               ttl, Blind: ttl, MinTTL: minTTL, MaxTTL: maxTTL,
	}
	if pushed {
		g.Wait = interlock.Push
	}
	if durable {
		g.TokensSurvive |= interlock.ServerCrash
		g.ExclusionSurvives |= interlock.ServerCrash
	}
	return g
}

// Counters are the stored counters of a namespace, which [Counters.Seed] judges.
type Counters struct {
	Last, Now int64 // the highest counter, and that of the server's clock
	// Raise lifts all counters to at least floor, and Lower those beyond the clock to it,
	// on record.
	Raise func(floor int64) error
	Lower func(owner string, r *driver.Repair) error
}

// Seed judges the counters by the server's clock, and raises or lowers them as the seed
// asks. Counters that are not plausible are an error unless it asks for a repair.
func (c Counters) Seed(s driver.Seed) error {
	now := time.UnixMicro(interlock.EpochUnixMicro + c.Now)
	if err := driver.Plausible(c.Last, now); err != nil {
		if s.Repair == nil {
			return err
		}
		return c.Lower(s.Repair.Record(c.Last, c.Now), s.Repair)
	}
	floor, err := s.Floor(now)
	if err != nil || s.After == 0 || floor <= c.Now {
		return err
	}
	return c.Raise(floor)
}
