package drivertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// valueWatch is one watch under test. Its reports must not go back: they are ordered by token, and
// for equal tokens by the number after the dot in data.
type valueWatch struct{ *recorder[driver.Value] }

// watch watches valueName. After each report it sleeps.
func (s *valuesScene) watch(v driver.Values, sleep time.Duration) *valueWatch {
	return &valueWatch{record(s.T, func(ctx context.Context, report func(driver.Value)) error {
		return v.Watch(ctx, valueName, func(value driver.Value) {
			report(value)
			if sleep > 0 {
				time.Sleep(sleep)
			}
		})
	})}
}

// number returns the number after the dot in data, 0 if there is none.
func number(v driver.Value) (n int) {
	_, after, _ := strings.Cut(string(v.Data), ".")
	_, _ = fmt.Sscanf(after, "%d", &n) // no number is 0
	return n
}

// values returns the reported values, which must be in order.
func (w *valueWatch) values() ([]driver.Value, error) {
	w.t.Helper()
	all, err := w.all()
	for i := 1; i < len(all); i++ {
		before, v := all[i-1], all[i]
		if v.Token < before.Token || v.Token == before.Token && number(v) < number(before) {
			w.t.Fatalf("%.100q with %d came after %.100q with %d", v.Data, v.Token, before.Data, before.Token)
		}
	}
	return all, err
}

// await waits until the last reported value has this token and data.
func (w *valueWatch) await(token interlock.Token, data string) {
	w.t.Helper()
	timeout := time.After(2 * patience)
	for {
		all, err := w.values()
		var last driver.Value
		if n := len(all); n > 0 {
			if last = all[n-1]; last.Token == token && string(last.Data) == data {
				return
			}
		}
		if !w.wait(timeout) {
			w.t.Fatalf("%.100q with %d is not seen; the last of %d is %.100q with %d (%v)", data, token, len(all), last.Data, last.Token, err)
		}
	}
}

// testWatchValueBegins checks that a watch starts with the current value, even if empty.
func testWatchValueBegins(s *valuesScene) {
	early := s.watch(s.store, 0)
	early.await(0, "")
	s.mustPut(s.token(0, 0), "first")
	early.await(s.token(0, 0), "first")
	late := s.watch(s.open(), 0)
	late.await(s.token(0, 0), "first")
	s.mustPut(s.token(1, 0), "second")
	early.await(s.token(1, 0), "second")
	late.await(s.token(1, 0), "second")
	if seen, _ := late.values(); seen[0].Token != s.token(0, 0) {
		s.Fatalf("the first value of a watch is %+v", seen[0])
	}
}

// testWatchValueSeesEqualTokens has the holder write repeatedly. The last value must be
// seen.
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

// testWatchValueKeepsToItsName checks that other names and refusals are not reported.
func testWatchValueKeepsToItsName(s *valuesScene) {
	w := s.watch(s.store, 0)
	s.mustPut(s.token(1, 0), "first")
	w.await(s.token(1, 0), "first")
	for _, name := range []string{valueName + "x", valueName + "/", valueName[:len(valueName)-1], "Config/limits", "config"} {
		testbed.OK(s, s.store.Put(s.Context(), name, driver.Value{Data: []byte("of " + name), Token: s.token(5, 0)}))
	}
	s.mustBeStale(s.put(s.token(0, 0), "late"), valueName, s.token(1, 0), s.token(0, 0))
	s.mustPut(s.token(2, 0), "second")
	w.await(s.token(2, 0), "second")
	w.end(nil)
	seen, _ := w.values()
	for _, v := range seen {
		if data := string(v.Data); v.Token != 0 && data != "first" && data != "second" {
			s.Fatalf("%q was seen, and is not of this name or was refused", data)
		}
	}
}

// testWatchValueOfManyWriters checks that reports do not go back and include the highest.
func testWatchValueOfManyWriters(s *valuesScene) {
	const writers, each = 4, 15
	watches := []*valueWatch{s.watch(s.store, 0), s.watch(s.open(), 0)}
	s.atOnce(writers, func(i int, v driver.Values) error {
		for j := range each {
			if err := s.writeAsOneOfMany(v, s.token(int64(j), i), 3); err != nil {
				return err
			}
		}
		return nil
	})
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

// testWatchValueBySlowReader checks that it skips values and delays no one else.
func testWatchValueBySlowReader(s *valuesScene) {
	slow, quick := s.watch(s.store, 200*time.Millisecond), s.watch(s.store, 0)
	const n = 60
	data := strings.Repeat("x", 1<<10)
	for i := range n {
		s.mustPut(s.token(int64(i), 0), fmt.Sprintf("%s.%d", data, i))
	}
	last, want := s.token(n-1, 0), fmt.Sprintf("%s.%d", data, n-1)
	quick.await(last, want)
	slow.await(last, want)
}

// testWatchValueEnds checks that a watch ends soon, with the cause and no later report.
func testWatchValueEnds(s *valuesScene) {
	s.mustPut(s.token(0, 0), "first")
	ending, witness := s.watch(s.store, 0), s.watch(s.store, 0)
	ending.await(s.token(0, 0), "first")
	cause := errors.New("the caller stopped watching")
	if err := ending.end(cause); !errors.Is(err, cause) {
		s.Fatalf("a watch whose context ended returned %v, want the cause", err)
	}
	s.mustPut(s.token(1, 0), "second")
	witness.await(s.token(1, 0), "second")
	if seen, _ := ending.values(); seen[len(seen)-1].Token != s.token(0, 0) {
		s.Fatalf("a watch that had returned saw %+v", seen)
	}
}

// testWatchValueOverACut checks that a value written during the cut is reported after it.
func testWatchValueOverACut(s *valuesScene) {
	beside := s.beside()
	w := s.watchValueOver(s.faults.Cut, func() {
		for i := range 3 {
			value := driver.Value{Data: fmt.Appendf(nil, "meanwhile.%d", i), Token: s.token(0, 1)}
			testbed.OK(s, beside.Put(s.Context(), valueName, value))
		}
		s.faults.Heal()
	})
	w.await(s.token(0, 1), "meanwhile.2")
	s.writeAfter(w)
}

// watchValueOver watches during an outage that starts immediately after a value is
// written.
func (s *valuesScene) watchValueOver(begin, end func()) *valueWatch {
	s.Helper()
	s.mustPut(s.token(0, 0), "before.1")
	w := s.watch(s.store, 0)
	w.await(s.token(0, 0), "before.1")
	s.mustPut(s.token(0, 0), "before.2")
	begin()
	end()
	return w
}

// writeAfter writes values after an outage. The watch must report the last of
// them.
func (s *valuesScene) writeAfter(w *valueWatch) {
	s.Helper()
	s.persistPut(s.token(1, 0), "after.1")
	s.persistPut(s.token(1, 0), "after.2")
	w.await(s.token(1, 0), "after.2")
	s.persistPut(s.token(2, 0), "later.1")
	w.await(s.token(2, 0), "later.1")
}
