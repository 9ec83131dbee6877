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
	testbed.OK(t, err)
	return token
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
		testbed.OK(t, v.Put(t.Context(), "x", value))
	}
	began := time.Now()
	for _, c := range []*collector{c, again} {
		testbed.Eventually(t, "the last value", bound, func() bool { data, _ := c.last(); return data == "199" })
	}
	if took := time.Since(began); took > reread/2 {
		t.Errorf("the last value was seen after %v, so not by its message", took)
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
