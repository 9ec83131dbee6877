//go:build !linux

package history

import "time"

var started = time.Now()

// hostMono returns the wall clock of the process's start plus monotonic time since.
// Processes of one host agree on it unless the wall clock is set.
func hostMono() time.Duration {
	return time.Duration(started.UnixNano()) + time.Since(started)
}

func hostBoot() string { return "" }
