//go:build !linux

package supervise

import "syscall"

// attributes: a process group of its own. Elsewhere than on Linux the command
// survives a supervisor that is killed.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func adoptOrphans() {}

func adopted() []int { return nil }
