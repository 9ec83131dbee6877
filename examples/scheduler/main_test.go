package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestMain(m *testing.M) { testbed.MainAs(m, "scheduler", main) }

const (
	patience = 30 * time.Second // bounds every wait for a condition
	ttl      = 2 * time.Second
	every    = time.Second
)

// TestOneRunForEachTick kills a leader during a job. It stops the next one during another
// for longer than its lease, and continues it. Then it checks the results of three real
// processes on a real backend.
func TestOneRunForEachTick(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs processes and servers: not with -short")
	}
	for _, c := range []struct{ backend, missed string }{{"etcd", "late"}, {"etcd", "report"}, {"redis", "late"}} {
		t.Run(c.backend+" "+c.missed, func(t *testing.T) {
			t.Parallel()
			s := &scene{T: t, missed: c.missed, program: testbed.Self(t, "scheduler")}
			if c.backend == "etcd" {
				s.flags = []string{"--backend", "etcd://" + testbed.Etcd(t).Addr()}
			} else {
				s.flags = []string{"--backend", "redis://" + testbed.Redis(t).Addr(), "--accept-weakness"}
			}
			s.play()
			s.judge()
		})
	}
}

// scene is a backend and its processes.
type scene struct {
	*testing.T
	program string
	flags   []string
	missed  string

	mu   sync.Mutex
	told []event // in the order in which they were read
}

// event is a worker's line.
type event struct {
	line
	by *worker
}

type worker struct {
	*testbed.Process
	as string
}

func (s *scene) start(as string) *worker {
	w := &worker{as: as, Process: testbed.Command(s, s.program, append([]string{"--as", as, "--missed", s.missed,
		"--ttl", ttl.String(), "--every", every.String(), "--work", "200ms"}, s.flags...)...)}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for text := range w.Stdout() {
			e := event{by: w}
			if err := json.Unmarshal([]byte(text), &e.line); err != nil {
				s.Errorf("%s reported %q: %v", as, text, err)
			}
			s.mu.Lock()
			s.told = append(s.told, e)
			s.mu.Unlock()
		}
	}()
	s.Cleanup(func() { w.Kill(); <-read })
	return w
}

// await waits for an event that comes after the first `from`.
func (s *scene) await(what string, from int, matches func(event) bool) (e event, next int) {
	s.Helper()
	testbed.Eventually(s, what, patience, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if i := slices.IndexFunc(s.told[from:], matches); i >= 0 {
			e, next = s.told[from+i], from+i+1
			return true
		}
		return false
	})
	return e, next
}

func (s *scene) now() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.told)
}

// accepted waits for n more accepted ticks of workers other than by.
func (s *scene) accepted(n int, by *worker) {
	s.Helper()
	for from := s.now(); n > 0; n-- {
		_, from = s.await("a run by another", from, func(e event) bool { return e.What == "accepted" && e.by != by })
	}
}

// begun waits until a worker begins a job.
func (s *scene) begun() *worker {
	s.Helper()
	e, _ := s.await("the begin of a job", s.now(), func(e event) bool { return e.What == "begun" })
	return e.by
}

func (s *scene) play() {
	workers := []*worker{s.start("a"), s.start("b"), s.start("c")}
	s.accepted(2, nil)

	killed := s.begun()
	killed.Kill()
	workers = slices.DeleteFunc(workers, func(w *worker) bool { return w == killed })
	workers = append(workers, s.start("d"))
	s.accepted(3, killed)

	stopped := s.begun()
	stopped.Pause()
	s.accepted(2, stopped)
	stopped.Resume()
	s.accepted(3, stopped)

	for _, w := range workers {
		w.Signal(syscall.SIGTERM)
		if code := w.Wait(patience).ExitCode(); code != 0 {
			s.Errorf("%s exits with %d: %s", w.as, code, w.Stderr())
		}
	}
}

// judge checks each tick from the first to the last accepted one.
func (s *scene) judge() {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := map[time.Time]map[string]int{}
	var first, last time.Time
	var latest time.Duration
	again, refused := 0, 0
	for _, e := range s.told {
		if at[e.Tick] == nil {
			at[e.Tick] = map[string]int{}
		}
		at[e.Tick][e.What]++
		if e.What == "begun" && e.Again {
			at[e.Tick]["again"]++
			again++
		}
		if e.What == "refused" {
			refused++
		}
		if e.What == "accepted" || e.What == "reported" {
			latest = max(latest, e.At.Sub(e.Tick))
		}
		if e.What == "accepted" {
			if first.IsZero() {
				first = e.Tick
			}
			last = e.Tick
		}
	}
	for tick := first; !tick.After(last); tick = tick.Add(every) {
		n := at[tick]
		if n["accepted"] > 1 {
			s.Errorf("tick %v was accepted %d times", tick, n["accepted"])
		}
		if s.missed == "late" && n["accepted"]+n["done before"] == 0 || n["accepted"]+n["done before"]+n["reported"] == 0 {
			s.Errorf("tick %v was lost: %v", tick, n)
		}
		if n["begun"]-n["again"] > 1 || s.missed == "report" && n["begun"] > 1 {
			s.Errorf("tick %v was begun %d times, %d of them again", tick, n["begun"], n["again"])
		}
	}
	if latest > 3*ttl {
		s.Errorf("a tick was handled after %v, want at most %v", latest, 3*ttl)
	}
	s.Logf("%d ticks, %d run again, %d writes refused, the latest handled after %v",
		int(last.Sub(first)/every)+1, again, refused, latest)
	if s.Failed() {
		for _, e := range s.told {
			s.Log(fmt.Sprint(e.At.Format("05.000"), " ", e.by.as, " ", e.What, " ", e.Tick.Format("05"), " ", e.Token, " ", e.Error))
		}
	}
}

// TestRedisWantsItsWeaknessAccepted: a replica that takes over may not know the
// leader.
func TestRedisWantsItsWeaknessAccepted(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs a server: not with -short")
	}
	backend := "redis://" + testbed.Redis(t).Addr()
	var unmet *interlock.UnmetError
	if err := serve(t.Context(), settings{backend: backend, missed: "late", ttl: ttl, every: every}); !errors.As(err, &unmet) {
		t.Error(err)
	}
}
