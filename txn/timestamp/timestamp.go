package timestamp

import "time"

// logicalBits is the number of bits that count the timestamps of one millisecond.
const logicalBits = 18

// A Timestamp is a time of an [Oracle]: milliseconds since 1970 in the upper bits, and
// 18 bits that number the timestamps of one millisecond. It is above zero. No two are
// equal, and one that was requested after another was returned is greater.
type Timestamp int64

// Of returns the first timestamp of t's millisecond.
func Of(t time.Time) Timestamp { return Timestamp(t.UnixMilli() << logicalBits) }

// Add returns the timestamp d later, in whole milliseconds.
func (t Timestamp) Add(d time.Duration) Timestamp {
	return t + Timestamp(d.Milliseconds()<<logicalBits)
}

// Sub returns the time from u to t, in whole milliseconds.
func (t Timestamp) Sub(u Timestamp) time.Duration {
	return time.Duration(t>>logicalBits-u>>logicalBits) * time.Millisecond
}

// Time returns the oracle's time of t. It can be ahead of every clock: by seconds after a
// change of the leader, and by more if the clock of a former leader was ahead.
func (t Timestamp) Time() time.Time { return time.UnixMilli(int64(t) >> logicalBits) }
