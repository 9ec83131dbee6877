package overload

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/virtual"
)

var (
	errBroken = errors.New("broken")
	errBusy   = &RejectedError{Reason: "busy", RetryAfter: 2 * time.Second}
)

// answers calls a backend that returns err, and returns the number of calls and the last error.
func answers(ctx context.Context, p *Policy, err error) (calls int, last error) {
	_, last = Call(ctx, p, func(context.Context) (int, error) {
		calls++
		return calls, err
	})
	return calls, last
}

func TestRetries(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		p := policy(t, nil)
		begun := time.Now()
		calls, err := answers(t.Context(), p, errBusy)
		if rejected, found := errors.AsType[*RejectedError](err); calls != 3 || !found || !rejected.NoRetry || interlock.Kind(err) != interlock.Definite {
			t.Errorf("%d calls, %v", calls, err)
		}
		// Two waits: two seconds plus up to one, and two seconds plus up to two.
		if took := time.Since(begun); took <= 4*time.Second || took > 7*time.Second {
			t.Errorf("it took %v", took)
		}
		for name, err := range map[string]error{"another error": errBroken, "no retry": &RejectedError{NoRetry: true},
			"unknown": &interlock.Error{Op: "x", Kind: interlock.Uncertain, Err: errBroken}} {
			if calls, got := answers(t.Context(), p, err); calls != 1 || got == nil {
				t.Errorf("%s: %d calls, %v", name, calls, got)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		begun = time.Now()
		if calls, _ := answers(ctx, p, errBusy); calls != 1 || time.Since(begun) != 0 {
			t.Errorf("too late to retry: %d calls, %v", calls, time.Since(begun))
		}
		for _, after := range []time.Duration{2 * time.Second, 30 * 365 * 24 * time.Hour, math.MaxInt64} {
			gone, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			if calls, _ := answers(gone, p, &RejectedError{RetryAfter: after}); calls != 1 {
				t.Errorf("cancelled while it waits for %v: %d calls", after, calls)
			}
		}
		if calls, err := answers(t.Context(), p, nil); calls != 1 || err != nil {
			t.Errorf("%d calls, %v", calls, err)
		}
		if calls, _ := answers(t.Context(), policy(t, &Options{Attempts: 1}), errBusy); calls != 1 {
			t.Errorf("one attempt: %d calls", calls)
		}
		if calls, _ := answers(t.Context(), policy(t, &Options{Retries: -1}), errBusy); calls != 1 {
			t.Errorf("no retries: %d calls", calls)
		}
	})
}

// TestRetryBudget: a tenth of many calls is retried, after the first ten retries.
func TestRetryBudget(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		p, retries := policy(t, &Options{OpenFor: -1}), 0
		for range 1000 {
			calls, _ := answers(t.Context(), p, &interlock.Error{Op: "x", Kind: interlock.Retryable, Err: errBroken})
			retries += calls - 1
		}
		if retries < 105 || retries > 110 {
			t.Errorf("%d retries of 1000 calls", retries)
		}
	})
}

// TestThrottle: a backend that accepts a quarter of the calls receives little more than twice what it
// accepts; one that accepts half receives nearly all.
func TestThrottle(t *testing.T) {
	for _, c := range []struct {
		every       time.Duration
		least, most int
	}{{4 * time.Millisecond, 500, 1500}, {2 * time.Millisecond, 2000, 3000}} {
		virtual.Test(t, func(t *testing.T) {
			p, asked, free := policy(t, &Options{Retries: -1}), 0, time.Now()
			for range 3000 {
				_, _ = Call(t.Context(), p, func(context.Context) (int, error) {
					asked++
					if time.Now().Before(free) {
						return 0, errBusy
					}
					free = time.Now().Add(c.every)
					return 0, nil
				})
				time.Sleep(time.Millisecond)
			}
			if asked < c.least || asked > c.most {
				t.Errorf("one call in %v is done: %d of 3000 were made", c.every, asked)
			}
		})
	}
}

// TestBreakerAndCancelledCalls: if most callers leave, those that stay decide.
func TestBreakerAndCancelledCalls(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		p := policy(t, nil)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		for range 20 {
			_, _ = answers(gone, p, errBroken)
			_, _ = answers(gone, p, errBroken)
			_, _ = answers(t.Context(), p, errBroken)
		}
		if calls, err := answers(t.Context(), p, errBroken); calls != 0 {
			t.Errorf("20 of 20 calls failed, beside 40 cancelled ones, and the breaker is closed: %v", err)
		}
		time.Sleep(5 * time.Second)
		trials := 0
		for range 10 {
			calls, _ := answers(gone, p, errBroken)
			trials += calls
		}
		if trials != 1 {
			t.Errorf("%d calls of 10 were made although each was cancelled", trials)
		}
		time.Sleep(5 * time.Second)
		for range 10 {
			if calls, err := answers(t.Context(), p, nil); calls != 1 || err != nil {
				t.Fatalf("the backend works again: %v", err)
			}
		}
	})
}

