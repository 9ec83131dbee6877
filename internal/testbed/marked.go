package testbed

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	tick  = 2 * time.Millisecond // between two looks at a condition
	bound = 20 * time.Second     // for what takes milliseconds on an idle machine
)

// marked lists the living processes that belong to dir: by their environment,
// or by their working directory where they have overwritten it, as PostgreSQL
// does. It finds none where there is no /proc.
func marked(dir string) []int {
	entries, _ := filepath.Glob("/proc/[0-9]*")
	var pids []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(filepath.Base(entry))
		if err == nil && pid != os.Getpid() && belongs(entry, dir) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func belongs(entry, dir string) bool {
	if cwd, err := os.Readlink(filepath.Join(entry, "cwd")); err == nil && inside(cwd, dir) {
		return true
	}
	env, _ := os.ReadFile(filepath.Join(entry, "environ"))
	for variable := range bytes.SplitSeq(env, []byte{0}) {
		if value, ok := strings.CutPrefix(string(variable), mark+"="); ok && inside(value, dir) {
			return true
		}
	}
	return false
}

func inside(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, dir+"/")
}

// killMarked kills what belongs to dir until nothing does.
func killMarked(dir string) error {
	return signalMarked(dir, syscall.SIGKILL, func(int) bool { return false })
}

// signalMarked sends sig to what belongs to dir, again and again because it
// may be forking, until settled is true of every process found.
func signalMarked(dir string, sig syscall.Signal, settled func(pid int) bool) error {
	var left []int
	for end := time.Now().Add(bound); time.Now().Before(end); time.Sleep(tick) {
		left = left[:0]
		for _, pid := range marked(dir) {
			if !settled(pid) {
				syscall.Kill(pid, sig)
				left = append(left, pid)
			}
		}
		if len(left) == 0 {
			return nil
		}
	}
	return fmt.Errorf("processes %v in %s do not obey %v", left, dir, sig)
}

// stopped reports whether SIGSTOP has taken effect.
func stopped(pid int) bool { return state(pid) == 'T' }

func running(pid int) bool { return state(pid) != 'T' }

// state is the letter in /proc/PID/stat, or 0 for a process that is gone.
func state(pid int) byte {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	// The name before it, in parentheses, may contain anything.
	if i := bytes.LastIndexByte(stat, ')'); i >= 0 && i+2 < len(stat) {
		return stat[i+2]
	}
	return 0
}
