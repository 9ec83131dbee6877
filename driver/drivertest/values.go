package drivertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// ValuesHarness gives [RunValues] access to one driver.Values and its store.
type ValuesHarness = StoreHarness[driver.Values]

// ValuesBackend is one running store of values.
type ValuesBackend = StoreBackend[driver.Values]

// RunValues runs the conformance suite of driver.Values.
func RunValues(t *testing.T, h ValuesHarness) {
	runStore(t, h, func(s *storeScene[driver.Values]) *valuesScene { return &valuesScene{storeScene: s} }, []suiteTest[*valuesScene]{
		// Storing.
		{"ValuesAreOrderedByToken", 0, testValuesAreOrderedByToken},
		{"ValueHasSourceAndTime", 0, testValueHasSourceAndTime},
		{"ValueDataIsData", 0, testValueDataIsData},
		{"ValueNamesAreData", 0, testValueNamesAreData},
		{"ValueRefusesImplausibleToken", 0, testValueRefusesImplausibleToken},
		{"ValueWithoutTokenIsABug", 0, testValueWithoutTokenIsABug},
		{"ValueCompetition", 0, testValueCompetition},
		{"ValuesContextAlreadyEnded", 0, testValuesContextAlreadyEnded},
		{"LostReplyToPut", Servers | LostReplies | onPaths, testLostReplyToPut},
		{"ValuesOverARestart", Servers, testValuesOverARestart},
		// Watching.
		{"WatchValueBegins", 0, testWatchValueBegins},
		{"WatchValueSeesEqualTokens", 0, testWatchValueSeesEqualTokens},
		{"WatchValueKeepsToItsName", 0, testWatchValueKeepsToItsName},
		{"WatchValueOfManyWriters", 0, testWatchValueOfManyWriters},
		{"WatchValueBySlowReader", 0, testWatchValueBySlowReader},
		{"WatchValueEnds", 0, testWatchValueEnds},
		{"WatchValueOverACut", Servers | onPaths, testWatchValueOverACut},
		{"WatchValueOverAKilledServer", Servers, func(s *valuesScene) { s.writeAfter(s.watchValueOver(s.faults.Kill, s.faults.Restart)) }},
	})
}

// valueName is the name that most tests use.
const valueName = "config/limits"

// valuesScene is one test with its store and a first opening of it.
type valuesScene struct {
	*storeScene[driver.Values]
}

func (s *valuesScene) put(token interlock.Token, data string) error {
	return s.store.Put(s.Context(), valueName, driver.Value{Data: []byte(data), Token: token})
}

func (s *valuesScene) mustPut(token interlock.Token, data string) {
	s.Helper()
	if err := s.put(token, data); err != nil {
		s.Fatalf("put %q with %d: %v", data, token, err)
	}
}

func (s *valuesScene) get(v driver.Values, name string) driver.Value {
	s.Helper()
	value, err := v.Get(s.Context(), name)
	if err != nil {
		s.Fatalf("get %q: %v", name, err)
	}
	return value
}

func (s *valuesScene) mustHave(v driver.Values, name string, token interlock.Token, data string) {
	s.Helper()
	if value := s.get(v, name); value.Token != token || !bytes.Equal(value.Data, []byte(data)) {
		s.Fatalf("%q is %.200q with %d, want %.200q with %d", name, value.Data, value.Token, data, token)
	}
}

// persistPut repeats a Put until it succeeds.
func (s *valuesScene) persistPut(token interlock.Token, data string) {
	s.Helper()
	v := s.open()
	s.persist("put "+data, func(ctx context.Context) error {
		return v.Put(ctx, valueName, driver.Value{Data: []byte(data), Token: token})
	})
}

// testValuesAreOrderedByToken checks that a lower token is rejected and an equal one
// replaces, also for tokens with different last bits and above a float's precision.
func testValuesAreOrderedByToken(s *valuesScene) {
	other := s.open()
	var seen interlock.Token
	data := ""
	for i, step := range tokenSteps(s.T, s.start) {
		if step.strict && !step.accepted {
			continue // values have no strict writes
		}
		token, text := step.token, fmt.Sprint("step ", i)
		s.Logf("step %d: token %d after %d", i, token, seen)
		err := s.put(token, text)
		switch {
		case !step.accepted:
			s.mustBeStale(err, valueName, seen, token)
		case err != nil:
			s.Fatal(err)
		default:
			seen, data = token, text
		}
		s.mustHave(s.store, valueName, seen, data)
		s.mustHave(other, valueName, seen, data)
	}
}

