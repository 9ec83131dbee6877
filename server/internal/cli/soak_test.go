package cli_test

import (
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// Two loops run commands under one lock while wrappers and commands are killed at
// random. Commands never overlap, by their own records. INTERLOCK_SOAK_KILLS sets
// the number of kills.
func TestSoak(t *testing.T) {
	t.Parallel()
	kills := 6
	if text := os.Getenv("INTERLOCK_SOAK_KILLS"); text != "" {
		var err error
		if kills, err = strconv.Atoi(text); err != nil || kills < 1 {
			t.Fatalf("INTERLOCK_SOAK_KILLS=%s is not a number above zero", text)
		}
	}
	each(t, func(t *testing.T, url string) {
		s := newSoak(t, url)
		for s.killed() < kills {
			s.round()
			s.strike()
		}
		// A loop may be without a single run by chance: kills must not prevent one.
		for end := time.Now().Add(patience); s.idle() && time.Now().Before(end); {
			s.round()
		}
		s.judge()
	})
}

type soak struct {
	t        *testing.T
	url      string
	journal  journal
	random   *rand.Rand
	loops    [2]*testbed.Process
	runs     [2]int // that succeeded
	wrappers int    // killed
	commands int
	due      time.Time // of the next kill

	nextCommand bool // the next kill is a command's, else a wrapper's
}

func newSoak(t *testing.T, url string) *soak {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return &soak{t: t, url: url, journal: newJournal(t), random: rand.New(rand.NewPCG(seed, 0))}
}

func (s *soak) killed() int { return s.wrappers + s.commands }

// idle reports whether a loop has no successful run yet.
func (s *soak) idle() bool { return s.runs[0] == 0 || s.runs[1] == 0 }

func (s *soak) between(low, high time.Duration) time.Duration {
	return low + time.Duration(s.random.Int64N(int64(high-low)))
}

// round restarts ended processes.
func (s *soak) round() {
	for i, p := range s.loops {
		if p == nil || ended(p) {
			s.next(i)
		}
	}
	time.Sleep(beat)
}

// strike kills something when it is due.
func (s *soak) strike() {
	if time.Now().After(s.due) && s.kill() {
		s.due = time.Now().Add(s.between(50*time.Millisecond, 1500*time.Millisecond))
		s.nextCommand = s.random.IntN(2) == 0
	}
}

func ended(p *testbed.Process) bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

func (s *soak) next(i int) {
	if p := s.loops[i]; p != nil {
		switch code := p.Wait(patience).ExitCode(); code {
		case 0:
			s.runs[i]++
		case -1, 137: // the wrapper or its command was killed
		case 79: // the machine was so busy that the lease of 2 s was not renewed
		default:
			s.t.Errorf("loop %d: exit code %d; it said:\n%s", i, code, p.Stderr())
		}
	}
	s.loops[i] = underLock(s.t, s.url, s.journal.env(s.between(20*time.Millisecond, 300*time.Millisecond), false), "--ttl", "2s")
}

// kill kills a wrapper, holding or waiting, or the running command. It reports
// whether a process of the chosen kind existed.
func (s *soak) kill() bool {
	if s.nextCommand {
		return s.killCommand()
	}
	p := s.loops[s.random.IntN(2)]
	if ended(p) {
		return false
	}
	p.Signal(syscall.SIGKILL)
	s.wrappers++
	return true
}

func (s *soak) killCommand() bool {
	latest, ok := s.journal.latest()
	if !ok || latest.what == "end" || monotonic()-latest.at > 4*beat || syscall.Kill(latest.pid, syscall.SIGKILL) != nil {
		return false
	}
	s.commands++
	return true
}

func (s *soak) judge() {
	for _, p := range s.loops {
		p.Signal(syscall.SIGTERM)
		p.Wait(patience)
	}
	entries := s.journal.read()
	if err := overlaps(entries); err != nil {
		s.t.Error(err)
	}
	if s.idle() {
		s.t.Errorf("runs that ended well: %v; each loop should have had some within %v of the last kill", s.runs, patience)
	}
	s.t.Logf("%d commands began, %v ended well, %d wrappers and %d commands were killed", starts(entries), s.runs, s.wrappers, s.commands)
}
