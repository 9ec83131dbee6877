package redis

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func tokenOf(t testing.TB, counter int64, sub int) interlock.Token {
	t.Helper()
	token, err := interlock.NewToken(counter, sub)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestValuesRefuseStaleTokens(t *testing.T) {
	t.Parallel()
	v := NewValues(dial(t, testbed.Redis(t).Addr()), "app/")
	if got, err := v.Get(t.Context(), "x"); err != nil || got.Token != 0 || got.Data != nil || !got.Written.IsZero() {
		t.Fatalf("nothing written: %+v, %v", got, err)
	}
	put := func(counter int64, sub int, data string) error {
		return v.Put(t.Context(), "x", driver.Value{Data: []byte(data), Token: tokenOf(t, counter, sub), Source: "me"})
	}
	must := func(counter int64, sub int, data string) {
		t.Helper()
		if err := put(counter, sub, data); err != nil {
			t.Fatal(err)
		}
		got, err := v.Get(t.Context(), "x")
		if err != nil || string(got.Data) != data || got.Token != tokenOf(t, counter, sub) || got.Source != "me" ||
			time.Since(got.Written).Abs() > time.Minute {
			t.Fatalf("got %+v, %v", got, err)
		}
	}
	const big = 1<<46 + 1 // above 2^53 when joined with the hand-over number
	must(big, 3, "a")
	must(big, 3, "b\x00\xff")
	for _, low := range []interlock.Token{tokenOf(t, big, 2), tokenOf(t, big-1, 9)} {
		var stale *interlock.StaleTokenError
		err := put(low.Counter(), low.Sub(), "stale")
		if !errors.As(err, &stale) || stale.Seen != tokenOf(t, big, 3) || stale.Got != low || interlock.Kind(err) != interlock.Definite {
			t.Fatalf("a lower token: %v", err)
		}
	}
	must(big, 4, "")
	must(big+1, 0, "c")
	if err := put(interlock.MaxCounter, 0, "far"); !errors.Is(err, interlock.ErrImplausibleToken) {
		t.Fatalf("a token of the far future: %v", err)
	}
	for _, bad := range []driver.Value{{Data: []byte("x")}, {Token: tokenOf(t, big+2, 0), Data: make([]byte, driver.MaxValue+1)}} {
		if err := v.Put(t.Context(), "x", bad); interlock.Kind(err) != interlock.Bug {
			t.Errorf("%v", err)
		}
	}
	if got, _ := v.Get(t.Context(), "x"); string(got.Data) != "c" {
		t.Errorf("a refused write left %q", got.Data)
	}
}

// collector checks the order of what a watcher receives.
type collector struct {
	mu     sync.Mutex
	values []driver.Value
	wrong  error
}

func (c *collector) add(v driver.Value) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.values); n > 0 && v.Token < c.values[n-1].Token {
		c.wrong = fmt.Errorf("token %d after %d", v.Token, c.values[n-1].Token)
	}
	c.values = append(c.values, v)
}

func (c *collector) last() (data string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.values) == 0 {
		return "", 0
	}
	return string(c.values[len(c.values)-1].Data), len(c.values)
}

// watchValue watches until the test ends.
func watchValue(t testing.TB, v *Values, name string) *collector {
	t.Helper()
	c := &collector{}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- v.Watch(ctx, name, c.add) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
		if c.wrong != nil {
			t.Error(c.wrong)
		}
	})
	testbed.Eventually(t, "the first value", bound, func() bool { _, n := c.last(); return n > 0 })
	return c
}

func TestWatchersSeeValuesInTokenOrder(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	v := NewValues(dial(t, server.Addr()), "")
	c, again := watchValue(t, v, "x"), watchValue(t, v, "x")
	base := time.Now().UnixMicro() - interlock.EpochUnixMicro
	for i := range 200 {
		value := driver.Value{Data: fmt.Append(nil, i), Token: tokenOf(t, base+int64(i/2), 0)}
		if err := v.Put(t.Context(), "x", value); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	for _, c := range []*collector{c, again} {
		testbed.Eventually(t, "the last value", bound, func() bool { data, _ := c.last(); return data == "199" })
	}
	if took := time.Since(began); took > reread/2 {
		t.Errorf("the last value was seen after %v, so not by its message", took)
	}
}

func TestValueIsSeenOverAnInterruption(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t, "--appendonly", "yes", "--appendfsync", "always")
	proxy := testbed.NewProxy(t, server.Addr())
	writer := NewValues(dial(t, server.Addr()), "")
	c := watchValue(t, NewValues(dial(t, proxy.Addr()), ""), "x")
	put := func(data string, counter int64) {
		t.Helper()
		testbed.Eventually(t, "it is written", bound, func() bool {
			return writer.Put(t.Context(), "x", driver.Value{Data: []byte(data), Token: tokenOf(t, counter, 0)}) == nil
		})
	}
	for i, interrupt := range []func() func(){
		func() func() { proxy.Cut(); return proxy.Heal },
		func() func() { server.Restart(); return func() {} },
	} {
		repair := interrupt()
		want := fmt.Sprint("after ", i)
		put(want, int64(i+1))
		repair()
		testbed.Eventually(t, want, bound, func() bool { data, _ := c.last(); return data == want })
	}
}

// Watchers do not go back after the server lost all data or a part.
func TestWatcherDoesNotGoBackAfterALossOfData(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	v, token := NewValues(dial(t, server.Addr()), ""), tokenOf(t, 7, 0)
	c := watchValue(t, v, "x")
	put := func(data string, token interlock.Token) {
		t.Helper()
		testbed.Eventually(t, "it is written", bound, func() bool {
			return v.Put(t.Context(), "x", driver.Value{Data: []byte(data), Token: token}) == nil
		})
	}
	see := func(data string) {
		t.Helper()
		testbed.Eventually(t, data, bound, func() bool { last, _ := c.last(); return last == data })
	}
	put("new", token)
	see("new")
	server.Restart()
	put("newer", token) // the server counts its writes from 1
	see("newer")

	server.Restart()
	operator := dial(t, server.Addr())
	reads := func() int { return calls(t, operator)["hgetall"] }
	testbed.Eventually(t, "the watcher reads nothing", bound, func() bool { return reads() > 0 })
	before := reads()
	put("stale", tokenOf(t, 6, 0))
	testbed.Eventually(t, "the watcher reads what is stale", bound, func() bool { return reads() > before })
	put("newest", token)
	see("newest")
}

func TestWatchOfAValueThatCannotBe(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	client := dial(t, server.Addr())
	v := NewValues(client, "")
	mustDo(t, client, "SET", v.key("bad"), "a string")
	for name, want := range map[string]interlock.ErrorKind{"bad": interlock.Definite, "": interlock.Bug} {
		if err := v.Watch(t.Context(), name, func(driver.Value) {}); interlock.Kind(err) != want {
			t.Errorf("%q: %v", name, err)
		}
	}
	server.Kill()
	if err := v.Watch(t.Context(), "x", func(driver.Value) {}); interlock.Kind(err) != interlock.Retryable {
		t.Errorf("without a server: %v", err)
	}
}
