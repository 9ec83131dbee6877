package schedule

import "time"

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
