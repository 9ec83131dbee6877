package journal

import "time"

// EndIdleAfter sets how long the server lets a transaction of the journal's stand still.
func (t *Table[T]) EndIdleAfter(d time.Duration) { t.idle = d }

// Readings is how many reads wait for their group.
func Readings(j *Journal) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.readings)
}
