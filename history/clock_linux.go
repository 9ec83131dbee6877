package history

import (
	"os"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

const clockBoottime = 7 // CLOCK_BOOTTIME, see clock_gettime(2)

// hostMono reads CLOCK_BOOTTIME: the same in every process of the host, also
// counting while it sleeps.
func hostMono() time.Duration {
	var ts syscall.Timespec
	_, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&ts)), 0)
	if errno != 0 {
		panic("history: clock_gettime: " + errno.Error()) // no Linux since 2.6.39 lacks this clock
	}
	return time.Duration(ts.Nano())
}

// hostBoot names this boot of this host.
func hostBoot() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}
