package compare

import (
	"fmt"
	"os"
	"runtime"
	"strings"
)

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