func TestBreaker(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		p := policy(t, &Options{IsFailure: func(err error) bool { return err == errBroken }})
		for range 100 { // rejections and other non-failures do not open it
			if calls, _ := answers(t.Context(), p, io.EOF); calls != 1 {
				t.Fatal("the breaker is open")
			}
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		for range 100 { // nor do cancelled calls
			if calls, _ := answers(gone, p, errBroken); calls != 1 {
				t.Fatal("the breaker is open")
			}
		}
		time.Sleep(11 * time.Second)
		open := func() bool {
			calls, err := answers(t.Context(), p, errBroken)
			return calls == 0 && reasonOf(err) == "the circuit breaker is open" && interlock.Kind(err) == interlock.Definite
		}
		for i := range 20 {
			if open() {
				t.Fatalf("open after %d failures", i)
			}
		}
		if !open() {
			t.Fatal("closed after 20 failures")
		}
		time.Sleep(5 * time.Second)
		if calls, _ := answers(t.Context(), p, errBroken); calls != 1 {
			t.Fatal("it does not try")
		}
		for i := 0; !open(); i++ {
			if i > 2 {
				t.Fatal("it does not open again")
			}
		}
		time.Sleep(5 * time.Second)
		for range 10 {
			if calls, err := answers(t.Context(), p, nil); calls != 1 || err != nil {
				t.Fatalf("the backend works again: %v", err)
			}
		}
	})
}

// TestHedge: a slow call gets a second attempt, and the first result counts.
func TestHedge(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		p := policy(t, &Options{Hedge: 50 * time.Millisecond})
		var calls, ended atomic.Int64
		slowFirst := func(ctx context.Context) (int64, error) {
			n := calls.Add(1)
			defer ended.Add(1)
			if n > 1 {
				return n, nil
			}
			select {
			case <-ctx.Done():
			case <-time.After(time.Minute):
			}
			return n, ctx.Err()
		}
		begun := time.Now()
		if v, err := Call(t.Context(), p, slowFirst); v != 2 || err != nil || time.Since(begun) != 50*time.Millisecond {
			t.Errorf("%d, %v after %v", v, err, time.Since(begun))
		}
		synctest.Wait()
		if calls.Load() != 2 || ended.Load() != 2 {
			t.Errorf("%d calls, %d ended", calls.Load(), ended.Load())
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if v, err := Call(ctx, p, func(context.Context) (int, error) { return 7, nil }); err == nil && v != 7 {
			t.Errorf("cancelled: %d, %v", v, err)
		}
	})
}

// TestHedgeBudget: a tenth of many slow calls gets a second attempt, after the first ten.
func TestHedgeBudget(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		p, made := policy(t, &Options{Hedge: time.Millisecond}), atomic.Int64{}
		for range 1000 {
			if _, err := Call(t.Context(), p, func(context.Context) (int, error) {
				made.Add(1)
				time.Sleep(2 * time.Millisecond)
				return 0, nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		if n := made.Load() - 1000; n < 105 || n > 110 {
			t.Errorf("%d second attempts of 1000 calls", n)
		}
	})
}

// TestOnce: a call that is not idempotent has one attempt, without hedging.
func TestOnce(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		calls := 0
		_, err := Once(t.Context(), policy(t, &Options{Hedge: time.Millisecond}), func(context.Context) (int, error) {
			calls++
			time.Sleep(time.Second)
			return 0, errBusy
		})
		if rejected, found := errors.AsType[*RejectedError](err); calls != 1 || !found || !rejected.NoRetry {
			t.Errorf("%d calls, %v", calls, err)
		}
	})
}

// TestHedgedPanic: the panic of a call that may be hedged reaches the caller, as any other does. A call
// that ends its goroutine fails.
func TestHedgedPanic(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		p := policy(t, &Options{Hedge: time.Hour})
		if _, err := Call(t.Context(), p, func(context.Context) (int, error) { runtime.Goexit(); return 0, nil }); interlock.Kind(err) != interlock.Uncertain {
			t.Errorf("it ended its goroutine: %v", err)
		}
		defer func() {
			if r := recover(); r != "boom" {
				t.Errorf("%v", r)
			}
		}()
		_, _ = Call(t.Context(), p, func(context.Context) (int, error) { panic("boom") })
	})
}

