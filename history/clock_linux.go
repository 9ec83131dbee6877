package history

import (
	"os"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

const clockBoottime = 7 // CLOCK_BOOTTIME, see clock_gettime(2)

// hostMono reads CLOCK_BOOTTIME, which all processes of the host share. It also
// counts while the host sleeps.
func hostMono() time.Duration {
	var ts syscall.Timespec
	_, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&ts)), 0)
	if errno != 0 {
		panic("history: clock_gettime: " + errno.Error()) // no Linux since 2.6.39 lacks this clock
	}
	return time.Duration(ts.Nano())
}

// hostBoot returns the id of this boot of the host.
func hostBoot() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}
