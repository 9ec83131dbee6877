package schedule

import (
	"encoding/json"
	"fmt"
	"time"
)

// state is the stored state of a schedule, as JSON.
type state struct {
	// Tick is the last decided tick: begun, skipped or reported.
	Tick time.Time `json:"tick"`
	// Open means that the tick's job was begun, or about to begin, and is not known to have
	// ended.
	Open bool `json:"open,omitempty"`
}

func (s state) encode() []byte {
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // a year above 9999; see plan.next
	}
	return text
}

func decode(text []byte) (s state, err error) {
	if err := json.Unmarshal(text, &s); err != nil || s.Tick.IsZero() {
		return s, fmt.Errorf("the saved data is not the state of a schedule: %.100q", text)
	}
	return s, nil
}

// plan decides the next action. It reads no clock and performs no I/O.
type plan struct {
	times     Timetable
	missed    Missed
	maxLate   int
	tolerance time.Duration
}

// action is a decision of a plan.
type action int

const (
	wait    action = iota // wait until the tick
	run                   // the tick's job
	give                  // the tick up: skip or report it
	drop                  // the tick, because too many are due after it
	forever               // there are no more ticks
)

// next returns the next action and its tick at now. The tick has no term.
func (p plan) next(s state, now time.Time) (action, Tick, error) {
	if s.Open {
		t := Tick{At: s.Tick, Late: now.Sub(s.Tick), Begun: true}
		if p.missed == RunLate {
			return run, t, nil
		}
		return give, t, nil
	}
	at := p.times.Next(s.Tick)
	if at.IsZero() || at.Year() > 9999 {
		return forever, Tick{}, nil
	}
	at = at.UTC()
	t := Tick{At: at, Late: now.Sub(at)}
	switch {
	case !at.After(s.Tick):
		return 0, t, fmt.Errorf("the timetable returned %v as the tick after %v", at, s.Tick)
	case t.Late < 0:
		return wait, t, nil
	case p.missed == RunLate && p.isDue(p.newer(at, now), now):
		return drop, t, nil
	case p.isMissed(t):
		return give, t, nil
	}
	return run, t, nil
}

// isMissed reports whether the job of a tick is not to begin with its delay.
func (p plan) isMissed(t Tick) bool { return p.missed != RunLate && t.Late > p.toleranceOf(t.At) }

// newer returns the last of the ticks that are run late if at is not; zero if there is none. If
// some of them are not due at now, it returns the first of these.
func (p plan) newer(at, now time.Time) time.Time {
	if p.maxLate <= 0 {
		return time.Time{}
	}
	for n := 0; n < p.maxLate && p.isDue(at, now); n++ {
		at = p.times.Next(at)
	}
	return at
}

func (p plan) isDue(at, now time.Time) bool { return !at.IsZero() && !at.After(now) }

// toleranceOf returns how late the job of a tick may begin.
func (p plan) toleranceOf(at time.Time) time.Duration {
	const most = time.Minute
	if p.tolerance > 0 {
		return p.tolerance
	}
	if following := p.times.Next(at); following.After(at) {
		return min(following.Sub(at)/2, most)
	}
	return most
}

// begun returns the state to save before a tick's job runs. With Skip, the end of the job
// does not matter.
func (p plan) begun(t Tick) state { return state{Tick: t.At, Open: p.missed != Skip} }

// zoned reads the ticks of a timetable from the wall clock of a zone; see [Options].Zone. The
// timetable sees that clock as if it were in UTC, without changes of offset.
type zoned struct {
	times Timetable
	zone  *time.Location
}

// Next returns the first tick after t.
func (z zoned) Next(t time.Time) time.Time {
	wall := z.shown(t)
	for {
		next := z.times.Next(wall)
		if next.IsZero() {
			return next
		}
		if at := z.first(next); at.After(t) || !next.After(wall) {
			return at
		}
		wall = next // it is part of a period that was skipped, which has had its tick
	}
}

// wallOf returns what the clock of the zone shows at t, as a time in UTC.
func wallOf(t time.Time, zone *time.Location) time.Time {
	_, offset := t.In(zone).Zone()
	return t.UTC().Add(time.Duration(offset) * time.Second)
}

// shown returns the latest time that the clock of the zone has shown up to t. While a period
// repeats, that is its end: everything before has had its tick.
func (z zoned) shown(t time.Time) time.Time {
	wall := wallOf(t, z.zone)
	change, _ := t.In(z.zone).ZoneBounds()
	if change.IsZero() {
		return wall
	}
	// The end itself was not shown before the change.
	if before := wallOf(change.Add(-time.Nanosecond), z.zone); before.After(wall) {
		return before
	}
	return wall
}

// first returns the first instant at which the clock of the zone shows wall. If the clock is
// put forward over wall, it is the instant of that change.
func (z zoned) first(wall time.Time) time.Time {
	at := wall.Add(-26 * time.Hour).In(z.zone) // no offset is more than that from UTC
	for {
		_, offset := at.Zone()
		_, change := at.ZoneBounds()
		found := wall.Add(-time.Duration(offset) * time.Second)
		switch {
		case !change.IsZero() && !found.Before(change): // that offset ends before
			at = change
		case found.Before(at):
			return at.UTC()
		default:
			return found.UTC()
		}
	}
}
