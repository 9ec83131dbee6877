package timestamp

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// stored is the value in the store: no timestamp at or above Bound has been issued.
type stored struct {
	Format int       `json:"format"`
	Epoch  int64     `json:"epoch"` // rises with each change of the leader
	Bound  Timestamp `json:"bound"`
	// Lead is how far Bound is ahead of the time at which the leader wrote it.
	Lead time.Duration `json:"lead,omitempty"`
}

const format = 1

var errFormat = errors.New("the oracle's record is of another format or damaged")

func (s stored) encode() []byte {
	s.Format = format
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // no field can fail
	}
	return text
}

func decode(text []byte) (s stored, err error) {
	if err := json.Unmarshal(text, &s); err != nil {
		return s, fmt.Errorf("%w: %w", errFormat, err)
	}
	if s.Format != format || s.Epoch < 1 || s.Bound < 1 || s.Lead < 0 {
		return s, fmt.Errorf("%w: %.100q", errFormat, text)
	}
	return s, nil
}

// A leader issues timestamps of one epoch. It performs no I/O; mono is the time on a
// monotonic clock of the process.
type leader struct {
	stored
	next  Timestamp     // the lowest not yet issued
	base  Timestamp     // the oracle's time at since
	since time.Duration // when the epoch began
	early time.Duration // how far base is ahead of time
	ahead time.Duration // the maximum raise of the bound
}

// succeed returns the leader after s, valid once its stored part is in the store. It may issue
// only n timestamps before it raises the bound.
func succeed(s stored, wall Timestamp, mono, ahead time.Duration, n int) leader {
	base := max(s.Bound, wall, 1)
	early := max(0, min(s.Lead, base.Sub(wall)))
	return leader{stored: stored{Epoch: s.Epoch + 1, Bound: base + Timestamp(n), Lead: early},
		next: base, base: base, since: mono, early: early, ahead: ahead}
}

// first returns the first timestamp of a batch at mono. A leader that began early runs at half
// the speed until it is not, so changes of the leader do not advance time.
func (l leader) first(mono time.Duration) Timestamp {
	led := mono - l.since
	return max(l.next, l.base.Add(led-min(l.early, led/2)))
}

// issue returns the first of n timestamps. It returns false if the bound must be raised first.
func (l *leader) issue(mono time.Duration, n int) (Timestamp, bool) {
	first := l.first(mono)
	if first+Timestamp(n) > l.Bound {
		return 0, false
	}
	l.next = first + Timestamp(n)
	return first, true
}

// reserved returns the leader after n more timestamps, and the first of these. It raises the
// bound if necessary.
func (l leader) reserved(mono time.Duration, n int) (leader, Timestamp) {
	if first, ok := l.issue(mono, n); ok {
		return l, first
	}
	l = l.raised(mono, n)
	first, _ := l.issue(mono, n)
	return l, first
}

// raised returns the leader with a bound for n timestamps. The longer it has led, the further
// it raises the bound, to write seldom.
func (l leader) raised(mono time.Duration, n int) leader {
	first, led := l.first(mono), mono-l.since
	now := l.base.Add(led - l.early)
	l.Bound = max(first+Timestamp(n), min(first.Add(2*led), now.Add(l.ahead)))
	l.Lead = max(0, l.Bound.Sub(now))
	return l
}
