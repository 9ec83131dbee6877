package etcd

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

func tok(t *testing.T, counter int64, sub int) interlock.Token {
	t.Helper()
	token, err := interlock.NewToken(counter, sub)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func write(key, value string) driver.Write { return driver.Write{Key: key, Value: []byte(value)} }

func TestFenceRefusesWhatIsStale(t *testing.T) {
	client := dial(t, serverFor(t).Addr())
	f := NewFence(client, "p/")
	enter := func(token interlock.Token, strict bool, writes ...driver.Write) error {
		return f.Enter(t.Context(), driver.Raise{Resource: "r", Token: token, Source: "test", Strict: strict}, writes...)
	}
	five, six := tok(t, 5, 0), tok(t, 6, 0)
	for i, step := range []struct {
		token  interlock.Token
		strict bool
		seen   interlock.Token // 0: accepted
	}{
		{token: tok(t, 5, 1)},
		{token: five, seen: tok(t, 5, 1)},
		{token: tok(t, 5, 1)},
		{token: tok(t, 5, 1), strict: true, seen: tok(t, 5, 1)},
		{token: tok(t, 5, 2), strict: true},
		{token: six},
		{token: tok(t, 5, 4095), seen: six},
		{token: tok(t, 1000, 0)}, // more digits
		{token: tok(t, 999, 0), seen: tok(t, 1000, 0)},
	} {
		err := enter(step.token, step.strict, write("data", fmt.Sprint(i)))
		var stale *interlock.StaleTokenError
		switch {
		case step.seen == 0 && err != nil:
			t.Fatalf("step %d: %v", i, err)
		case step.seen != 0 && (!errors.As(err, &stale) || stale.Seen != step.seen || stale.Got != step.token || stale.Resource != "r"):
			t.Fatalf("step %d: %v, want a refusal that has seen %d", i, err, step.seen)
		}
		reply, err := client.Get(t.Context(), "data")
		if err != nil {
			t.Fatal(err)
		}
		if wrote := string(reply.Kvs[0].Value) == fmt.Sprint(i); wrote != (step.seen == 0) {
			t.Fatalf("step %d: data holds %s", i, reply.Kvs[0].Value)
		}
	}
	m, err := f.Mark(t.Context(), "r")
	if err != nil || m.Token != tok(t, 1000, 0) || m.Source != "test" || time.Since(m.Raised).Abs() > time.Minute {
		t.Fatalf("%+v, %v", m, err)
	}
	if m, err := f.Mark(t.Context(), "another"); err != nil || m.Token != 0 {
		t.Fatalf("%+v, %v", m, err)
	}
}

func TestFenceWritesAreOneStep(t *testing.T) {
	client := dial(t, serverFor(t).Addr())
	f := NewFence(client, "")
	mustPut(t, client, "old", "x")
	raise := driver.Raise{Resource: "r", Token: tok(t, 9, 0)}
	if err := f.Enter(t.Context(), raise, write("a", "1"), write("b", ""), driver.Write{Key: "old", Delete: true}); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(keys(t, client, "a"), keys(t, client, "b"), keys(t, client, "old")); got != "[a] [b] []" {
		t.Fatal(got)
	}
	raise.Token = tok(t, 10, 0)
	if err := f.Enter(t.Context(), raise, write("twice", "1"), write("twice", "2")); interlock.Kind(err) != interlock.Definite {
		t.Fatalf("a key written twice: %v", err)
	}
	if m, err := f.Mark(t.Context(), "r"); err != nil || m.Token != tok(t, 9, 0) {
		t.Fatalf("the refused step raised the mark: %+v, %v", m, err)
	}
	var many []driver.Write
	for i := range 63 {
		many = append(many, write(fmt.Sprint("many/", i), "x"))
	}
	for range 2 { // the first mark was raised by another branch
		if err := f.Enter(t.Context(), raise, many...); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Enter(t.Context(), raise, append(many, write("more", "x"))...); interlock.Kind(err) != interlock.Definite {
		t.Fatalf("64 writes: %v", err)
	}
}

// TestFenceOneRequestPerEnter, also when it refuses.
func TestFenceOneRequestPerEnter(t *testing.T) {
	var count counter
	f := NewFence(dial(t, serverFor(t).Addr(), count.on), "")
	for i, counterOf := range []int64{4, 5, 3} {
		before := count.n.Load()
		_ = f.Enter(t.Context(), driver.Raise{Resource: "r", Token: tok(t, counterOf, 0)}, write("k", "v"))
		if n := count.n.Load() - before; n != 1 {
			t.Errorf("enter %d cost %d requests", i, n)
		}
	}
}

// TestFenceUnderContention: whoever writes last in the store's order has the
// highest token of all that were let in before it.
func TestFenceUnderContention(t *testing.T) {
	client := dial(t, serverFor(t).Addr())
	f := NewFence(client, "")
	var wg sync.WaitGroup
	for i := range int64(60) {
		wg.Go(func() {
			token := tok(t, 1+(i*37)%60, 0)
			err := f.Enter(t.Context(), driver.Raise{Resource: "r", Token: token}, write("last", token.String()))
			if err != nil && !errors.Is(err, interlock.ErrStaleToken) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	reply, err := client.Get(t.Context(), "last")
	if err != nil || string(reply.Kvs[0].Value) != tok(t, 60, 0).String() {
		t.Fatalf("the last write is of %s, %v", reply.Kvs[0].Value, err)
	}
}

func TestFenceRefusesWhatCannotBe(t *testing.T) {
	f := NewFence(dial(t, serverFor(t).Addr()), "")
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	f.now = func() time.Time { return now }
	limit := interlock.CounterAt(now.Add(interlock.MaxAhead))
	if err := f.Enter(t.Context(), driver.Raise{Resource: "r", Token: tok(t, limit, 7)}); err != nil {
		t.Fatal(err)
	}
	err := f.Enter(t.Context(), driver.Raise{Resource: "r", Token: tok(t, limit+1, 0)})
	if !errors.Is(err, interlock.ErrImplausibleToken) || interlock.Kind(err) != interlock.Definite {
		t.Fatal(err)
	}
	if _, err := f.Rebase(t.Context(), "r", tok(t, limit+1, 0), "why", "me"); !errors.Is(err, interlock.ErrImplausibleToken) {
		t.Fatal(err)
	}
	for _, bad := range []interlock.Token{0, -1, 1} {
		if err := f.Enter(t.Context(), driver.Raise{Resource: "r", Token: bad}); interlock.Kind(err) != interlock.Bug {
			t.Fatalf("token %d: %v", bad, err)
		}
	}
	if err := f.Enter(t.Context(), driver.Raise{Token: tok(t, 1, 0)}); !errors.Is(err, interlock.ErrName) {
		t.Fatal(err)
	}
}

func TestFenceRebaseIsRecorded(t *testing.T) {
	client := dial(t, serverFor(t).Addr())
	f := NewFence(client, "p/")
	high, low := tok(t, 900, 3), tok(t, 5, 0)
	if err := f.Enter(t.Context(), driver.Raise{Resource: "a/b", Token: high, Source: "s"}); err != nil {
		t.Fatal(err)
	}
	was, err := f.Rebase(t.Context(), "a/b", low, "restored the old cluster", "an operator")
	if err != nil || was.Token != high || was.Source != "s" {
		t.Fatalf("%+v, %v", was, err)
	}
	if m, err := f.Mark(t.Context(), "a/b"); err != nil || m.Token != low || m.Source != "an operator" {
		t.Fatalf("%+v, %v", m, err)
	}
	if err := f.Enter(t.Context(), driver.Raise{Resource: "a/b", Token: tok(t, 6, 0)}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Rebase(t.Context(), "a/b", 0, "again", "me"); err != nil {
		t.Fatal(err)
	}
	records := keys(t, client, "p/interlock.rebase:a%2Fb:")
	if len(records) != 2 {
		t.Fatalf("records %q", records)
	}
	reply, err := client.Get(t.Context(), records[0])
	if err != nil {
		t.Fatal(err)
	}
	var r rebasing
	if err := json.Unmarshal(reply.Kvs[0].Value, &r); err != nil || r.From != high || r.To != low ||
		r.Reason != "restored the old cluster" || r.By != "an operator" || r.At.IsZero() {
		t.Fatalf("%+v, %v", r, err)
	}
}

// TestFenceKeepsOutOfLocks: marks stand in no lock's line, whatever the names.
func TestFenceKeepsOutOfLocks(t *testing.T) {
	client := dial(t, serverFor(t).Addr())
	f := NewFence(client, "")
	d := open(t, client, &Options{RawNames: true})
	for _, resource := range []string{"a", "a/b", "interlock.base", ":"} {
		if err := f.Enter(t.Context(), driver.Raise{Resource: resource, Token: tok(t, 5, 0)}); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Rebase(t.Context(), resource, 0, "why", "me"); err != nil {
			t.Fatal(err)
		}
	}
	for _, lock := range []string{"interlock.fence:a", "interlock.fence:", "interlock.rebase:a", "a", "interlock.base", "interlock.fence"} {
		r := ask(lock, "me")
		r.NoWait = true
		mustAcquire(t, d, r)
	}
}

// TestFenceMarkThatIsNone is reported, not overwritten.
func TestFenceMarkThatIsNone(t *testing.T) {
	client := dial(t, serverFor(t).Addr())
	f := NewFence(client, "")
	mustPut(t, client, "interlock.fence:r", "something else that is longer than digits")
	err := f.Enter(t.Context(), driver.Raise{Resource: "r", Token: tok(t, 5, 0)})
	if interlock.Kind(err) != interlock.Definite {
		t.Fatal(err)
	}
	if _, err := f.Mark(t.Context(), "r"); interlock.Kind(err) != interlock.Definite {
		t.Fatal(err)
	}
}
