package schedule

import (
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/interlock-dev/interlock/internal/testbed"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// moonless has ticks until noon only.
type moonless struct{}

func (moonless) Next(t time.Time) time.Time {
	if t.Before(noon) {
		return noon
	}
	return time.Time{}
}

// stuck always returns the same tick.
type stuck struct{}

func (stuck) Next(time.Time) time.Time { return noon }

func TestPlan(t *testing.T) {
	hourly := Every(time.Hour)
	for _, c := range []struct {
		what      string
		times     Timetable
		missed    Missed
		tolerance time.Duration
		state     state
		now       time.Duration // after noon
		want      action
		at        time.Duration // after noon
		begun     bool
		fails     bool
	}{
		{what: "not yet", times: hourly, state: state{Tick: noon}, now: 59 * time.Minute, want: wait, at: time.Hour},
		{what: "now", times: hourly, state: state{Tick: noon}, now: time.Hour, want: run, at: time.Hour},
		{what: "a minute late", times: hourly, state: state{Tick: noon}, now: 61 * time.Minute, want: run, at: time.Hour},
		{what: "later", times: hourly, state: state{Tick: noon}, now: 61*time.Minute + 1, want: give, at: time.Hour},
		{what: "later, tolerated", times: hourly, tolerance: 2 * time.Minute, state: state{Tick: noon}, now: 62 * time.Minute, want: run, at: time.Hour},
		{what: "half of a short time late", times: Every(time.Second), state: state{Tick: noon}, now: 1500 * time.Millisecond, want: run, at: time.Second},
		{what: "more than half", times: Every(time.Second), missed: Report, state: state{Tick: noon}, now: 1501 * time.Millisecond, want: give, at: time.Second},
		{what: "hours late", times: hourly, missed: RunLate, state: state{Tick: noon}, now: 5 * time.Hour, want: run, at: time.Hour},
		{what: "open", times: hourly, missed: RunLate, state: state{noon, true}, now: time.Minute, want: run, begun: true},
		{what: "open, reported", times: hourly, missed: Report, state: state{noon, true}, now: time.Minute, want: give, begun: true},
		{what: "open, skipped", times: hourly, state: state{noon, true}, now: time.Minute, want: give, begun: true},
		{what: "between multiples", times: hourly, state: state{Tick: noon.Add(time.Minute)}, now: time.Hour, want: run, at: time.Hour},
		{what: "the last one", times: moonless{}, state: state{Tick: noon.Add(-time.Hour)}, now: time.Minute, want: run},
		{what: "after the last one", times: moonless{}, state: state{Tick: noon}, want: forever},
		{what: "a timetable that stands still", times: stuck{}, state: state{Tick: noon}, fails: true},
	} {
		p := plan{times: c.times, missed: c.missed, tolerance: c.tolerance}
		do, tick, err := p.next(c.state, noon.Add(c.now))
		switch {
		case c.fails != (err != nil):
			t.Errorf("%s: %v", c.what, err)
		case err != nil:
		case do != c.want || tick.Begun != c.begun || do != forever && !tick.At.Equal(noon.Add(c.at)):
			t.Errorf("%s: %d of %+v", c.what, do, tick)
		case do != forever && tick.Late != c.now-c.at:
			t.Errorf("%s: late by %v", c.what, tick.Late)
		}
	}
}

// counted is a timetable that counts its calls.
type counted struct {
	Timetable
	calls int
}

func (c *counted) Next(t time.Time) time.Time {
	c.calls++
	return c.Timetable.Next(t)
}

// TestMaxLateCostsNothingInTime: of ticks in the future none is computed, however high MaxLate is.
func TestMaxLateCostsNothingInTime(t *testing.T) {
	times := &counted{Timetable: Every(time.Hour)}
	p := plan{times: times, missed: RunLate, maxLate: 1 << 20}
	if do, tick, err := p.next(state{Tick: noon}, noon.Add(150*time.Minute)); do != run || err != nil || times.calls > 3 {
		t.Errorf("%d of %+v, %v after %d calls of Next", do, tick, err, times.calls)
	}
}

func TestStateIsReadAsItWasWritten(t *testing.T) {
	for _, s := range []state{{Tick: noon}, {noon.Add(1), true}} {
		if got, err := decode(s.encode()); err != nil || got != s {
			t.Errorf("%+v came back as %+v, %v", s, got, err)
		}
	}
	for _, text := range []string{"", "{}", "rubbish", `{"tick":"noon"}`} {
		if s, err := decode([]byte(text)); err == nil {
			t.Errorf("%q is read as %+v", text, s)
		}
	}
}

func FuzzState(f *testing.F) {
	for _, s := range []string{`{"tick":"2026-01-02T03:04:05Z"}`, `{"tick":"2026-01-02T03:04:05.5+01:00","open":true}`, `{}`, `null`, ``} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := decode(data)
		if err != nil {
			return
		}
		if again, err := decode(s.encode()); err != nil || !again.Tick.Equal(s.Tick) || again.Open != s.Open {
			t.Fatalf("%q is %+v, and written again %+v, %v", data, s, again, err)
		}
	})
}

