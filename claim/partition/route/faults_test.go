package route_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/claim/partition"
	"github.com/interlock-dev/interlock/claim/partition/route"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/observe"
)

// distant is a store of values with slow answers.
type distant struct {
	*memory.Values
	away time.Duration
}

func (d distant) Get(ctx context.Context, name string) (driver.Value, error) {
	select {
	case <-time.After(d.away):
	case <-ctx.Done():
	}
	return d.Values.Get(ctx, name)
}

// single starts the only member of a group, with its own handler.
func (s *shop) single(values driver.Values, hooks *observe.Partition, next http.HandlerFunc) (*member, *memory.Driver) {
	s.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testbed.OK(s.t, err)
	d := s.space.Open(&memory.Options{TTL: 2 * time.Second})
	s.t.Cleanup(func() { _ = d.Close(context.Background()) })
	g, err := partition.Join(s.t.Context(), d, values, "shop", partition.Layout{Partitions: 8},
		&partition.Options{Identity: "single", Address: l.Addr().String(), Hooks: hooks})
	testbed.OK(s.t, err)
	server := &httptest.Server{Listener: l, Config: &http.Server{Handler: route.Handler(g, keyOf, next, nil)}}
	server.Start()
	s.t.Cleanup(server.Close)
	s.t.Cleanup(func() { _ = g.Leave(context.Background()) })
	return &member{g, server.URL}, d
}

// TestARequestIsForwardedUnchanged, with a query that cannot be parsed, and a body without a bound.
func TestARequestIsForwardedUnchanged(t *testing.T) {
	s := open(t)
	m, _ := s.single(s.space.Values(), nil, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		fmt.Fprint(w, r.URL.RawQuery, " ", string(body), err)
	})
	router := httptest.NewServer(route.Router(m.Map(), keyOf, &route.Options{Transport: s.http.Transport, Wait: time.Minute, MaxBody: math.MaxInt64}))
	defer router.Close()
	if code, text := s.post(router.URL, "7?size=50%&color=red;blue", ""); code != http.StatusOK || text != "size=50%&color=red;blue one please<nil>" {
		t.Errorf("%d %q", code, text)
	}
}

// TestAnOwnerThatIsAboutToLetCallersIn: others see its lock before it has confirmed the
// layout, and it refuses callers until then.
func TestAnOwnerThatIsAboutToLetCallersIn(t *testing.T) {
	s := open(t)
	m, err := func() (*partition.Map, error) {
		d := s.space.Open(nil)
		t.Cleanup(func() { _ = d.Close(context.Background()) })
		s.single(distant{s.space.Values(), 300 * time.Millisecond}, nil, s.order)
		return partition.Follow(t.Context(), d, s.space.Values(), "shop")
	}()
	testbed.OK(t, err)
	defer m.Close()
	router := httptest.NewServer(route.Router(m, keyOf, &route.Options{Transport: s.http.Transport, Wait: 10 * time.Second}))
	defer router.Close()
	if code, text := s.post(router.URL, "7", ""); code != http.StatusOK {
		t.Errorf("%d %s", code, text)
	}
}

// TestWhatIsServedIsNotForwarded: a request whose claim is lost while it is served was
// executed here, and is not forwarded to the next owner.
func TestWhatIsServedIsNotForwarded(t *testing.T) {
	s := open(t)
	var served atomic.Int64
	var d *memory.Driver
	m, d := s.single(s.space.Values(), nil, func(w http.ResponseWriter, r *http.Request) {
		served.Add(1)
		c, _ := route.Claim(r.Context())
		_, _, err := d.Break(r.Context(), driver.Break{Name: c.Name(), Owner: c.Owner(), Reason: "test", By: "test"})
		if err != nil {
			t.Error(err)
		}
		<-r.Context().Done()
		w.WriteHeader(http.StatusAccepted)
	})
	s.settled(m)
	if code, text := s.post(m.url, "7", ""); code != http.StatusAccepted || served.Load() != 1 {
		t.Errorf("served %d times: %d %s", served.Load(), code, text)
	}
}

