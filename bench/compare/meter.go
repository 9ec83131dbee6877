package compare

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Meter measures time, and the resources that this process and its servers use meanwhile.
type Meter struct {
	began        time.Time
	mallocs      uint64
	cpu, servers time.Duration
}

// Start starts a measurement.
func Start() Meter {
	m := Meter{servers: serverTime()}
	m.mallocs, m.cpu, m.began = mallocs(), processorTime(), time.Now()
	return m
}

// Sample returns a sample of n operations since the start, with their costs.
func (m Meter) Sample(n int) Sample {
	elapsed, cpu, allocs := time.Since(m.began), processorTime()-m.cpu, mallocs()-m.mallocs
	servers := serverTime() - m.servers
	each := 1 / float64(max(1, n))
	return Sample{Ops: n, Total: n, Elapsed: elapsed, Values: map[string]float64{
		Allocs: float64(allocs) * each, CPU: cpu.Seconds() * each, ServerCPU: servers.Seconds() * each}}
}

func mallocs() uint64 {
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	return memory.Mallocs
}

// processorTime returns the processor time of this process.
func processorTime() time.Duration {
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// tick is the unit of times in /proc/PID/stat.
const tick = 10 * time.Millisecond

// serverTime returns the processor time of the descendants of this process: of those that run, and
// of those for which a descendant has waited.
func serverTime() (sum time.Duration) {
	parents, times := map[string]string{}, map[string]time.Duration{}
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		text, _ := os.ReadFile(file) // it may have ended
		// The name before ") " may have spaces and brackets. The fields after it begin with the third.
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if len(fields) < 18 {
			continue
		}
		ticks := func(user int) time.Duration {
			u, _ := strconv.Atoi(fields[user-3])
			s, _ := strconv.Atoi(fields[user-2])
			return time.Duration(u+s) * tick
		}
		dir := filepath.Dir(file)
		own := ticks(14)
		if threads := fields[20-3]; threads == "1" { // schedstat is exact, of the first thread
			exact, _, _ := strings.Cut(line(dir+"/schedstat", ""), " ")
			if ns, err := strconv.ParseInt(exact, 10, 64); err == nil {
				own = time.Duration(ns)
			}
		}
		pid := filepath.Base(dir)
		parents[pid], times[pid] = fields[4-3], own+ticks(16)
	}
	self := strconv.Itoa(os.Getpid())
	for pid, time := range times {
		for parent := parents[pid]; parent != ""; parent = parents[parent] {
			if parent == self {
				sum += time
				break
			}
		}
	}
	return sum
}

// Machine is the machine of a run.
type Machine struct {
	Processors int    `json:"processors"`
	Model      string `json:"model"`
	Memory     string `json:"memory"`
	Kernel     string `json:"kernel"`
	Platform   string `json:"platform"`
	Go         string `json:"go"`
	// Load is the load average of the last minute before the run. Above one, the machine
	// was busy with other work.
	Load string `json:"load"`
}

// ThisMachine describes the machine. Unavailable fields are empty.
func ThisMachine() Machine {
	load, _, _ := strings.Cut(line("/proc/loadavg", ""), " ")
	return Machine{
		Processors: runtime.NumCPU(), Model: line("/proc/cpuinfo", "model name"), Memory: line("/proc/meminfo", "MemTotal"),
		Kernel: line("/proc/sys/kernel/osrelease", ""), Platform: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version(), Load: load,
	}
}

// line returns the value of the first line of a file that starts with key.
func line(file, key string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for l := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(l, key); ok {
			return strings.TrimSpace(strings.TrimLeft(rest, " \t:"))
		}
	}
	return ""
}

// String returns a line for the report.
func (m Machine) String() string {
	return fmt.Sprintf("%d × %s, %s, Linux %s, %s, %s, load %s", m.Processors, m.Model, m.Memory, m.Kernel, m.Platform, m.Go, m.Load)
}
