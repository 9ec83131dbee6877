package schedule

import (
	"testing"
	"time"
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
