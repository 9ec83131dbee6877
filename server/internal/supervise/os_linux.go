package supervise

import (
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// attributes sets a separate process group, and death with the thread that
// forks.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// adoptOrphans makes processes that the command leaves behind our children, so that we
// can find them.
func adoptOrphans() {
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) // Linux before 3.4: orphans are init's
}

// adopted lists our children outside of our process group: a client of the backend may start others,
// such as a credential plugin of Kubernetes, whose status is its own. If a kernel does not list children,
// only the command's process group can be killed.
func adopted() []int {
	var pids []int
	threads, _ := os.ReadDir("/proc/self/task")
	for _, t := range threads {
		text, _ := os.ReadFile("/proc/self/task/" + t.Name() + "/children")
		for _, field := range strings.Fields(string(text)) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				continue
			}
			if group, err := unix.Getpgid(pid); err == nil && group != unix.Getpgrp() {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}
