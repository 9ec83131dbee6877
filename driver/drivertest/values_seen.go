package drivertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// valueWatch is one watch under test. It repeats what may be repeated, as the
// portable types do, and complains when a value goes back.
type valueWatch struct {
	s      *valuesScene
	cancel context.CancelCauseFunc
	done   chan struct{}
	heard  chan struct{} // capacity 1

	calls int // of each; not guarded, so that the race detector sees calls that overlap

	mu    sync.Mutex
	seen  []driver.Value
	ended bool // the present call of Watch has returned
	late  int
	wrong string
	err   error
}

// watch watches valueName. The data of the tests is "GENERATION.NUMBER" or
// anything else that no order is expected of.
func (s *valuesScene) watch(v driver.Values, slow time.Duration) *valueWatch {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(s.Context()))
	w := &valueWatch{s: s, cancel: cancel, done: make(chan struct{}), heard: make(chan struct{}, 1)}
	go func() {
		defer close(w.done)
		for w.once(ctx, v, slow) {
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}()
	s.Cleanup(func() { w.end(nil) })
	return w
}

// once calls Watch and reports whether it may be called again.
func (w *valueWatch) once(ctx context.Context, v driver.Values, slow time.Duration) bool {
	w.mu.Lock()
	w.ended = false
	w.mu.Unlock()
	err := v.Watch(ctx, valueName, func(value driver.Value) {
		w.take(value)
		if slow > 0 {
			time.Sleep(slow)
		}
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended, w.err = true, err
	return interlock.Kind(err) == interlock.Retryable
}

func (w *valueWatch) take(value driver.Value) {
	w.calls++
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		w.late++
	}
	if n := len(w.seen); n > 0 && w.wrong == "" {
		before := w.seen[n-1]
		if value.Token < before.Token || value.Token == before.Token && number(value) < number(before) {
			w.wrong = fmt.Sprintf("%.100q with %d came after %.100q with %d", value.Data, value.Token, before.Data, before.Token)
		}
	}
	w.seen = append(w.seen, value)
	select {
	case w.heard <- struct{}{}:
	default:
	}
}

// number is what data ends in after a dot; 0 if there is none.
func number(v driver.Value) (n int) {
	_, after, _ := strings.Cut(string(v.Data), ".")
	_, _ = fmt.Sscanf(after, "%d", &n) // no number is 0
	return n
}

// all is every value so far.
func (w *valueWatch) all() []driver.Value {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.seen)
}

// last is the zero Value if there was none.
func (w *valueWatch) last() (last driver.Value) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.seen); n > 0 {
		last = w.seen[n-1]
	}
	return last
}

// await waits until what was seen last is this.
func (w *valueWatch) await(token interlock.Token, data string) {
	w.s.Helper()
	timeout := time.After(2 * patience)
	for {
		w.mu.Lock()
		var last driver.Value
		n, wrong, err := len(w.seen), w.wrong, w.err
		if n > 0 {
			last = w.seen[n-1]
		}
		w.mu.Unlock()
		switch {
		case wrong != "":
			w.s.Fatal(wrong)
		case n > 0 && last.Token == token && string(last.Data) == data:
			return
		}
		select {
		case <-w.heard:
		case <-w.done:
			w.s.Fatalf("the watch is over: %v", err)
		case <-timeout:
			w.s.Fatalf("%.100q with %d is not seen; the last of %d is %.100q with %d (%v)", data, token, n, last.Data, last.Token, err)
		}
	}
}

// end ends the watch with a cause, waits for that and returns Watch's error.
func (w *valueWatch) end(cause error) error {
	w.s.Helper()
	w.cancel(cause)
	select {
	case <-w.done:
	case <-time.After(patience):
		w.s.Fatalf("a watch is not over %v after its context", patience)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.late > 0:
		w.s.Fatalf("%d values came after Watch had returned", w.late)
	case w.wrong != "":
		w.s.Fatal(w.wrong)
	}
	return w.err
}

// testWatchValueBegins with what is there, be it nothing.
func testWatchValueBegins(s *valuesScene) {
	early := s.watch(s.values, 0)
	early.await(0, "")
	s.mustPut(s.token(0, 0), "first")
	early.await(s.token(0, 0), "first")
	late := s.watch(s.open(), 0)
	late.await(s.token(0, 0), "first")
	s.mustPut(s.token(1, 0), "second")
	early.await(s.token(1, 0), "second")
	late.await(s.token(1, 0), "second")
	if first := late.all()[0]; first.Token != s.token(0, 0) {
		s.Fatalf("the first value of a watch is %+v", first)
	}
}

// testWatchValueSeesEqualTokens: the holder writes again and again, and the last
// counts.
func testWatchValueSeesEqualTokens(s *valuesScene) {
	w := s.watch(s.open(), 0)
	token := s.token(0, 5)
	for i := range 20 {
		s.mustPut(token, fmt.Sprintf("again.%d", i))
	}
	w.await(token, "again.19")
	s.mustPut(token, "again.20")
	w.await(token, "again.20")
	s.mustPut(s.token(0, 6), "")
	w.await(s.token(0, 6), "")
}

