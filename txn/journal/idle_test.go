package journal

import "time"

// EndIdleAfter sets the server's idle timeout for the journal's transactions.
func (t *Table[T]) EndIdleAfter(d time.Duration) { t.idle = d }
