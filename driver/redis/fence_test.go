package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func token(t *testing.T, counter int64, sub int) interlock.Token {
	t.Helper()
	token, err := interlock.NewToken(counter, sub)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestFenceOrdersNeighbouringTokens(t *testing.T) {
	server := testbed.Redis(t)
	client := dial(t, server.Addr())
	f := NewFence(client)
	present := interlock.CounterAt(time.Now())
	if present<<12 < 1<<53 {
		t.Fatal("the tokens of this test should be more than a float holds")
	}
	enter := func(strict bool, token interlock.Token, value string) error {
		return f.Enter(t.Context(), driver.Raise{Resource: "acct{1}", Token: token, Source: "test", Strict: strict},
			driver.Write{Key: "data", Value: []byte(value)})
	}
	for i, step := range []struct {
		counter int64
		sub     int
		strict  bool
		enters  bool
	}{
		{present, 7, false, true},
		{present, 7, false, true},
		{present, 7, true, false},
		{present, 6, false, false},
		{present, 8, true, true},
		{present, interlock.MaxSub, false, true},
		{present - 1, interlock.MaxSub, false, false},
		{present + 1, 0, false, true},
		{present, interlock.MaxSub, false, false},
	} {
		before, _ := raw(t, client, "GET", "data").ToString()
		want := fmt.Sprint("step ", i)
		err := enter(step.strict, token(t, step.counter, step.sub), want)
		got, _ := raw(t, client, "GET", "data").ToString()
		if step.enters && (err != nil || got != want) {
			t.Fatalf("step %d: %v, data %q", i, err, got)
		}
		var stale *interlock.StaleTokenError
		if !step.enters && (!errors.As(err, &stale) || interlock.Kind(err) != interlock.Definite || got != before) {
			t.Fatalf("step %d: %v, data %q, before %q", i, err, got, before)
		}
	}
	m, err := f.Mark(t.Context(), "acct{1}")
	if err != nil || m.Token != token(t, present+1, 0) || m.Source != "test" || time.Since(m.Raised).Abs() > time.Minute {
		t.Fatalf("mark: %+v, %v", m, err)
	}
	var stale *interlock.StaleTokenError
	if errors.As(enter(false, token(t, 5, 0), ""), &stale); stale == nil || stale.Seen != m.Token || stale.Got != token(t, 5, 0) {
		t.Fatalf("the refusal tells %+v", stale)
	}
}

func TestFenceRefusesTokensFromTheFuture(t *testing.T) {
	server := testbed.Redis(t)
	f := NewFence(dial(t, server.Addr()))
	far := token(t, interlock.CounterAt(time.Now().Add(interlock.MaxAhead+time.Hour)), 0)
	near := token(t, interlock.CounterAt(time.Now().Add(interlock.MaxAhead-time.Hour)), 0)
	err := f.Enter(t.Context(), driver.Raise{Resource: "r", Token: far})
	if !errors.Is(err, interlock.ErrImplausibleToken) {
		t.Fatalf("a token of the day after tomorrow: %v", err)
	}
	if m, err := f.Mark(t.Context(), "r"); err != nil || m != (driver.Mark{}) {
		t.Fatalf("it was stored: %+v, %v", m, err)
	}
	if err := f.Enter(t.Context(), driver.Raise{Resource: "r", Token: near}); err != nil {
		t.Fatal(err)
	}
}

func TestFenceWritesAndDeletes(t *testing.T) {
	server := testbed.Redis(t)
	client := dial(t, server.Addr())
	f := NewFence(client)
	value := "\x00\xff binary\r\n"
	raise := driver.Raise{Resource: "r", Token: token(t, interlock.CounterAt(time.Now()), 0)}
	if err := raw(t, client, "RPUSH", "other", "a", "list").Error(); err != nil {
		t.Fatal(err)
	}
	err := f.Enter(t.Context(), raise, driver.Write{Key: "one", Value: []byte(value)},
		driver.Write{Key: "other", Value: []byte("x")}, driver.Write{Key: "two", Value: nil}, driver.Write{Key: "other", Delete: true})
	if err != nil {
		t.Fatal(err)
	}
	one, _ := raw(t, client, "GET", "one").ToString()
	two, err := raw(t, client, "GET", "two").ToString()
	other, _ := raw(t, client, "EXISTS", "other").AsInt64()
	if one != value || two != "" || err != nil || other != 0 {
		t.Fatalf("one %q, two %q (%v), other %d", one, two, err, other)
	}
	for _, key := range []string{"", "interlock:{0}:counter"} {
		if err := f.Enter(t.Context(), raise, driver.Write{Key: key}); interlock.Kind(err) != interlock.Bug {
			t.Errorf("writing the key %q: %v", key, err)
		}
	}
	if err := f.Enter(t.Context(), driver.Raise{Resource: "r"}); interlock.Kind(err) != interlock.Bug {
		t.Errorf("entering without a token: %v", err)
	}
}

func TestFenceEvalRunsAfterTheCheck(t *testing.T) {
	server := testbed.Redis(t)
	client := dial(t, server.Addr())
	f := NewFence(client)
	high := token(t, interlock.CounterAt(time.Now()), 1)
	body := "return redis.call('INCRBY', KEYS[1], ARGV[1]) -- a comment"
	add := func(token interlock.Token) (rueidis.RedisMessage, error) {
		return f.Eval(t.Context(), driver.Raise{Resource: "r", Token: token}, body, []string{"n"}, []string{"5"})
	}
	for want := int64(5); want <= 10; want += 5 {
		m, err := add(high)
		if got, e := m.AsInt64(); err != nil || e != nil || got != want {
			t.Fatalf("%d, %v, %v; want %d", got, err, e, want)
		}
	}
	if _, err := add(high - 1); !errors.Is(err, interlock.ErrStaleToken) {
		t.Fatalf("a stale token: %v", err)
	}
	if n, _ := raw(t, client, "GET", "n").AsInt64(); n != 10 {
		t.Fatalf("a refused body wrote: %d", n)
	}
	m, err := f.Eval(t.Context(), driver.Raise{Resource: "r", Token: high}, "redis.call('DEL', KEYS[1])", []string{"n"}, nil)
	if err != nil || m.IsArray() {
		t.Fatalf("a body that returns nothing: %v, %v", m, err)
	}
	_, err = f.Eval(t.Context(), driver.Raise{Resource: "r", Token: high}, "this is no Lua", nil, nil)
	if interlock.Kind(err) != interlock.Definite || err == nil {
		t.Fatalf("a body that does not compile: %v", err)
	}
	half := "redis.call('SET', KEYS[1], 'half'); redis.call('INCR', KEYS[1])"
	_, err = f.Eval(t.Context(), driver.Raise{Resource: "r", Token: high}, half, []string{"n"}, nil)
	if interlock.Kind(err) != interlock.Uncertain || err == nil || !strings.Contains(err.Error(), "not an integer") {
		t.Fatalf("a body that fails half way: %v", err)
	}
}

func TestRebaseIsRecorded(t *testing.T) {
	server := testbed.Redis(t)
	client := dial(t, server.Addr())
	f := NewFence(client)
	high, low := token(t, interlock.CounterAt(time.Now()), 9), token(t, 1000, 0)
	if err := f.Enter(t.Context(), driver.Raise{Resource: "r", Token: high, Source: "a mistake"}); err != nil {
		t.Fatal(err)
	}
	old, err := f.Rebase(t.Context(), "r", low, `restored "yesterday"`, "op")
	if err != nil || old.Token != high || old.Source != "a mistake" {
		t.Fatalf("replaced %+v, %v", old, err)
	}
	if err := f.Enter(t.Context(), driver.Raise{Resource: "r", Token: low + 1}); err != nil {
		t.Fatalf("after the rebase: %v", err)
	}
	old, err = f.Rebase(t.Context(), "fresh", 0, "nothing", "op")
	if err != nil || old.Token != 0 {
		t.Fatalf("a fresh resource: %+v, %v", old, err)
	}
	entries, err := raw(t, client, "LRANGE", fenceKey("rebase", "r"), "0", "-1").AsStrSlice()
	if err != nil || len(entries) != 1 {
		t.Fatal(entries, err)
	}
	var entry struct{ From, To, Reason, By, At string }
	m := raw(t, client, "LINDEX", fenceKey("rebase", "r"), "0")
	if err := m.DecodeJSON(&entry); err != nil {
		t.Fatal(err)
	}
	if entry.From != high.String() || entry.To != low.String() || entry.Reason != `restored "yesterday"` || entry.By != "op" || entry.At == "" {
		t.Fatalf("recorded: %+v", entry)
	}
}

// Many claims enter at once: what is written in the end is of the highest.
func TestFenceUnderCompetition(t *testing.T) {
	server := testbed.Redis(t)
	client := dial(t, server.Addr())
	f := NewFence(client)
	first := interlock.CounterAt(time.Now())
	var wg sync.WaitGroup
	for i := range int64(64) {
		wg.Go(func() {
			tk := interlock.Token((first + i*37%64) << 12)
			err := f.Enter(context.WithoutCancel(t.Context()), driver.Raise{Resource: "r", Token: tk},
				driver.Write{Key: "data", Value: []byte(tk.String())})
			if err != nil && !errors.Is(err, interlock.ErrStaleToken) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got, _ := raw(t, client, "GET", "data").ToString(); got != token(t, first+63, 0).String() {
		t.Fatalf("in the end the data is of %s, want %d", got, first+63)
	}
}
