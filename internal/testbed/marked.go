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
	tick  = 2 * time.Millisecond // between the first checks of a condition
	bound = time.Minute          // for what takes milliseconds on an idle machine, and a JVM seconds
)

// marked lists the living processes that belong to dir: by their environment, or by
// their working directory if they have overwritten it, as PostgreSQL does. It finds
// none on systems without /proc.
func marked(dir string) []int { return markedFrom(dir, 0) }

// markedFrom skips processes whose ids are below lowest. To check each process of the
// machine costs milliseconds, and thousands of processes end during the tests.
func markedFrom(dir string, lowest int) []int {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer proc.Close()
	names, _ := proc.Readdirnames(-1)
	var pids []int
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err == nil && pid >= lowest && pid != os.Getpid() && belongs("/proc/"+name, dir) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// lowestID returns the lowest id that the process or its descendants can have. Ids rise,
// and start again at the bottom after the highest one.
func (c *child) lowestID() int {
	text, err := os.ReadFile("/proc/sys/kernel/pid_max")
	if err != nil {
		return 0
	}
	if highest, err := strconv.Atoi(strings.TrimSpace(string(text))); err != nil || forks()-c.forks >= (highest-c.pid())/2 {
		return 0
	}
	return c.pid()
}

// forks returns how many processes and threads the machine has started.
func forks() int {
	text, _ := os.ReadFile("/proc/stat")
	_, rest, _ := strings.Cut(string(text), "\nprocesses ")
	n, _ := strconv.Atoi(strings.SplitN(rest, "\n", 2)[0])
	return n
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

// environ returns the environment of a process. During an exec it reads as empty, so
// environ reads it again. Unreadable processes belong to other users.
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

// signalMarked calls signalFrom for every process.
func signalMarked(dir string, sig syscall.Signal, settled func(pid int) bool) error {
	return signalFrom(dir, 0, sig, settled)
}

// signalFrom sends sig to the processes of dir with ids from lowest, until settled is true for
// each process found. It checks twice at the end, because the first check can miss a process
// that was forked by one that has just ended.
func signalFrom(dir string, lowest int, sig syscall.Signal, settled func(pid int) bool) error {
	var left []int
	quiet := 0
	for range looks(bound) {
		left = left[:0]
		for _, pid := range markedFrom(dir, lowest) {
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
	return fmt.Errorf("processes %v in %s: no effect of %v", left, dir, sig)
}

// stopped reports whether SIGSTOP has taken effect.
func stopped(pid int) bool { return state(pid) == 'T' }

func running(pid int) bool { return state(pid) != 'T' }

// state returns the letter in /proc/PID/stat, or 0 for a process that is gone.
func state(pid int) byte {
	if fields := stat(fmt.Sprintf("/proc/%d", pid)); len(fields) > 0 {
		return fields[0][0]
	}
	return 0
}

// stat returns the stat of a process from its third field, or nil if it is gone.
// The name before that, in parentheses, may contain anything.
func stat(entry string) []string {
	text, _ := os.ReadFile(filepath.Join(entry, "stat"))
	return strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
}
