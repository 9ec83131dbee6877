// Package process names the running process.
package process

import (
	"fmt"
	"os"
	"strings"
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

// IdentityOf returns the identity in the owner of a lock, to which package lock appends a unique part.
func IdentityOf(owner string) string {
	if i := strings.LastIndexByte(owner, '/'); i >= 0 {
		return owner[:i]
	}
	return owner
}
