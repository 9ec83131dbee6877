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
	tick  = 2 * time.Millisecond // between the first looks at a condition
	bound = time.Minute          // for what takes milliseconds on an idle machine, and a JVM seconds
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
	for variable := range bytes.SplitSeq(environ(entry), []byte{0}) {
		if value, ok := strings.CutPrefix(string(variable), mark+"="); ok && inside(value, dir) {
			return true
		}
	}
	return false
}

// environ is the environment of a process. In the middle of an exec it reads as
// empty, so then we look again. What we may not read is not ours.
func environ(entry string) []byte {
	for end := time.Now().Add(time.Second); ; time.Sleep(tick) {
		env, err := os.ReadFile(filepath.Join(entry, "environ"))
		if err != nil || len(env) > 0 || !execing(entry) || time.Now().After(end) {
			return env
		}
	}
}

// execing reports whether a process has memory but no environment yet: fields
// 23 (vsize) and 51 (env_end) of its stat.
func execing(entry string) bool {
	fields := stat(entry)
	return len(fields) > 51-3 && fields[23-3] != "0" && fields[51-3] == "0"
}

func inside(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, dir+"/")
}

// killMarked kills what belongs to dir until nothing does.
func killMarked(dir string) error {
	return signalMarked(dir, syscall.SIGKILL, func(int) bool { return false })
}

// signalMarked sends sig to what belongs to dir, until settled is true of every
// process found. It looks twice in the end, because one that was forked during
// the first look, by a process that ended during it, was in neither place.
func signalMarked(dir string, sig syscall.Signal, settled func(pid int) bool) error {
	var left []int
	quiet := 0
	for range looks(bound) {
		left = left[:0]
		for _, pid := range marked(dir) {
			if !settled(pid) {
				syscall.Kill(pid, sig)
				left = append(left, pid)
			}
		}
		if quiet++; len(left) > 0 {
			quiet = 0
		}
		if quiet == 2 {
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
	if fields := stat(fmt.Sprintf("/proc/%d", pid)); len(fields) > 0 {
		return fields[0][0]
	}
	return 0
}

// stat is the stat of a process from its third field on; none if it is gone.
// The name before that, in parentheses, may contain anything.
func stat(entry string) []string {
	text, _ := os.ReadFile(filepath.Join(entry, "stat"))
	return strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
}
