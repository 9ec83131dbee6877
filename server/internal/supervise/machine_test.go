package supervise

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

const (
	ms  = time.Millisecond
	sec = time.Second
)

// script drives a machine in virtual time. A step happens at `at` unless the machine
// requests an earlier one; those steps are ticks.
type script struct {
	t     *testing.T
	m     *Machine
	now   time.Duration
	until time.Duration // of the claim
	log   []string      // "4.9s TERM", without printed lines
	said  []string
}

// begin starts a hold of a claim of 30 s that was just renewed, with a grace of 5 s.
func begin(t *testing.T, change func(*Limits)) *script {
	t.Helper()
	l := Limits{TTL: 30 * sec}
	if change != nil {
		change(&l)
	}
	l, err := l.Check()
	testbed.OK(t, err)
	s := &script{t: t, now: 1000 * sec}
	s.until = s.now + l.TTL
	s.m = newMachine(l, s.reading())
	return s
}

func (s *script) reading() Reading { return Reading{Now: s.now, Remaining: s.until - s.now} }

func (s *script) step(event any) {
	for _, e := range s.m.Step(s.reading(), event) {
		at := s.now - 1000*sec
		switch e := e.(type) {
		case Send:
			s.log = append(s.log, fmt.Sprintf("%v %s", at, name(e.Number)))
		case KillAll:
			s.log = append(s.log, fmt.Sprintf("%v KILL-ALL", at))
		case Say:
			s.said = append(s.said, e.Text)
		}
	}
}

func name(n syscall.Signal) string {
	return map[syscall.Signal]string{syscall.SIGTERM: "TERM", syscall.SIGCONT: "CONT", syscall.SIGSTOP: "STOP",
		syscall.SIGINT: "INT", syscall.SIGHUP: "HUP", syscall.SIGUSR1: "USR1", syscall.SIGWINCH: "WINCH"}[n]
}

// run advances time until `to` after the beginning, with the requested ticks.
func (s *script) run(to time.Duration) {
	for s.m.phase != done && s.m.due < 1000*sec+to {
		s.now = s.m.due
		s.step(Tick{})
	}
	s.now = 1000*sec + to
}

// at advances time to then and delivers an event.
func (s *script) at(then time.Duration, event any) {
	s.run(then)
	s.step(event)
}

// sleepTo advances time to then without running the supervisor.
func (s *script) sleepTo(then time.Duration) {
	s.now = 1000*sec + then
	s.step(Tick{})
}

func (s *script) renew(then time.Duration) {
	s.run(then)
	s.until = s.now + s.m.limits.TTL
}

func (s *script) want(log ...string) {
	s.t.Helper()
	if !slices.Equal(s.log, log) {
		s.t.Errorf("did\n\t%s\nwant\n\t%s", strings.Join(s.log, "\n\t"), strings.Join(log, "\n\t"))
	}
}

func (s *script) ends(p phase, o Outcome, why error) {
	s.t.Helper()
	if s.m.phase != p || s.m.outcome != o || !errors.Is(s.m.why, why) {
		s.t.Errorf("phase %d, outcome %s because of %v; want %d, %s, %v", s.m.phase, s.m.outcome, s.m.why, p, o, why)
	}
}

func TestACommandThatEndsByItself(t *testing.T) {
	s := begin(t, nil)
	s.renew(10 * sec)
	s.renew(20 * sec)
	s.at(25*sec, Exited{Status{Code: 42}})
	s.want()
	s.ends(done, Completed, nil)
	if s.m.status.Code != 42 {
		t.Errorf("code %d", s.m.status.Code)
	}
}

func TestNoRenewalMeansTermThenKillBeforeTheClaimEnds(t *testing.T) {
	s := begin(t, nil)
	s.run(60 * sec)
	s.want("24.75s TERM", "24.75s CONT", "29.75s KILL-ALL")
	s.ends(killed, Lost, interlock.ErrExpired)
	s.at(60*sec, Exited{Status{Signal: syscall.SIGKILL}})
	s.step(Empty{})
	s.ends(done, Lost, interlock.ErrExpired)
}