// TestRefusalsAreCounted: requests by a stale route count, requests to be forwarded do not.
func TestRefusalsAreCounted(t *testing.T) {
	s := open(t)
	var refused atomic.Int64
	a, _ := s.single(s.space.Values(), &observe.Partition{Refused: func(observe.PartitionRefused) { refused.Add(1) }}, s.order)
	b := s.join("b")
	s.settled(a, b)
	var key string
	for i := 0; ; i++ {
		if _, ok := b.Claim(fmt.Sprint(i)); ok {
			key = fmt.Sprint(i)
			break
		}
	}
	testbed.Eventually(t, "a knows where it is", 20*time.Second, func() bool { return a.Map().Locate(key).Identity == "b" })
	if code, text := s.post(a.url, key, ""); code != http.StatusOK || refused.Load() != 0 {
		t.Errorf("%d refusals on the way: %d %s", refused.Load(), code, text)
	}
	if code, _ := s.post(a.url, key, "4096"); code != http.StatusMisdirectedRequest || refused.Load() != 1 {
		t.Errorf("%d refusals: %d", refused.Load(), code)
	}
	for i := 0; ; i++ {
		if c, ok := a.Claim(fmt.Sprint(i)); ok {
			if code, _ := s.post(a.url, fmt.Sprint(i), (c.Token() - 4096).String()); code != http.StatusMisdirectedRequest || refused.Load() != 2 {
				t.Errorf("%d refusals with one by the epoch: %d", refused.Load(), code)
			}
			return
		}
	}
}

// lost is a transport whose answers are lost.
type lost struct{}

func (lost) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("read tcp 10.1.2.3: connection reset")
}

// TestTheInsideIsNotShown: the hook receives the full error, the client only the
// possible effect.
func TestTheInsideIsNotShown(t *testing.T) {
	s := open(t)
	a := s.join("a")
	s.settled(a)
	testbed.Eventually(t, "it is found", 20*time.Second, func() bool { return a.Map().Locate("7").Epoch != 0 })
	told := make(chan error, 1)
	router := httptest.NewServer(route.Router(a.Map(), keyOf, &route.Options{Transport: lost{},
		Failed: func(_ *http.Request, err error) { told <- err }}))
	defer router.Close()
	code, text := s.post(router.URL, "7", "")
	if code != http.StatusBadGateway || strings.Contains(text, "10.1.2.3") {
		t.Errorf("%d %s", code, text)
	}
	if err := <-told; !strings.Contains(err.Error(), "10.1.2.3") {
		t.Error(err)
	}
}

// TestFailuresFloodNoLog: requests whose owner does not answer are logged, up to 20 in a second.
func TestFailuresFloodNoLog(t *testing.T) {
	s := open(t)
	a := s.join("a")
	s.settled(a)
	testbed.Eventually(t, "it is found", 20*time.Second, func() bool { return a.Map().Locate("7").Epoch != 0 })
	router, lines := route.Router(a.Map(), keyOf, &route.Options{Transport: lost{}}), testbed.CaptureLog(t)
	for range 200 {
		router.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/orders/7", nil))
	}
	if n := strings.Count(lines.String(), "not routed"); n == 0 || n > 100 {
		t.Errorf("logged %d times", n)
	}
}

// TestConnectionsAreUpgraded: WebSockets and the like reach the owner.
func TestConnectionsAreUpgraded(t *testing.T) {
	s := open(t)
	m, _ := s.single(s.space.Values(), nil, func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_ = rw.Flush()
		line, _ := rw.ReadString('\n')
		fmt.Fprint(rw, "you said ", line)
		_ = rw.Flush()
	})
	s.settled(m)
	router := httptest.NewServer(route.Router(m.Map(), keyOf, &route.Options{Transport: s.http.Transport}))
	defer router.Close()
	conn, err := net.Dial("tcp", router.Listener.Addr().String())
	testbed.OK(t, err)
	defer conn.Close()
	fmt.Fprint(conn, "GET /orders/7 HTTP/1.1\r\nHost: shop\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(resp, err)
	}
	fmt.Fprint(conn, "hello\n")
	if text, err := io.ReadAll(in); string(text) != "you said hello\n" {
		t.Errorf("%q, %v", text, err)
	}
}
