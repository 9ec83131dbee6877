//go:build !linux

package boottime

import "time"

// kernel knows no suspends.
type kernel struct{}

func (kernel) boot() time.Duration      { return 0 }
func (kernel) monotonic() time.Duration { return 0 }
