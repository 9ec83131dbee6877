//go:build !linux

package history

import "time"

var started = time.Now()

// hostMono is the wall clock of the process's start plus monotonic time since:
// processes of one host agree on it as long as nobody steps the wall clock.
func hostMono() time.Duration {
	return time.Duration(started.UnixNano()) + time.Since(started)
}

func hostBoot() string { return "" }