func TestRenewalsMoveTheLimit(t *testing.T) {
	s := begin(t, nil)
	s.renew(10 * sec)
	s.run(60 * sec)
	s.want("34.75s TERM", "34.75s CONT", "39.75s KILL-ALL")
}

func TestARenewalAfterTermDoesNotTakeTermBack(t *testing.T) {
	s := begin(t, nil)
	s.run(25 * sec)
	s.renew(26 * sec)
	s.run(60 * sec)
	s.want("24.75s TERM", "24.75s CONT", "29.75s KILL-ALL")
	s.ends(killed, Lost, interlock.ErrExpired)
}

func TestShortClaims(t *testing.T) {
	s := begin(t, func(l *Limits) { l.TTL = 2 * sec })
	s.run(10 * sec)
	s.want("1.626666667s TERM", "1.626666667s CONT", "1.96s KILL-ALL")
}

func TestADefiniteLossMeansTermAtOnce(t *testing.T) {
	s := begin(t, nil)
	s.at(3*sec, Ended{interlock.ErrLost})
	s.run(30 * sec)
	s.want("3s TERM", "3s CONT", "8s KILL-ALL")
	s.ends(killed, Lost, interlock.ErrLost)
}

func TestADefiniteLossLateKillsBeforeTheOldLimit(t *testing.T) {
	s := begin(t, func(l *Limits) { l.Grace = 10 * sec; l.TTL = 30 * sec })
	s.at(18*sec, Ended{interlock.ErrSessionEnded})
	s.until = 0 // an ended claim's remaining time is not used
	s.run(60 * sec)
	s.want("18s TERM", "18s CONT", "28s KILL-ALL")

	s = begin(t, nil)
	s.run(24 * sec)
	s.at(24700*ms, Ended{interlock.ErrLost})
	s.run(60 * sec)
	s.want("24.7s TERM", "24.7s CONT", "29.7s KILL-ALL")
}

func TestAfterALossEverythingTheCommandStartedHasToEnd(t *testing.T) {
	s := begin(t, nil)
	s.at(3*sec, Ended{interlock.ErrLost})
	s.at(4*sec, Exited{Status{Signal: syscall.SIGTERM}})
	s.ends(stopping, Lost, interlock.ErrLost) // its children may use the grace
	s.run(8*sec + 30*ms)
	s.want("3s TERM", "3s CONT", "8s KILL-ALL", "8.02s KILL-ALL")
	s.step(Empty{})
	s.ends(done, Lost, interlock.ErrLost)
}

func TestMaxHold(t *testing.T) {
	s := begin(t, func(l *Limits) { l.MaxHold = 15 * sec })
	s.renew(10 * sec)
	s.renew(20 * sec)
	s.run(25 * sec)
	s.want("15s TERM", "15s CONT", "20s KILL-ALL")
	s.ends(killed, MaxHold, errMaxHold)
}

func TestMaxHoldDoesNotOutliveTheClaim(t *testing.T) {
	s := begin(t, func(l *Limits) { l.MaxHold = 24 * sec; l.Grace = 5 * sec; l.TTL = 28 * sec })
	s.run(40 * sec)
	s.want("22.75s TERM", "22.75s CONT", "27.75s KILL-ALL")
	s = begin(t, func(l *Limits) { l.MaxHold = 10 * sec; l.Grace = 14 * sec; l.TTL = 28*sec + ms })
	s.at(11*sec, Ended{interlock.ErrLost})
	s.until = 0
	s.run(40 * sec)
	s.want("10s TERM", "10s CONT", "24s KILL-ALL")
	s.ends(killed, MaxHold, errMaxHold)
}