// testValueHasSourceAndTime checks both, and that a refusal changes neither. A missing value has none.
func testValueHasSourceAndTime(s *valuesScene) {
	if none := s.get(s.store, valueName); len(none.Data) > 0 || none.Token != 0 || none.Source != "" || !none.Written.IsZero() {
		s.Fatalf("the value of a name that nothing was written under: %+v", none)
	}
	const source = "worker \"7\"\n на mail \\ {}"
	value := driver.Value{Data: []byte("x"), Token: s.token(1, 3), Source: source}
	testbed.OK(s, s.store.Put(s.Context(), valueName, value))
	was := s.get(s.store, valueName)
	if was.Source != source || !was.Written.IsZero() && time.Since(was.Written).Abs() > 5*time.Minute {
		s.Fatalf("the value is %+v", was)
	}
	value.Token, value.Source = s.token(1, 2), "another"
	s.mustBeStale(s.store.Put(s.Context(), valueName, value), valueName, s.token(1, 3), s.token(1, 2))
	now := s.get(s.open(), valueName)
	if now.Source != was.Source || !now.Written.Equal(was.Written) {
		s.Fatalf("the value is %+v, was %+v", now, was)
	}
}

// testValueDataIsData checks any bytes up to the limit, and that other values stay.
func testValueDataIsData(s *valuesScene) {
	long := bytes.Repeat([]byte("0123456789abcde\xff"), driver.MaxValue/16)
	for i, data := range []string{"", "x", "\x00\xff binary\r\n", "{\"a\": [1]}", "'; drop table x; --", "ключ", string(long), "", "short again"} {
		s.mustPut(s.token(int64(i), 0), data)
		s.mustHave(s.store, valueName, s.token(int64(i), 0), data)
	}
	mine := []byte("mine")
	testbed.OK(s, s.store.Put(s.Context(), valueName, driver.Value{Data: mine, Token: s.token(20, 0)}))
	copy(mine, "used")
	value := s.get(s.store, valueName)
	copy(value.Data, "read")
	s.mustHave(s.store, valueName, s.token(20, 0), "mine")
	if err := s.store.Put(s.Context(), valueName, driver.Value{Token: s.token(21, 0)}); err != nil {
		s.Fatalf("no data at all: %v", err)
	}
	s.mustHave(s.store, valueName, s.token(21, 0), "")
}

// testValueNamesAreData checks that each name has its own value. The tokens fall, so a
// name that shared a value would be rejected.
func testValueNamesAreData(s *valuesScene) {
	tokens := map[string]interlock.Token{}
	taken := s.eachName(func(i int, name string) error {
		tokens[name] = s.token(int64(-i), i)
		return s.store.Put(s.Context(), name, driver.Value{Data: []byte(name), Token: tokens[name]})
	})
	for _, name := range taken {
		s.mustHave(s.store, name, tokens[name], name)
	}
	for _, name := range []string{"", strings.Repeat("x", driver.MaxName+1)} {
		s.mustFail(s.store.Put(s.Context(), name, driver.Value{Token: s.token(0, 0)}), interlock.Bug, interlock.ErrName)
		_, err := s.store.Get(s.Context(), name)
		s.mustFail(err, interlock.Bug, interlock.ErrName)
		s.mustFail(s.store.Watch(s.Context(), name, func(driver.Value) {}), interlock.Bug, interlock.ErrName)
	}
}

// testValueRefusesImplausibleToken checks that such a token is not stored: it would
// reject every later token.
func testValueRefusesImplausibleToken(s *valuesScene) {
	at := func(ahead time.Duration) interlock.Token {
		return newToken(s.T, interlock.CounterAt(time.Now().Add(ahead)), 0)
	}
	absurd := []interlock.Token{at(interlock.MaxAhead + time.Hour), math.MaxInt64}
	refuse := func() {
		s.Helper()
		for _, token := range absurd {
			s.mustFail(s.put(token, "absurd"), interlock.Definite, interlock.ErrImplausibleToken)
		}
	}
	refuse()
	s.mustHave(s.store, valueName, 0, "")
	s.mustPut(s.token(0, 0), "plausible")
	refuse()
	s.mustHave(s.store, valueName, s.token(0, 0), "plausible")
	s.mustPut(at(interlock.MaxAhead-time.Hour), "nearly absurd")
}

// testValueWithoutTokenIsABug: zero is no token, and no driver issues one below 1<<12.
func testValueWithoutTokenIsABug(s *valuesScene) {
	for _, token := range []interlock.Token{0, -1, math.MinInt64, 1, interlock.MaxSub} {
		s.mustFail(s.put(token, "x"), interlock.Bug, nil)
	}
	s.mustHave(s.store, valueName, 0, "")
}

