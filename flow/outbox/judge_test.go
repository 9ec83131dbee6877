package outbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/testbed"
)

type later struct{ error }

func (later) RetryAfter() time.Duration { return 20 * time.Second }

func errorOf(kind interlock.ErrorKind, err error) error {
	return &interlock.Error{Op: "publish", Kind: kind, Err: err}
}

// TestRefused: only an error about the message itself makes it poison.
func TestRefused(t *testing.T) {
	why := errors.New("why")
	for _, c := range []struct {
		err  error
		want bool
	}{
		{errorOf(interlock.Definite, why), true}, {fmt.Errorf("x: %w", errorOf(interlock.Bug, why)), true},
		{errorOf(interlock.Retryable, why), false}, {errorOf(interlock.Uncertain, why), false}, {why, false},
		{context.DeadlineExceeded, false}, {interlock.ErrLost, false}, {driver.ErrNotSent, false},
		{errorOf(interlock.Definite, context.Canceled), false}, {errorOf(interlock.Bug, interlock.ErrClosed), false},
	} {
		if got := refused(c.err); got != c.want {
			t.Errorf("%v: %v", c.err, got)
		}
	}
}

// TestUnavailable: a sink that requests a pause is there, although it delivers nothing.
func TestUnavailable(t *testing.T) {
	b, why := batch{send: []row{{id: 1, lane: 1}, {id: 2, lane: 2}}}, errors.New("why")
	for _, c := range []struct {
		second error
		want   error
	}{{why, why}, {errorOf(interlock.Retryable, later{why}), nil}, {errorOf(interlock.Definite, why), nil}, {nil, nil}} {
		if got := unavailable(b, []error{why, c.second}); got != c.want {
			t.Errorf("%v: %v", c.second, got)
		}
	}
}

func TestJudgement(t *testing.T) {
	j := judgement{deadLetters: true, attempts: 3, giveUp: 5,
		retry: backoff.Policy{First: time.Second, Max: 30 * time.Second}, random: func() float64 { return 0.999 }}
	r := row{Message: driver.Message{ID: "m", Topic: "t", Key: "k"}, id: 7, lane: 1, lists: due, parked: true, attempts: 2, head: 7}
	other := r
	other.head = 6 // the failures were of another message
	for _, c := range []struct {
		name     string
		row      row
		err      error
		dead     bool
		attempts int
		pause    time.Duration // at least
	}{
		{"refused for the last time", r, errorOf(interlock.Definite, errors.New("x")), true, 3, 0},
		{"refused for the first time", other, errorOf(interlock.Definite, errors.New("x")), false, 1, 990 * time.Millisecond},
		{"failed", r, errors.New("x"), false, 3, 3990 * time.Millisecond},
		{"asked to wait", other, errorOf(interlock.Retryable, later{errors.New("x")}), false, 1, 20 * time.Second},
	} {
		s, failures := j.judge(batch{send: []row{c.row}}, []error{c.err})
		if len(failures) != 1 || failures[0].Dead != c.dead || failures[0].Attempts != c.attempts || len(s.dead) == 1 != c.dead {
			t.Errorf("%s: %+v, %+v", c.name, failures, s)
			continue
		}
		if p := failures[0].Pause; !c.dead && (p < c.pause || p > c.pause+time.Second || s.changes[0].pause != p) {
			t.Errorf("%s: pause %v", c.name, p)
		}
	}
	// If a sink returns too few answers, the other messages count as undelivered.
	s, _ := j.judge(batch{send: []row{{id: 1, lane: 1}, {id: 2, lane: 2}}}, []error{nil})
	if len(s.sent) != 1 || len(s.changes) != 1 || s.changes[0].id != 2 {
		t.Errorf("%+v", s)
	}
	if got := errorText(errors.New(strings.Repeat("é", 600) + "\x00")); len(got) > 1010 || strings.ContainsRune(got, 0) {
		t.Errorf("%d bytes of an error are kept", len(got))
	}
}

// TestFailureBeforeDelay: if a message failed before a delayed one of its key, the failure decides.
func TestFailureBeforeDelay(t *testing.T) {
	rows := []row{{id: 1, lane: 7}, {id: 2, lane: 7}, {id: 3, lane: 7, early: time.Hour}}
	for i := range rows {
		rows[i].Key = "k"
	}
	b := plan(picture{rows: rows}, nil, maxBatchBytes)
	answers := []error{errorOf(interlock.Definite, errors.New("x")), driver.ErrNotSent}
	for _, c := range []struct {
		policy judgement
		want   string // why it waits
	}{{judgement{}, WhyBlocked}, {judgement{deadLetters: true, attempts: 1, follow: Park}, WhyDead}, {judgement{deadLetters: true, attempts: 1}, ""}} {
		c.policy.random = func() float64 { return 0 }
		s, _ := c.policy.judge(b, answers)
		if n := len(s.changes); c.want == "" && (n != 0 || len(s.relieved) != 1) || c.want != "" && (n != 1 || s.changes[0].why != c.want || s.changes[0].id != 1) {
			t.Errorf("%q: %+v", c.want, s)
		}
	}
	if s, _ := (judgement{}).judge(b, []error{nil, nil}); len(s.changes) != 1 || s.changes[0].why != WhyDelayed {
		t.Errorf("%+v", s)
	}
}