// testWatchValueKeepsToItsName, and a refusal is no news.
func testWatchValueKeepsToItsName(s *valuesScene) {
	w := s.watch(s.values, 0)
	s.mustPut(s.token(1, 0), "first")
	w.await(s.token(1, 0), "first")
	for _, name := range []string{valueName + "x", valueName + "/", valueName[:len(valueName)-1], "Config/limits", "config"} {
		if err := s.values.Put(s.Context(), name, driver.Value{Data: []byte("of " + name), Token: s.token(5, 0)}); err != nil {
			s.Fatal(err)
		}
	}
	s.mustBeStale(s.put(s.token(0, 0), "late"), s.token(1, 0), s.token(0, 0))
	s.mustPut(s.token(2, 0), "second")
	w.await(s.token(2, 0), "second")
	w.end(nil)
	for _, v := range w.all() {
		if data := string(v.Data); v.Token != 0 && data != "first" && data != "second" {
			s.Fatalf("%q was seen, and is not of this name or was refused", data)
		}
	}
}

// testWatchValueOfManyWriters: nothing goes back, and the highest is seen.
func testWatchValueOfManyWriters(s *valuesScene) {
	const writers, each = 4, 15
	watches := []*valueWatch{s.watch(s.values, 0), s.watch(s.open(), 0)}
	var running sync.WaitGroup
	errs := make(chan error, writers*each)
	for i := range writers {
		v := s.open()
		running.Go(func() {
			for j := range each {
				errs <- s.writeAsOneOfMany(v, s.token(int64(j), i), 3)
			}
		})
	}
	running.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			s.Fatal(err)
		}
	}
	last := s.token(each-1, writers-1)
	for _, w := range watches {
		w.await(last, last.String()+".2")
	}
}

// writeAsOneOfMany writes several times under one token, until it is refused.
func (s *valuesScene) writeAsOneOfMany(v driver.Values, token interlock.Token, times int) error {
	for n := 0; n < times; {
		err := v.Put(s.Context(), valueName, driver.Value{Data: fmt.Appendf(nil, "%d.%d", token, n), Token: token})
		switch {
		case errors.Is(err, interlock.ErrStaleToken):
			return nil
		case interlock.Kind(err) == interlock.Retryable:
			continue
		case err != nil:
			return err
		}
		n++
	}
	return nil
}

// testWatchValueBySlowReader: it skips some, and holds nobody up.
func testWatchValueBySlowReader(s *valuesScene) {
	slow, quick := s.watch(s.values, 200*time.Millisecond), s.watch(s.values, 0)
	const n = 60
	data := strings.Repeat("x", 1<<10)
	for i := range n {
		s.mustPut(s.token(int64(i), 0), fmt.Sprintf("%s.%d", data, i))
	}
	last, want := s.token(n-1, 0), fmt.Sprintf("%s.%d", data, n-1)
	quick.await(last, want)
	slow.await(last, want)
}

// testWatchValueEnds soon, with the cause, and says nothing more.
func testWatchValueEnds(s *valuesScene) {
	s.mustPut(s.token(0, 0), "first")
	ending, witness := s.watch(s.values, 0), s.watch(s.values, 0)
	ending.await(s.token(0, 0), "first")
	cause := errors.New("nobody looks any more")
	if err := ending.end(cause); !errors.Is(err, cause) {
		s.Fatalf("a watch whose context ended returned %v, want the cause", err)
	}
	s.mustPut(s.token(1, 0), "second")
	witness.await(s.token(1, 0), "second")
	if last := ending.last(); last.Token != s.token(0, 0) {
		s.Fatalf("a watch that had returned saw %+v", last)
	}
}

// testWatchValueOverACut: what another wrote meanwhile is seen afterwards.
func testWatchValueOverACut(s *valuesScene) {
	beside := s.beside()
	w := s.watchValueOver(s.faults.Cut, func() {
		for i := range 3 {
			value := driver.Value{Data: fmt.Appendf(nil, "meanwhile.%d", i), Token: s.token(0, 1)}
			if err := beside.Put(s.Context(), valueName, value); err != nil {
				s.Fatal(err)
			}
		}
		s.faults.Heal()
	})
	w.await(s.token(0, 1), "meanwhile.2")
	s.writeAfter(w)
}

func testWatchValueOverAKilledServer(s *valuesScene) {
	s.writeAfter(s.watchValueOver(s.faults.Kill, s.faults.Restart))
}

func testWatchValueOverAPausedServer(s *valuesScene) {
	s.writeAfter(s.watchValueOver(s.faults.Pause, s.faults.Resume))
}

// watchValueOver watches over an outage that begins right after a value was
// written.
func (s *valuesScene) watchValueOver(begin, end func()) *valueWatch {
	s.Helper()
	s.mustPut(s.token(0, 0), "before.1")
	w := s.watch(s.values, 0)
	w.await(s.token(0, 0), "before.1")
	s.mustPut(s.token(0, 0), "before.2")
	begin()
	end()
	return w
}

// writeAfter has values written after an outage, of which the watch must not
// miss the last.
func (s *valuesScene) writeAfter(w *valueWatch) {
	s.Helper()
	s.persistPut(s.token(1, 0), "after.1")
	s.persistPut(s.token(1, 0), "after.2")
	w.await(s.token(1, 0), "after.2")
	s.persistPut(s.token(2, 0), "later.1")
	w.await(s.token(2, 0), "later.1")
}