// TestTransportHedge: a repeatable request is hedged. The answer that counts can be read until
// its body is closed, and the other answer is closed.
func TestTransportHedge(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			method, upgrade string
			want            int64
		}{"put": {"PUT", "", 2}, "post": {"POST", "", 1}, "upgrade": {"GET", "websocket", 1}} {
			var calls atomic.Int64
			var bodies [2]*body
			var contexts [2]context.Context
			var sent [2]string
			tr := policy(t, &Options{Hedge: 50 * time.Millisecond}).Transport(roundTrip(func(r *http.Request) (*http.Response, error) {
				i := calls.Add(1) - 1
				text, _ := io.ReadAll(r.Body)
				contexts[i], sent[i], bodies[i] = r.Context(), string(text), &body{Reader: strings.NewReader("answer")}
				if i == 0 {
					time.Sleep(time.Second)
				}
				return &http.Response{StatusCode: 200, Body: bodies[i]}, nil
			}))
			r, err := http.NewRequestWithContext(t.Context(), c.method, "http://backend.test/", strings.NewReader("text"))
			ok(t, err)
			if c.upgrade != "" {
				r.Header.Set("Upgrade", c.upgrade)
			}
			resp, err := tr.RoundTrip(r)
			if err != nil || calls.Load() != c.want {
				t.Fatalf("%s: %v, %d calls", name, err, calls.Load())
			}
			counts := c.want - 1
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if text, err := io.ReadAll(resp.Body); string(text) != "answer" || err != nil || contexts[counts].Err() != nil || bodies[counts].closed {
				t.Errorf("%s: %q, %v, context %v", name, text, err, contexts[counts].Err())
			}
			if err := resp.Body.Close(); err != nil || !bodies[counts].closed {
				t.Errorf("%s: %v", name, err)
			}
			if c.want == 2 && (!bodies[0].closed || contexts[0].Err() == nil || contexts[1].Err() == nil || sent != [2]string{"text", "text"}) {
				t.Errorf("%s: the slow attempt is open, sent %q, contexts %v, %v", name, sent, contexts[0].Err(), contexts[1].Err())
			}
		}
	})
}

// TestHTTP: a full server answers 503, its client retries, and the callers of the client do not.
func TestHTTP(t *testing.T) {
	server := policy(t, &Options{MaxRunning: 1, MaxWaiting: -1})
	inside, leave := make(chan struct{}), make(chan struct{})
	var class atomic.Value
	s := httptest.NewServer(server.Handler(HeaderClassOf, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		class.Store(ClassOf(r.Context()))
		if r.URL.Path == "/slow" {
			inside <- struct{}{}
			<-leave
		}
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(body)
	})))
	defer s.Close()
	slow := make(chan error, 1)
	go func() {
		resp, err := http.Get(s.URL + "/slow")
		if err == nil {
			resp.Body.Close()
		}
		slow <- err
	}()
	<-inside
	resp, err := http.Get(s.URL)
	ok(t, err)
	resp.Body.Close()
	if resp.StatusCode != 503 || resp.Header.Get("Retry-After") != "1" || resp.Header.Get(HeaderNoRetry) != "" {
		t.Errorf("%s, %v", resp.Status, resp.Header)
	}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := Call(r.Context(), policy(t, &Options{Retries: -1}), func(context.Context) (int, error) { return 0, errBusy })
		Reject(w, err)
	}))
	defer front.Close()
	calls := &counting{next: http.DefaultTransport}
	client := &http.Client{Transport: policy(t, nil).Transport(calls)}
	if resp, err = client.Get(front.URL); err != nil || resp.StatusCode != 503 || resp.Header.Get(HeaderNoRetry) != "true" || calls.n.Load() != 1 {
		t.Errorf("through another client: %v, %d calls", err, calls.n.Load())
	}
	resp.Body.Close()
	close(leave)
	ok(t, <-slow)
	r, err := http.NewRequestWithContext(WithClass(t.Context(), SheddablePlus), http.MethodPut, s.URL, strings.NewReader("text"))
	ok(t, err)
	if resp, err = client.Do(r); err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if string(body) != "text" || err != nil || class.Load() != SheddablePlus {
		t.Errorf("%q, %v, class %v", body, err, class.Load())
	}
	client.CloseIdleConnections()
	http.DefaultClient.CloseIdleConnections()
}