func TestSignalsAreForwardedOnce(t *testing.T) {
	s := begin(t, nil)
	for i, n := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGWINCH, syscall.SIGINT} {
		s.at(time.Duration(i+1)*sec, Signal{n})
	}
	s.at(6*sec, Exited{Status{Signal: syscall.SIGINT}})
	s.want("1s TERM", "2s HUP", "3s USR1", "4s WINCH", "5s INT")
	s.ends(done, Completed, nil)
}

func TestSignalsThatAskForTheEnd(t *testing.T) {
	for n, asks := range map[syscall.Signal]bool{syscall.SIGINT: true, syscall.SIGTERM: true, syscall.SIGQUIT: true,
		syscall.SIGHUP: false, syscall.SIGUSR1: false, syscall.SIGTSTP: false} { // HUP may mean: read the configuration again
		s := begin(t, nil)
		if s.at(1*sec, Signal{n}); s.m.asked != asks {
			t.Errorf("%v: %v", n, s.m.asked)
		}
	}
}

func TestASecondInterruptWithinTwoSecondsKills(t *testing.T) {
	s := begin(t, nil)
	s.at(1*sec, Signal{syscall.SIGINT})
	s.at(4*sec, Signal{syscall.SIGINT})
	s.at(5*sec, Signal{syscall.SIGINT})
	s.want("1s INT", "4s INT", "5s KILL-ALL")
	s.at(5*sec, Exited{Status{Signal: syscall.SIGKILL}})
	s.ends(killed, Completed, nil) // until its descendants have ended
	s.step(Empty{})
	s.ends(done, Completed, nil)
}

func TestSuspending(t *testing.T) {
	for _, c := range []struct {
		policy  Policy
		want    []string
		phase   phase
		outcome Outcome
	}{
		{ContinueOnSuspend, []string{"1s CONT", "2s CONT"}, running, Completed},
		{ReleaseOnSuspend, []string{"1s TERM", "1s CONT"}, stopping, Suspended},
		{KillOnSuspend, []string{"1s KILL-ALL"}, killed, Suspended},
	} {
		s := begin(t, func(l *Limits) { l.OnSuspend = c.policy })
		s.at(1*sec, Stopped{syscall.SIGTSTP})
		s.at(2*sec, Signal{syscall.SIGTSTP})
		s.want(c.want...)
		if s.m.phase != c.phase || s.m.outcome != c.outcome {
			t.Errorf("policy %d: phase %d, outcome %s", c.policy, s.m.phase, s.m.outcome)
		}
		if c.policy == ContinueOnSuspend && len(s.said) != 1 {
			t.Errorf("said %q, want one explanation", s.said)
		}
	}
}

func TestACommandThatWantsTheTerminalIsNotSpunAround(t *testing.T) {
	s := begin(t, nil)
	s.at(1*sec, Stopped{syscall.SIGTTIN})
	s.at(2*sec, Stopped{syscall.SIGTTIN})
	s.want()
	if len(s.said) != 1 {
		t.Errorf("said %q, want one explanation", s.said)
	}
}

func TestASleepBeyondTheClaimKillsFirstThing(t *testing.T) {
	s := begin(t, nil)
	s.sleepTo(31 * sec)
	s.want("31s KILL-ALL")
	s.ends(killed, Lost, interlock.ErrExpired)
}

func TestACommandThatEndedWhileTheClaimRanOutWasNotSafe(t *testing.T) {
	s := begin(t, nil)
	s.now = 1031 * sec // the supervisor slept; the command's end is its first event
	s.step(Exited{Status{}})
	s.want("31s KILL-ALL")
	s.ends(killed, Lost, interlock.ErrExpired)
	s.step(Empty{})
	s.ends(done, Lost, interlock.ErrExpired)
}

func TestAShortSleepChangesNothing(t *testing.T) {
	s := begin(t, nil)
	s.sleepTo(20 * sec)
	s.want()
	s.ends(running, Completed, nil)
}

