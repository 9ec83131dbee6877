package timestamp

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// stored is what the store keeps: nothing at or above Bound was issued yet.
type stored struct {
	Format int       `json:"format"`
	Epoch  int64     `json:"epoch"` // rises with each change of the leader
	Bound  Timestamp `json:"bound"`
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
	if s.Format != format || s.Epoch < 1 || s.Bound < 1 {
		return s, fmt.Errorf("%w: %.100q", errFormat, text)
	}
	return s, nil
}

// A leader issues timestamps of one epoch. It performs no I/O; mono is the time on a
// monotonic clock of the process.
type leader struct {
	stored
	next  Timestamp     // the lowest that was not issued
	base  Timestamp     // the oracle's time at since
	since time.Duration // when the epoch began
	ahead time.Duration // how far the bound is raised at most
}

// succeed is the leader after s, once the store has its stored part. It may issue n
// timestamps before it raises the bound: changes of the leader do not make time run ahead.
func succeed(s stored, wall Timestamp, mono, ahead time.Duration, n int) leader {
	base := max(s.Bound, wall, 1)
	return leader{stored: stored{Epoch: s.Epoch + 1, Bound: base + Timestamp(n)},
		next: base, base: base, since: mono, ahead: ahead}
}

// first is the first timestamp of a batch now. It follows the time.
func (l leader) first(mono time.Duration) Timestamp {
	return max(l.next, l.base.Add(mono-l.since))
}

// issue returns the first of n timestamps. It is false if the bound must be raised before.
func (l *leader) issue(mono time.Duration, n int) (Timestamp, bool) {
	first := l.first(mono)
	if first+Timestamp(n) > l.Bound {
		return 0, false
	}
	l.next = first + Timestamp(n)
	return first, true
}

// raised is the leader with a bound that has room for n. A leader of long standing raises
// it further, so as to write seldom.
func (l leader) raised(mono time.Duration, n int) leader {
	first := l.first(mono)
	l.Bound = max(first+Timestamp(n), l.base.Add(mono-l.since).Add(min(l.ahead, 2*(mono-l.since))))
	return l
}