// daily is due at some times of each day, in the location of Next's argument, like
// cron expressions; it ignores changes of the offset.
type daily []time.Duration

func (d daily) Next(t time.Time) time.Time {
	day := time.Date(t.Year(), t.Month(), t.Day(), 0, 0, 0, 0, t.Location())
	for {
		for _, at := range d {
			if next := day.Add(at); next.After(t) {
				return next
			}
		}
		day = day.AddDate(0, 0, 1)
	}
}

// TestZone: ticks follow the clock of the zone. A skipped tick runs when the clock is
// put forward, together with others; a tick that is shown twice runs the first time.
func TestZone(t *testing.T) {
	const minute, hour = time.Minute, time.Hour
	for _, c := range []struct {
		name, zone string
		times      daily
		from       string
		want       []string
	}{
		{"winter", "Europe/Berlin", daily{3 * hour}, "2026-01-10T12:00:00Z", []string{"2026-01-11T02:00:00Z", "2026-01-12T02:00:00Z"}},
		{"summer", "Europe/Berlin", daily{3 * hour}, "2026-07-10T12:00:00Z", []string{"2026-07-11T01:00:00Z"}},
		{"across the world", "Pacific/Kiritimati", daily{hour}, "2026-07-10T12:00:00Z", []string{"2026-07-11T11:00:00Z"}},
		{"a skipped tick runs at the change", "Europe/Berlin", daily{2*hour + 30*minute}, "2026-03-28T00:00:00Z",
			[]string{"2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"}},
		{"skipped ticks run together", "Europe/Berlin", daily{hour + 45*minute, 2 * hour, 2*hour + 15*minute, 2*hour + 59*minute, 3 * hour, 4 * hour},
			"2026-03-29T00:00:00Z", []string{"2026-03-29T00:45:00Z", "2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z"}},
		{"a repeated tick runs the first time", "Europe/Berlin", daily{2*hour + 30*minute}, "2026-10-24T12:00:00Z",
			[]string{"2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"}},
		{"all of the repeated hour", "Europe/Berlin", daily{hour + 59*minute, 2 * hour, 2*hour + 30*minute, 3 * hour}, "2026-10-24T12:00:00Z",
			[]string{"2026-10-24T23:59:00Z", "2026-10-25T00:00:00Z", "2026-10-25T00:30:00Z", "2026-10-25T02:00:00Z", "2026-10-26T00:59:00Z"}},
		{"begun in the repeated hour", "Europe/Berlin", daily{2*hour + 30*minute, 3 * hour}, "2026-10-25T01:10:00Z", []string{"2026-10-25T02:00:00Z"}},
		{"a change at midnight", "America/Santiago", daily{0, hour}, "2026-09-05T12:00:00Z", []string{"2026-09-06T04:00:00Z", "2026-09-07T03:00:00Z"}},
		{"half an hour", "Australia/Lord_Howe", daily{2*hour + 15*minute}, "2026-10-03T00:00:00Z", []string{"2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"}},
	} {
		zone, err := time.LoadLocation(c.zone)
		testbed.OK(t, err)
		at, err := time.Parse(time.RFC3339, c.from)
		testbed.OK(t, err)
		for _, want := range c.want {
			at = zoned{c.times, zone}.Next(at)
			if got := at.UTC().Format(time.RFC3339); got != want {
				t.Errorf("%s: got %s, want %s", c.name, got, want)
			}
		}
	}
}

// TestZoneHasEveryTickOnce, through ten years of changes.
func TestZoneHasEveryTickOnce(t *testing.T) {
	for _, name := range []string{"Europe/Berlin", "America/New_York", "Africa/Casablanca", "Australia/Lord_Howe", "UTC"} {
		zone, err := time.LoadLocation(name)
		testbed.OK(t, err)
		at := time.Date(2020, 1, 1, 12, 0, 0, 0, time.UTC)
		seen := map[string]bool{}
		for days := 0; days < 3650; days++ {
			next := zoned{daily{2*time.Hour + 30*time.Minute}, zone}.Next(at)
			day := next.In(zone).Format(time.DateOnly)
			if gap := next.Sub(at); seen[day] || !next.After(at) || days > 0 && (gap < 22*time.Hour || gap > 26*time.Hour) {
				t.Fatalf("%s: %v comes after %v", name, next, at)
			}
			seen[day], at = true, next
		}
	}
}