func TestWakingNearTheEndFreezesUntilARenewal(t *testing.T) {
	s := begin(t, nil)
	s.sleepTo(26 * sec)
	s.want("26s STOP")
	s.until = s.now + 30*sec // the overdue renewal is confirmed
	s.run(27 * sec)
	s.want("26s STOP", "26.02s CONT")
	s.ends(running, Completed, nil)
}

func TestWakingNearTheEndWithoutARenewal(t *testing.T) {
	s := begin(t, nil)
	s.sleepTo(26 * sec)
	s.run(40 * sec)
	s.want("26s STOP", "27.88s TERM", "27.88s CONT", "29.75s KILL-ALL")
	s.ends(killed, Lost, interlock.ErrExpired)
}

func TestFrozenAndLost(t *testing.T) {
	s := begin(t, nil)
	s.sleepTo(26 * sec)
	s.at(26*sec+5*ms, Ended{interlock.ErrLost})
	s.want("26s STOP", "26.005s TERM", "26.005s CONT")
}

// TestFrozenAfterTheCommandEnded delivers the end of a command that came before the freeze: processes that
// it has left in its group run on.
func TestFrozenAfterTheCommandEnded(t *testing.T) {
	s := begin(t, nil)
	s.sleepTo(26 * sec)
	s.at(26*sec+5*ms, Exited{Status{}})
	s.want("26s STOP", "26.005s CONT")
	s.ends(done, Completed, nil)
}

func TestLimits(t *testing.T) {
	for _, c := range []struct {
		give Limits
		want string // in the error; empty means no error
	}{
		{Limits{TTL: 30 * sec}, ""},
		{Limits{TTL: 30 * sec, Grace: 15*sec - 1}, ""},
		{Limits{TTL: 30 * sec, Grace: 15 * sec}, "shorter than 15s"},
		{Limits{TTL: 0}, "above 0"},
		{Limits{TTL: sec, Grace: -sec}, "negative"},
		{Limits{TTL: sec, MaxHold: -sec}, "negative"},
	} {
		_, err := c.give.Check()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v, want %q", c.give, err, c.want)
		}
	}
	if l, _ := (Limits{TTL: 12 * sec}).Check(); l.Grace != 2*sec {
		t.Errorf("default grace of 12 s is %v", l.Grace)
	}
	if l, _ := (Limits{TTL: time.Hour}).Check(); l.Grace != 5*sec {
		t.Errorf("default grace of an hour is %v", l.Grace)
	}
}

// TestNeverRunsPastTheClaim checks any events and pauses of the supervisor. No command runs past
// the end of the claim once a step was taken there.
func TestNeverRunsPastTheClaim(t *testing.T) {
	events := []any{Tick{}, Signal{syscall.SIGINT}, Signal{syscall.SIGTSTP}, Signal{syscall.SIGCONT},
		Stopped{syscall.SIGTSTP}, Stopped{syscall.SIGTTIN}, Ended{interlock.ErrLost}}
	for seed := range 2000 {
		s := begin(t, func(l *Limits) {
			l.OnSuspend = Policy(seed % 3)
			l.MaxHold = time.Duration(seed%5) * 7 * sec
		})
		x := uint64(seed)*0x9E3779B97F4A7C15 + 1
		next := func(n int) int { // xorshift: the same for every seed
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
			return int(x % uint64(n))
		}
		for range 40 {
			s.now += time.Duration(next(4000)) * ms
			if next(3) == 0 && !s.m.ended && s.now < s.until {
				s.until = s.now + s.m.limits.TTL
			}
			s.step(events[next(len(events))])
			if s.now >= s.m.until && s.m.phase != killed {
				t.Fatalf("seed %d: phase %d at %v, the claim ended at %v", seed, s.m.phase, s.now, s.m.until)
			}
			if s.m.due <= s.now || s.m.due > s.m.until && s.m.phase != killed {
				t.Fatalf("seed %d: next step at %v, now %v, the claim ends at %v", seed, s.m.due, s.now, s.m.until)
			}
		}
	}
}
