package leasetable

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

// Guarantees returns the guarantees of a table. pushed reports that a release wakes other
// processes; durable reports that commits survive a crash of the server.
func Guarantees(name string, pushed, durable bool, ttl, minTTL, maxTTL time.Duration) interlock.Guarantees {
	g := Session(name, "counter in the name's row, at least the server's microseconds since 2020", durable, ttl)
	g.Liveness, g.Wait, g.ExclusionSurvives, g.MinTTL, g.MaxTTL = interlock.ServerTTL, interlock.Poll, interlock.Partition, minTTL, maxTTL
	if pushed {
		g.Wait = interlock.Push
	}
	if durable {
		g.ExclusionSurvives |= interlock.ServerCrash
	}
	return g
}

// Session returns the guarantees of locks that end with a session of a database, without Wait and
// ExclusionSurvives. durable reports that commits survive a crash of the server.
func Session(name, tokenFrom string, durable bool, ttl time.Duration) interlock.Guarantees {
	g := interlock.Guarantees{
		Driver: name, Class: interlock.Fenced, TokenFrom: tokenFrom,
		Liveness: interlock.Connection, Clock: interlock.ServerClock, Order: interlock.Barging, CrossProcess: true,
		TokensSurvive: interlock.HolderPause | interlock.Partition | interlock.DataLoss |
			interlock.ServerClockJump | interlock.OperatorDelete,
		TTL: ttl, Blind: ttl,
	}
	if durable {
		g.TokensSurvive |= interlock.ServerCrash
	}
	return g
}

// Counters are the stored counters of a namespace, which [Counters.Seed] checks.
type Counters struct {
	Last, Now int64 // the highest counter, and that of the server's clock
	// Raise raises all counters to at least floor. Lower lowers those above the clock to
	// it, and records that.
	Raise func(floor int64) error
	Lower func(owner string, r *driver.Repair) error
}

// Seed compares the counters with the server's clock, and raises or lowers them as the
// seed requests. Implausible counters are an error unless the seed has a repair.
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

var namespacePattern = regexp.MustCompile(`^[a-z][a-z0-9_]{0,19}$`)

// CheckOptions rejects a TTL that is out of bounds, and an invalid namespace of table
// names.
func CheckOptions(ttl, least, most time.Duration, namespace string) error {
	switch {
	case ttl < least || ttl > most:
		return fmt.Errorf("a TTL of %v is invalid: it must be %v to %v", ttl, least, most)
	case !namespacePattern.MatchString(namespace):
		return fmt.Errorf("%q is no namespace: at most 20 lower-case letters, digits and underscores, a letter first", namespace)
	}
	return nil
}

// CheckOpening returns the error of an opening with invalid options, without what it needs, or
// after ctx.
func CheckOpening(ctx context.Context, d failure.Driver, invalid error, given bool, need string) error {
	switch {
	case invalid != nil:
		return d.New("open", "", interlock.Bug, invalid)
	case !given:
		return d.New("open", "", interlock.Bug, errors.New(need))
	case ctx.Err() != nil:
		return d.Unsent(ctx, "open", "")
	}
	return nil
}
