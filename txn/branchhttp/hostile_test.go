package branchhttp_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/branchhttp"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
)

// A talker serves one connection, and answers its requests in any way, until it returns.
type talker func(conn net.Conn, next func() (*http.Request, bool))

// talks serves each connection by a talker, and returns the address.
func talks(t *testing.T, talk talker) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	txntest.OK(t, err)
	var work sync.WaitGroup
	work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			context.AfterFunc(t.Context(), func() { conn.Close() })
			work.Go(func() {
				defer conn.Close()
				talk(conn, requests(conn))
			})
		}
	})
	t.Cleanup(func() { l.Close(); work.Wait() })
	return "http://" + l.Addr().String()
}

// requests returns a function that reads the next whole request of a connection.
func requests(conn net.Conn) func() (*http.Request, bool) {
	from := bufio.NewReader(conn)
	return func() (*http.Request, bool) {
		r, err := http.ReadRequest(from)
		if err == nil {
			_, err = io.Copy(io.Discard, r.Body)
		}
		return r, err == nil
	}
}

// endless writes the same text until the connection fails.
func endless(conn net.Conn, text string) {
	for _, err := io.WriteString(conn, text); err == nil; _, err = io.WriteString(conn, text) {
	}
}

// TestHostileAnswers: the call ends at its deadline whatever a participant sends, and its error
// claims no more than is known.
func TestHostileAnswers(t *testing.T) {
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	_, _ = z.Write(bytes.Repeat([]byte{' '}, 2<<20))
	_ = z.Close()
	chunk := fmt.Sprintf("%x\r\n%s\r\n", 1<<16, strings.Repeat(" ", 1<<16))
	for name, c := range map[string]struct {
		head, then string // once, and then repeated forever; empty is silence
		class      branch.Class
		kind       interlock.ErrorKind
		status     int
	}{
		"nothing":          {"", "", branch.ClassUnknown, interlock.Uncertain, 0},
		"another protocol": {"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", "", branch.ClassUnknown, interlock.Uncertain, 101},
		"wait":             {"", "HTTP/1.1 100 Continue\r\n\r\n", branch.ClassUnknown, interlock.Uncertain, 0},
		"hints":            {"", "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", branch.ClassUnknown, interlock.Uncertain, 0},
		"endless line":     {"HTTP/1.1 200 ", strings.Repeat("x", 1<<16), branch.ClassUnknown, interlock.Uncertain, 0},
		"endless headers":  {"HTTP/1.1 200 OK\r\n", "X: " + strings.Repeat("x", 1<<12) + "\r\n", branch.ClassUnknown, interlock.Uncertain, 0},
		"endless output":   {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", chunk, branch.ClassUnknown, interlock.Uncertain, 0},
		"silent output":    {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{", "", branch.ClassUnknown, interlock.Uncertain, 0},
		"output of a bomb": {"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: " + fmt.Sprint(bomb.Len()) + "\r\n\r\n" + bomb.String(), "", branch.ClassUnknown, interlock.Uncertain, 0},
		"no HTTP":          {"SSH-2.0-OpenSSH_9.7\r\n", "", branch.ClassUnknown, interlock.Uncertain, 0},
		"endless refusal":  {"HTTP/1.1 409 Conflict\r\nTransfer-Encoding: chunked\r\n\r\n", chunk, branch.ClassFail, interlock.Definite, 409},
		"silent refusal":   {"HTTP/1.1 409 Conflict\r\nContent-Length: 20\r\n\r\nno", "", branch.ClassFail, interlock.Definite, 409},
		"old refusal":      {"HTTP/1.0 409 Conflict\r\n\r\nno", "", branch.ClassFail, interlock.Definite, 409},
		"refusal first":    {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 409 Conflict\r\nContent-Length: 0\r\n\r\n", "", branch.ClassFail, interlock.Definite, 409},
		"no status":        {"HTTP/1.1 999 \r\nContent-Length: 0\r\n\r\n", "", branch.ClassUnknown, interlock.Uncertain, 999},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := talks(t, func(conn net.Conn, next func() (*http.Request, bool)) {
				if _, ok := next(); !ok {
					return
				}
				_, _ = io.WriteString(conn, c.head)
				if c.then != "" {
					endless(conn, c.then)
				}
				next() // waits until the other side closes
			})
			call := a(branch.Try)
			call.Deadline = time.Now().Add(5 * time.Second) // an immediate answer must be read before it
			came := make(chan error, 1)
			go func() {
				_, err := caller(t).Post(t.Context(), url, call, []byte(`{}`))
				came <- err
			}()
			select {
			case err := <-came:
				mustBe(t, err, c.class, c.kind, c.status)
			case <-time.After(testbed.Patience):
				t.Error("the call does not end")
			}
		})
	}
}

// TestAnswersOfOldServers: an answer that ends with the connection is complete.
func TestAnswersOfOldServers(t *testing.T) {
	for head, want := range map[string]string{
		"HTTP/1.0 200 OK\r\n\r\n{\"a\":1}":                                                `{"a":1}`,
		"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n[1]":                                 `[1]`,
		"HTTP/1.0 200 OK\r\n\r\n":                                                         ``,
		"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 201 Made\r\nContent-Length: 1\r\n\r\n7": `7`,
	} {
		url := talks(t, func(conn net.Conn, next func() (*http.Request, bool)) {
			if _, ok := next(); ok {
				_, _ = io.WriteString(conn, head)
			}
		})
		if output, err := caller(t).Post(t.Context(), url, a(branch.Do), []byte(`{}`)); err != nil || string(output) != want {
			t.Errorf("%q: %q, %v", head, output, err)
		}
	}
}

// TestRetryAfter: seconds or a date count, up to a day. A 425 is at least a second; a 429 and a 503 ask for
// a pause and stay Unknown.
func TestRetryAfter(t *testing.T) {
	const hours = 2 * time.Hour
	date := time.Now().Add(hours).UTC().Format(http.TimeFormat)
	for text, want := range map[string]time.Duration{
		"7": 7 * time.Second, "": 0, "0": 0, "86400": 24 * time.Hour, "86401": 24 * time.Hour, "2147483647": 24 * time.Hour,
		"2147483648": 0, "99999999999999999999": 0, "-5": 0, "+5": 0, "1.5": 0, "1e3": 0, "5s": 0,
		"1, 2": 0, "Wed, 21 Oct 2065 07:28:00 GMT": 24 * time.Hour, "Mon, 02 Jan 2006 15:04:05 GMT": 0, date: hours,
	} {
		for code, least := range map[int]time.Duration{425: time.Second, 429: 0, 503: 0} {
			_, err := caller(t).Post(t.Context(), participant(t, status(code, text)), a(branch.Do), nil)
			if code == 425 {
				mustBe(t, err, branch.ClassInProgress, interlock.Retryable, 425)
			} else {
				mustBe(t, err, branch.ClassUnknown, interlock.Uncertain, code)
			}
			if _, after := branch.ClassOf(err); after != max(want, least) && (text != date || after > hours || after < hours-time.Minute) {
				t.Errorf("%d with %q is %v, want %v", code, text, after, max(want, least))
			}
		}
	}
	for code, want := range map[int]time.Duration{429: 7 * time.Second, 500: 0} { // passed on
		busy := participant(t, status(code, "7"))
		url := participant(t, branchhttp.Handler(func(ctx context.Context, _ []byte) ([]byte, error) {
			return nil, branch.Retry(txntest.Second(caller(t).Post(ctx, busy, a(branch.Do), nil)))
		}))
		_, err := caller(t).Post(t.Context(), url, a(branch.Do), nil)
		mustBe(t, err, branch.ClassUnknown, interlock.Uncertain, 503)
		if _, after := branch.ClassOf(err); after != want {
			t.Errorf("after a %d: %v", code, after)
		}
	}
}

// TestNothingIsSentTwice: if a reused connection ends, the transport sends the request again
// only if it had sent nothing of it: it repeats no request that may have arrived.
func TestNothingIsSentTwice(t *testing.T) {
	var mu sync.Mutex
	came := map[string]int{} // by attempt
	random := rand.New(rand.NewPCG(3, 3))
	url := talks(t, func(conn net.Conn, next func() (*http.Request, bool)) {
		for {
			r, ok := next()
			if !ok {
				return
			}
			mu.Lock()
			came[r.Header.Get(branchhttp.HeaderAttempt)]++
			leave, pause := random.IntN(4), time.Duration(random.IntN(300))*time.Microsecond
			mu.Unlock()
			if leave == 0 {
				return // without an answer
			}
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			if leave == 1 {
				time.Sleep(pause) // the next request may be on its way
				return
			}
		}
	})
	caller, answered := caller(t), 0
	for i := range 400 {
		c := a(branch.Do)
		c.Attempt = i + 1
		input := []byte(`{}`)
		if i%2 == 0 {
			input = nil // without a body, a transport repeats most easily
		}
		_, err := caller.Post(t.Context(), url, c, input)
		mu.Lock()
		n := came[fmt.Sprint(c.Attempt)]
		mu.Unlock()
		switch class, _ := branch.ClassOf(err); {
		case n > 1:
			t.Fatalf("request %d came %d times", i, n)
		case err == nil && n == 0, n == 1 && err != nil && class != branch.ClassUnknown:
			t.Fatalf("request %d came %d times: %v", i, n, err)
		case err == nil:
			answered++
		}
	}
	if answered < 100 || answered == 400 {
		t.Errorf("%d answers: it is no test", answered)
	}
}

// TestLateAnswerIsNobodys: the answer to an abandoned call is not taken for that of the next
// one.
func TestLateAnswerIsNobodys(t *testing.T) {
	given := make(chan struct{})
	url := talks(t, func(conn net.Conn, next func() (*http.Request, bool)) {
		for r, ok := next(); ok; r, ok = next() {
			if r.Header.Get(branchhttp.HeaderBranch) == "slow" {
				<-given
			}
			name := fmt.Sprintf("%q", r.Header.Get(branchhttp.HeaderBranch))
			_, _ = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(name), name)
		}
	})
	caller := caller(t)
	ask := func(name string, after time.Duration) (string, error) {
		c := a(branch.Do)
		c.Branch, c.Deadline = name, time.Now().Add(after)
		output, err := caller.Post(t.Context(), url, c, nil)
		return string(output), err
	}
	if got, err := ask("first", time.Minute); got != `"first"` {
		t.Fatal(got, err)
	}
	_, err := ask("slow", 50*time.Millisecond) // on the same connection
	mustBe(t, err, branch.ClassUnknown, interlock.Uncertain, 0)
	close(given)
	for range 20 {
		if got, err := ask("next", time.Minute); got != `"next"` {
			t.Fatal(got, err)
		}
	}
}