// counting counts the requests that it sends.
type counting struct {
	next http.RoundTripper
	n    atomic.Int64
}

func (c *counting) RoundTrip(r *http.Request) (*http.Response, error) {
	c.n.Add(1)
	return c.next.RoundTrip(r)
}

// body records whether it was closed.
type body struct {
	io.Reader
	closed bool
}

func (b *body) Close() error {
	b.closed = true
	return nil
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestTransport: which requests a transport repeats.
func TestTransport(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			method, key string
			stream      bool
			status      int
			err         error
			want        int
		}{
			"get":                  {method: "GET", status: 503, want: 3},
			"too many":             {method: "GET", status: 429, want: 3},
			"gateway":              {method: "DELETE", status: 502, want: 3},
			"connection":           {method: "PUT", err: io.ErrUnexpectedEOF, want: 3},
			"post":                 {method: "POST", status: 503, want: 1},
			"post, connection":     {method: "POST", err: io.ErrUnexpectedEOF, want: 1},
			"post, gateway":        {method: "POST", status: 504, want: 1},
			"post with a key":      {method: "POST", key: "k", status: 503, want: 3},
			"a body that is gone":  {method: "PUT", stream: true, status: 503, want: 1},
			"an error of the code": {method: "GET", status: 500, want: 1},
			"no error":             {method: "GET", status: 404, want: 1},
		} {
			var bodies []*body
			var sent []string
			tr := policy(t, nil).Transport(roundTrip(func(r *http.Request) (*http.Response, error) {
				text, _ := io.ReadAll(r.Body)
				sent = append(sent, string(text))
				if c.err != nil {
					return nil, c.err
				}
				b := &body{Reader: strings.NewReader("answer")}
				bodies = append(bodies, b)
				return &http.Response{StatusCode: c.status, Status: http.StatusText(c.status), Header: http.Header{"Retry-After": {"2"}}, Body: b}, nil
			}))
			var content io.Reader = strings.NewReader("text")
			if c.stream {
				content = io.MultiReader(content)
			}
			r, err := http.NewRequestWithContext(t.Context(), c.method, "http://backend.test/", content)
			ok(t, err)
			if c.key != "" {
				r.Header.Set("Idempotency-Key", c.key)
			}
			begun := time.Now()
			resp, err := tr.RoundTrip(r)
			if len(sent) != c.want || strings.Join(sent, "") != strings.Repeat("text", c.want) {
				t.Errorf("%s: sent %q, want it %d times", name, sent, c.want)
			}
			if c.err != nil && !errors.Is(err, c.err) || c.err == nil && (err != nil || resp.StatusCode != c.status) {
				t.Errorf("%s: %v, %v", name, resp, err)
			}
			rejects := c.status == 503 || c.status == 429
			if err == nil && (resp.Header.Get(HeaderNoRetry) != "") != rejects {
				t.Errorf("%s: %v", name, resp.Header)
			}
			for i, b := range bodies {
				if b.closed != (i < len(bodies)-1) {
					t.Errorf("%s: answer %d closed: %v", name, i, b.closed)
				}
			}
			if waited := time.Since(begun) >= 4*time.Second; waited != (c.want == 3 && rejects) {
				t.Errorf("%s: it took %v", name, time.Since(begun))
			}
		}
	})
}

// TestTransportRejects: the body of a request that this process rejects is closed, as net/http
// requires.
func TestTransportRejects(t *testing.T) {
	p := policy(t, nil)
	for range 100 {
		_, _ = answers(t.Context(), p, errBroken)
	}
	b := &body{Reader: strings.NewReader("x")}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://backend.test/", b)
	ok(t, err)
	if resp, err := p.Transport(nil).RoundTrip(r); resp != nil || reasonOf(err) == "" || !b.closed {
		t.Errorf("%v, %v, closed: %v", resp, err, b.closed)
	}
}

// TestTransportRejectsRetry: if this process rejects a retry, the previous answer is closed.
func TestTransportRejectsRetry(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		p, b := policy(t, nil), &body{Reader: strings.NewReader("x")}
		tr := p.Transport(roundTrip(func(*http.Request) (*http.Response, error) {
			for range 20 { // other calls open the breaker
				_, _ = answers(t.Context(), p, errBroken)
			}
			return &http.Response{StatusCode: 503, Body: b}, nil
		}))
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://backend.test/", nil)
		ok(t, err)
		if resp, err := tr.RoundTrip(r); resp != nil || reasonOf(err) != "the circuit breaker is open" || !b.closed {
			t.Errorf("%v, %v, closed: %v", resp, err, b.closed)
		}
	})
}