// testValueCompetition has claims of several processes write at the same time. The
// highest remains, and readers never get an older value.
func testValueCompetition(s *valuesScene) {
	const claims = 40
	var last interlock.Token
	readUntil(func() {
		s.atOnce(claims, func(i int, v driver.Values) error { return s.competePut(v, s.token(int64(1+i*37%claims), 1)) })
	}, func() {
		value := s.get(s.store, valueName)
		if value.Token < last || value.Token > 0 && string(value.Data) != value.Token.String() {
			s.Fatalf("%q with %d was read after %d", value.Data, value.Token, last)
		}
		last = value.Token
	})
	highest := s.token(claims, 1)
	s.mustHave(s.store, valueName, highest, highest.String())
}

// competePut writes. It must be rejected only for a higher token. If it is accepted,
// the token before it must be rejected.
func (s *valuesScene) competePut(v driver.Values, token interlock.Token) error {
	put := func(token interlock.Token) (interlock.Token, error) {
		_, err := retried(func() (bool, error) {
			return true, v.Put(s.Context(), valueName, driver.Value{Data: []byte(token.String()), Token: token})
		})
		if stale, found := errors.AsType[*interlock.StaleTokenError](err); found {
			return stale.Seen, nil
		}
		return 0, err
	}
	seen, err := put(token)
	switch {
	case err != nil:
		return fmt.Errorf("token %d: %w", token, err)
	case seen != 0 && seen <= token:
		return fmt.Errorf("token %d was refused for %d", token, seen)
	case seen != 0:
		return nil
	}
	if seen, err := put(token - 1); err != nil || seen < token {
		return fmt.Errorf("after %d a put with the token before it: seen %d, %w", token, seen, errors.Join(errNotRefused, err))
	}
	return nil
}

// testValuesContextAlreadyEnded checks that the cause is returned and nothing was done.
func testValuesContextAlreadyEnded(s *valuesScene) {
	s.mustPut(s.token(0, 0), "before")
	ctx, cause := endedContext(s.T)
	s.mustFail(s.store.Put(ctx, valueName, driver.Value{Data: []byte("x"), Token: s.token(1, 0)}), interlock.Definite, cause)
	_, err := s.store.Get(ctx, valueName)
	s.mustFail(err, interlock.Definite, cause)
	if err := s.store.Watch(ctx, valueName, func(driver.Value) {}); !errors.Is(err, cause) {
		s.Fatalf("a watch under an ended context returned %v, want the cause", err)
	}
	s.mustHave(s.store, valueName, s.token(0, 0), "before")
}

// testLostReplyToPut checks that the outcome is unknown and a repetition converges, also
// after a watcher has seen the value. A lost read is Retryable.
func testLostReplyToPut(s *valuesScene) {
	s.mustPut(s.token(0, 0), "before") // the connection is open
	s.loseReads(func(ctx context.Context) error {
		_, err := s.store.Get(ctx, valueName)
		return err
	})
	put := func(ctx context.Context) error {
		return s.store.Put(ctx, valueName, driver.Value{Data: []byte("after"), Token: s.token(1, 0)})
	}
	s.loseReply(put)
	fresh := s.open()
	s.persistUntil("the value that was written without a reply", func(ctx context.Context) (bool, error) {
		value, err := fresh.Get(ctx, valueName)
		return string(value.Data) == "after", err
	})
	s.persist("put again", put)
	s.mustHave(fresh, valueName, s.token(1, 0), "after")
}

// testValuesOverARestart checks that a durable server keeps all writes when its process
// is killed, and that no value goes back.
func testValuesOverARestart(s *valuesScene) {
	s.mustPut(s.token(1, 0), "kept")
	s.restartAround(func(ctx context.Context) error {
		return s.store.Put(ctx, valueName, driver.Value{Data: []byte("nowhere"), Token: s.token(1, 1)})
	})
	s.persist("get after the restart", func(ctx context.Context) error {
		value, err := s.store.Get(ctx, valueName)
		if err == nil && s.durable && string(value.Data) != "kept" {
			s.Fatalf("a restart made of %q: %q", "kept", value.Data)
		}
		return err
	})
	s.persist("put after the restart", func(ctx context.Context) error {
		return s.store.Put(ctx, valueName, driver.Value{Data: []byte("after"), Token: s.token(2, 0)})
	})
	s.mustHave(s.store, valueName, s.token(2, 0), "after")
	s.mustBeStale(s.put(s.token(1, 0), "late"), valueName, s.token(2, 0), s.token(1, 0))
}
