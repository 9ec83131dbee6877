package limit

import "github.com/interlock-dev/interlock/driver"

// TrimNow makes the next request to a table of limits examine rows for deletion.
func TrimNow(l driver.Limiter) { l.(*inTable).trimmed.due = 1 }
