//go:build !linux

package supervise

import "syscall"

// attributes sets a separate process group. On systems other than Linux the command
// survives a supervisor that is killed.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func adoptOrphans() {}

func adopted() []int { return nil }
