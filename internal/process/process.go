// Package process names the running process.
package process

import (
	"fmt"
	"os"
)

// Name returns the host's name, at most 150 bytes of it, and the process id, as in "web-1:4711".
// It is the default identity of holders.
func Name() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown-host"
	}
	return fmt.Sprintf("%.150s:%d", host, os.Getpid())
}
