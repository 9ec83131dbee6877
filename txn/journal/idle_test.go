package journal

import "time"

// EndIdleAfter sets how long the server lets a transaction of the journal's stand still.
func (t *Table[T]) EndIdleAfter(d time.Duration) { t.idle = d }
