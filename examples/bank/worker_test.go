package main

import (
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// patience bounds every wait of a story. A story needs less than a tenth of it.
const patience = 30 * time.Second

// worker is one bank process.
type worker struct {
	tb   testing.TB
	lane string
	p    *testbed.Process
	seen []stage // every stage so far
}

// until reads stages up to one of the given name. If the worker ends before that, the
// test fails.
func (w *worker) until(name string) stage {
	w.tb.Helper()
	for {
		s, ok := w.next()
		if !ok {
			w.tb.Fatalf("worker %s ended before %q; it reported: %s%s", w.lane, name, w.told(), w.p.Stderr())
		}
		if s.Stage == name {
			return s
		}
	}
}

// goOn ends the pause. A stopped worker reads it when it wakes.
func (w *worker) goOn() {
	w.tb.Helper()
	if _, err := io.WriteString(w.p.Stdin(), "go on\n"); err != nil {
		w.tb.Fatalf("worker %s: %v", w.lane, err)
	}
}

// rest reads stages until the worker ends, and returns its exit code.
func (w *worker) rest() int {
	w.tb.Helper()
	for {
		if _, ok := w.next(); !ok {
			return w.p.Wait(patience).ExitCode()
		}
	}
}

// next returns the next stage, or false when the worker has closed its output.
func (w *worker) next() (stage, bool) {
	w.tb.Helper()
	bound := time.NewTimer(patience)
	defer bound.Stop()
	select {
	case line, ok := <-w.p.Stdout():
		if !ok {
			return stage{}, false
		}
		var s stage
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			w.tb.Fatalf("worker %s reported %q: %v", w.lane, line, err)
		}
		w.seen = append(w.seen, s)
		return s, true
	case <-bound.C:
		w.tb.Fatalf("worker %s reported nothing for %v after: %s", w.lane, patience, w.told())
		return stage{}, false
	}
}

// find returns the first stage of that name among those read.
func (w *worker) find(name string) (stage, bool) {
	for _, s := range w.seen {
		if s.Stage == name {
			return s, true
		}
	}
	return stage{}, false
}

// mustFind is find, and fails the test if there is none.
func (w *worker) mustFind(name string) stage {
	w.tb.Helper()
	s, ok := w.find(name)
	if !ok {
		w.tb.Fatalf("worker %s did not report %q but: %s%s", w.lane, name, w.told(), w.p.Stderr())
	}
	return s
}

func (w *worker) told() string {
	var lines []string
	for _, s := range w.seen {
		line, _ := json.Marshal(s)
		lines = append(lines, string(line))
	}
	return strings.Join(lines, " ")
}
