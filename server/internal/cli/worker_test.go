package cli_test

import (
	"cmp"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/server/internal/cli"
)

// The test program is also interlock, and the command that it runs under locks: it records its
// working times by the machine's clock.
const (
	workFile   = "INTERLOCK_TEST_WORK" // the output file
	workFor    = "INTERLOCK_TEST_FOR"  // the working time
	workIgnore = "INTERLOCK_TEST_IGNORE_TERM"
)

func TestMain(m *testing.M) {
	if file := os.Getenv(workFile); file != "" && filepath.Base(os.Args[0]) != "interlock" {
		os.Exit(work(file))
	}
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0") // for the programs under test
	testbed.MainAs(m, "interlock", func() { os.Exit(cli.RunAlone()) })
}

// beat is the interval of a worker's entries.
const beat = 5 * time.Millisecond

// work writes a line for its start, one every beat, one for a TERM, and one for its end. Each has
// its token, and each is one write.
func work(file string) int {
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return 1
	}
	token := os.Getenv("INTERLOCK_TOKEN")
	note := func(what string) { fmt.Fprintf(out, "%d %s %d %s\n", monotonic(), token, os.Getpid(), what) }
	terms := make(chan os.Signal, 1)
	signal.Notify(terms, syscall.SIGTERM)
	length, err := time.ParseDuration(os.Getenv(workFor))
	if err != nil {
		return 1
	}
	note("start")
	ticker := time.NewTicker(beat)
	for end := monotonic() + length; monotonic() < end; {
		select {
		case <-terms:
			note("term")
			if os.Getenv(workIgnore) == "" {
				return 0
			}
		case <-ticker.C:
			note("beat")
		}
	}
	note("end")
	return 0
}

// monotonic reads CLOCK_MONOTONIC, the same for every process.
func monotonic() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return time.Duration(ts.Nano())
}

// entry is one line of a worker.
type entry struct {
	at    time.Duration
	token int64
	pid   int
	what  string
}

// journal is the file that workers share.
type journal struct {
	t    *testing.T
	file string
}

func newJournal(t *testing.T) journal {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "work")
	testbed.OK(t, err)
	defer f.Close()
	return journal{t, f.Name()}
}

// env returns the environment of a command that works for a time.
func (j journal) env(length time.Duration, ignoreTerm bool) []string {
	env := []string{workFile + "=" + j.file, workFor + "=" + length.String(), "GORACE=atexit_sleep_ms=0"}
	if ignoreTerm {
		env = append(env, workIgnore+"=1")
	}
	return env
}

// read returns the entries so far, in the order of the clock.
func (j journal) read() []entry {
	j.t.Helper()
	text, err := os.ReadFile(j.file)
	if err != nil {
		j.t.Fatal(err)
	}
	var entries []entry
	for line := range strings.Lines(string(text)) {
		entries = append(entries, j.parse(line))
	}
	slices.SortStableFunc(entries, func(a, b entry) int { return cmp.Compare(a.at, b.at) })
	return entries
}

func (j journal) parse(line string) (e entry) {
	j.t.Helper()
	if n, err := fmt.Sscan(line, (*int64)(&e.at), &e.token, &e.pid, &e.what); n != 4 {
		j.t.Fatalf("%q: %v", line, err)
	}
	return e
}

// until waits for a condition of the journal.
func (j journal) until(what string, ok func([]entry) bool) []entry {
	j.t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if entries := j.read(); ok(entries) {
			return entries
		}
	}
	j.t.Fatalf("not within %v: %s; the journal ends with %v", patience, what, last(j.read()))
	return nil
}

func last(entries []entry) string {
	tail := entries[max(0, len(entries)-5):]
	return fmt.Sprintf("%v (%d entries)", tail, len(entries))
}

// starts counts the workers that began.
func starts(entries []entry) (n int) {
	for _, e := range entries {
		if e.what == "start" {
			n++
		}
	}
	return n
}

// pidOf returns the id of the first worker.
func pidOf(entries []entry) int { return entries[0].pid }

// overlaps returns an error if a holder wrote after its successor began, or tokens
// did not rise.
func overlaps(entries []entry) error {
	gone := map[int64]bool{}
	var current int64
	for _, e := range entries {
		switch {
		case e.token == current:
		case gone[e.token]:
			return fmt.Errorf("token %d works at %v, after token %d has begun", e.token, e.at, current)
		case e.token < current:
			return fmt.Errorf("token %d begins at %v, after the higher %d", e.token, e.at, current)
		default:
			gone[current], current = true, e.token
		}
	}
	return nil
}

func TestOverlapsFindsThem(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		tokens string
		clean  bool
	}{
		{"1 1 1 2 2 5 5", true}, {"1 2 1", false}, {"3 2", false}, {"", true},
	} {
		var entries []entry
		for i, word := range strings.Fields(c.tokens) {
			token, err := strconv.ParseInt(word, 10, 64)
			testbed.OK(t, err)
			entries = append(entries, entry{at: time.Duration(i), token: token})
		}
		if err := overlaps(entries); (err == nil) != c.clean {
			t.Errorf("%q: %v", c.tokens, err)
		}
	}
}

func itoa(n int) string { return strconv.Itoa(n) }
