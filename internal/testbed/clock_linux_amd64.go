package testbed

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// StepClock sets the wall clock of the server to that of the machine plus by, in whole
// seconds; monotonic clocks do not change. It lasts until the next StepClock, Restart
// or Wipe. On systems other than Linux on amd64 it skips the test.
//
// It replaces the functions of the kernel's vDSO in the memory of the server's
// processes, as Chaos Mesh's TimeChaos does. No other process is affected.
func (s *Server) StepClock(by time.Duration) {
	s.tb.Helper()
	s.do("step the clock", func() error { return stepClock(s.dir, by) })
}

// StepClock does what [Server.StepClock] does, to the process and its children.
func (p *Process) StepClock(by time.Duration) {
	p.tb.Helper()
	if err := stepClock(p.dir, by); err != nil {
		p.tb.Fatalf("%s: step the clock: %v", p.name(), err)
	}
}

// errInside reports that a process cannot be patched at this moment.
var errInside = errors.New("a thread reads the clock")

// stepClock stops and patches the processes of dir, and tries again if a thread is
// executing the code to replace.
func stepClock(dir string, by time.Duration) error {
	var err error
	for range looks(bound) {
		if err = signalMarked(dir, syscall.SIGSTOP, stopped); err == nil {
			err = patchAll(marked(dir), by)
		}
		if e := signalMarked(dir, syscall.SIGCONT, running); e != nil {
			return e
		}
		if !errors.Is(err, errInside) {
			return err
		}
	}
	return err
}

func patchAll(pids []int, by time.Duration) error {
	for _, pid := range pids {
		start, end, err := vdsoOf(pid)
		if err == nil {
			err = outside(pid, start, end)
		}
		if err == nil {
			err = patch(pid, start, end, int32(by/time.Second))
		}
		if err != nil {
			return fmt.Errorf("process %d: %w", pid, err)
		}
	}
	return nil
}

// vdsoOf returns the addresses of a process's vDSO.
func vdsoOf(pid int) (start, end int64, err error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(maps)) {
		if strings.HasSuffix(strings.TrimSpace(line), "[vdso]") {
			_, err := fmt.Sscanf(line, "%x-%x", &start, &end)
			return start, end, err
		}
	}
	return 0, 0, errors.New("it has no vDSO")
}

// outside checks that no thread of a stopped process is in the vDSO.
func outside(pid int, start, end int64) error {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", pid))
	if err != nil {
		return err
	}
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		fields := strings.Fields(string(text))
		if err != nil || len(fields) < 2 {
			return fmt.Errorf("%s reads %q: %w", task, text, errInside)
		}
		counter, err := strconv.ParseInt(fields[len(fields)-1], 0, 64)
		if err != nil || counter >= start && counter < end {
			return fmt.Errorf("%s reads %q: %w", task, text, errInside)
		}
	}
	return nil
}

// code calls the kernel and adds the seconds to the answer. The seconds are inserted
// between its two parts.
var code = map[string]struct{ before, after []byte }{
	// clock_gettime(edi, rsi): for CLOCK_REALTIME (0) and CLOCK_REALTIME_COARSE (5).
	"__vdso_clock_gettime": {[]byte{0xb8, 228, 0, 0, 0, 0x0f, 0x05, 0x85, 0xff, 0x74, 0x05, 0x83, 0xff, 0x05, 0x75, 0x07,
		0x48, 0x81, 0x06}, []byte{0xc3}},
	// gettimeofday(rdi, rsi).
	"__vdso_gettimeofday": {[]byte{0xb8, 96, 0, 0, 0, 0x0f, 0x05, 0x48, 0x85, 0xff, 0x74, 0x07, 0x48, 0x81, 0x07}, []byte{0xc3}},
	// time(rdi).
	"__vdso_time": {[]byte{0xb8, 201, 0, 0, 0, 0x0f, 0x05, 0x48, 0x05}, []byte{0x48, 0x85, 0xff, 0x74, 0x03, 0x48, 0x89, 0x07, 0xc3}},
}

func patch(pid int, start, end int64, seconds int32) error {
	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer memory.Close()
	image, err := io.ReadAll(io.NewSectionReader(memory, start, end-start))
	if err != nil {
		return err
	}
	file, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return err
	}
	symbols, err := file.DynamicSymbols()
	if err != nil {
		return err
	}
	for _, symbol := range symbols {
		c, ok := code[symbol.Name]
		if !ok {
			continue
		}
		replacement := append(binary.LittleEndian.AppendUint32(bytes.Clone(c.before), uint32(seconds)), c.after...)
		if uint64(len(replacement)) > symbol.Size {
			return fmt.Errorf("%s has %d bytes", symbol.Name, symbol.Size)
		}
		if _, err := memory.WriteAt(replacement, start+int64(symbol.Value)); err != nil {
			return err
		}
	}
	return nil
}