// TestPlanFits: a batch has at most maxBytes of payload, or one message.
func TestPlanFits(t *testing.T) {
	rows := []row{{id: 1, lane: 1}, {id: 2, lane: 2}, {id: 3, lane: 1}}
	for i := range rows {
		rows[i].Payload = make([]byte, 6)
	}
	for most, want := range map[int]int{1: 1, 6: 1, 12: 2, 17: 2, 18: 3} {
		if b := plan(picture{rows: rows}, nil, most); len(b.send) != want || b.full != (want < 3) {
			t.Errorf("%d bytes: %d messages", most, len(b.send))
		}
	}
}

// TestPlanOfCutRows: a row whose payload was not kept is not sent, nor are those behind it of its lane. Other lanes continue.
func TestPlanOfCutRows(t *testing.T) {
	rows := []row{{id: 1, lane: 1, parked: true, cut: true}, {id: 2, lane: 2}, {id: 3, lane: 1}, {id: 4, lane: 2, cut: true}, {id: 5, lane: 2}, {id: 6, lane: 3}}
	if b := plan(picture{rows: rows, each: 9}, nil, maxBatchBytes); !slices.Equal(ids64(b.send), []int64{2, 6}) || len(b.park) > 0 || !b.full {
		t.Errorf("%+v", b)
	}
}

func TestImpossibleOptions(t *testing.T) {
	for _, o := range []Options{{Batch: -1}, {Batch: 1001}, {Attempts: -1}, {GiveUp: -1}, {Poison: 7}, {AfterDeadLetter: -1},
		{MinPause: -1}, {MinPause: 2, MaxPause: 1}, {MaxPoll: -1}, {MinPoll: 2, MaxPoll: 1}, {Publish: -1}, {Drain: -1}} {
		if err := o.Validate(); interlock.Kind(err) != interlock.Bug || err == nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
	for _, o := range []*Options{nil, {}, {MinPause: time.Hour}, {MinPoll: time.Hour}, {Drain: math.MaxInt64}} {
		if d, err := o.withDefaults(); err != nil || d.Drain+closing < d.Drain {
			t.Errorf("%+v: %v", d, err)
		}
	}
}

func FuzzHeaders(f *testing.F) {
	for _, s := range []string{"", "{}", `{"a":"b"}`, `{"":"x"}`, "null", "[1]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, stored string) {
		h, err := decoded(stored)
		if err != nil {
			return
		}
		if text, why := encoded(h); why == "" {
			if again, err := decoded(text); err != nil || !maps.Equal(again, h) {
				t.Fatalf("%q is %v, and written again %v, %v", stored, h, again, err)
			}
		}
	})
}

// TestLull: an idle service waits until its next lane is due; if the database's clock
// is behind, it polls with growing pauses.
func TestLull(t *testing.T) {
	o, err := (&Options{MinPoll: time.Second, MaxPoll: time.Minute}).withDefaults()
	testbed.OK(t, err)
	now := time.Unix(1_000_000, 0)
	lulls := func(next time.Time, n int) (all []time.Duration) {
		for range n {
			d := o.lull(next, now)
			all = append(all, d)
			now = now.Add(d)
		}
		return all
	}
	if got, want := lulls(time.Time{}, 2), []time.Duration{time.Hour, time.Hour}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	millis := func(n ...time.Duration) (all []time.Duration) {
		for _, s := range n {
			all = append(all, s*time.Millisecond)
		}
		return all
	}
	got, want := lulls(now.Add(90*time.Minute), 6), millis(3_600_000, 1_800_001, 1000, 1001, 2002, 4004)
	if !slices.Equal(got, want) {
		t.Errorf("until a lane was due, and after: %v, want %v", got, want)
	}
}

// TestPoll: a relay polls less often the longer it finds nothing.
func TestPoll(t *testing.T) {
	o, err := (*Options)(nil).withDefaults()
	testbed.OK(t, err)
	looks := func(quiet time.Duration) (n int) {
		for passed := time.Duration(0); passed < quiet; n++ {
			passed += o.poll(passed)
		}
		return n
	}
	for quiet, want := range map[time.Duration]int{10 * time.Millisecond: 9, 100 * time.Millisecond: 19, time.Second: 29, time.Minute: 91} {
		if n := looks(quiet); n != want {
			t.Errorf("%d looks in %v, want %d", n, quiet, want)
		}
	}
}
