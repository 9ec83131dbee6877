package branchhttp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/branchhttp"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// a returns a valid call.
func a(operation branch.Operation) branch.Call {
	return branch.Call{Transaction: "order/42", Branch: "charge", Operation: operation, Attempt: 1, Begun: time.UnixMilli(1)}
}

// participant serves a handler, and returns its address.
func participant(t *testing.T, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// caller returns a caller with its own connections, which end with the test.
func caller(t *testing.T) branchhttp.Caller {
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return branchhttp.Caller{Client: &http.Client{Transport: transport}}
}

// TestCallArrivesAsItWas, with any names.
func TestCallArrivesAsItWas(t *testing.T) {
	var got branch.Call
	url := participant(t, branchhttp.Handler(func(ctx context.Context, input []byte) ([]byte, error) {
		got = branch.From(ctx)
		return input, nil
	}))
	random := rand.New(rand.NewPCG(7, 7))
	name := func(longest int) string {
		n := 1 + random.IntN(longest/4)
		return strings.Map(func(r rune) rune { return max(1, r) }, strings.ToValidUTF8(randomText(random, n), "?"))
	}
	for i := range 200 {
		c := branch.Call{
			Transaction: name(200), Branch: name(255),
			Operation: []branch.Operation{branch.Do, branch.Undo, branch.Try, branch.Confirm, branch.Cancel, branch.Prepare,
				branch.Commit, branch.Rollback}[i%8],
			Attempt: 1 + random.IntN(math.MaxInt32-1), Begun: time.UnixMilli(1 + random.Int64N(1e13)),
		}
		if i%2 == 0 {
			c.Step, c.Epoch = name(255), interlock.Token(1+random.Int64N(math.MaxInt64))
			c.Deadline = time.UnixMilli(time.Now().Add(time.Hour).UnixMilli())
			c.Until = c.Deadline.Add(time.Hour)
		}
		output, err := caller(t).Post(t.Context(), url, c, []byte(`{"n":1}`))
		if err != nil || string(output) != `{"n":1}` {
			t.Fatalf("%+v: %q, %v", c, output, err)
		}
		if got != c {
			t.Fatalf("%+v arrived as %+v", c, got)
		}
	}
}

// TestHeadersOfAnEarlierCall do not remain, and others do.
func TestHeadersOfAnEarlierCall(t *testing.T) {
	to, c := http.Header{"Tenant": {"a"}}, a(branch.Try)
	earlier := c
	earlier.Step, earlier.Epoch, earlier.Deadline, earlier.Until = "2", 7, time.UnixMilli(8), time.UnixMilli(9)
	for _, want := range []branch.Call{earlier, c} {
		testbed.OK(t, branchhttp.SetHeaders(to, want))
		if got, err := branchhttp.FromRequest(&http.Request{Header: to}); got != want || err != nil {
			t.Errorf("%+v, %v, want %+v", got, err, want)
		}
	}
	if to.Get("Tenant") != "a" {
		t.Error("another header is gone")
	}
}

// randomText returns letters of all kinds.
func randomText(random *rand.Rand, n int) string {
	var b strings.Builder
	for range n {
		letters := []rune{rune(random.IntN(0x80)), rune(0xa0 + random.IntN(0x2000)), '/', '%', '\n', '🜁'}
		b.WriteRune(letters[random.IntN(len(letters))])
	}
	return b.String()
}

// TestAnswersAreClasses on both sides, one after the other.
func TestAnswersAreClasses(t *testing.T) {
	no := errors.New("no seat")
	for _, c := range []struct {
		err    error
		output string
		status int
		class  branch.Class
		kind   interlock.ErrorKind
		after  time.Duration
	}{
		{nil, `{"a":1}`, 200, 0, 0, 0},
		{nil, ``, 204, 0, 0, 0},
		{branch.Fail(no), ``, 409, branch.ClassFail, interlock.Definite, 0},
		{branch.InProgress(1500 * time.Millisecond), ``, 425, branch.ClassInProgress, interlock.Retryable, 2 * time.Second},
		{branch.InProgress(0), ``, 425, branch.ClassInProgress, interlock.Retryable, time.Second},
		{branch.InProgress(100 * time.Hour), ``, 425, branch.ClassInProgress, interlock.Retryable, 24 * time.Hour},
		{branch.Retry(no), ``, 503, branch.ClassUnknown, interlock.Uncertain, 0},
		{branch.Unknown(branch.Fail(no)), ``, 500, branch.ClassUnknown, interlock.Uncertain, 0},
		{no, ``, 500, branch.ClassUnknown, interlock.Uncertain, 0},
		{nil, `<html>`, 500, branch.ClassUnknown, interlock.Uncertain, 0},
		{nil, "\"\xff\"", 500, branch.ClassUnknown, interlock.Uncertain, 0},
		{nil, `"` + strings.Repeat("x", branchhttp.MaxBody) + `"`, 500, branch.ClassUnknown, interlock.Uncertain, 0},
	} {
		url := participant(t, branchhttp.Handler(func(context.Context, []byte) ([]byte, error) { return []byte(c.output), c.err }))
		output, err := caller(t).Post(t.Context(), url, a(branch.Do), nil)
		if c.status < 300 {
			if err != nil || string(output) != c.output {
				t.Errorf("%q became %q, %v", c.output, output, err)
			}
			continue
		}
		mustBe(t, err, c.class, c.kind, c.status)
		if _, after := branch.ClassOf(err); after != c.after {
			t.Errorf("%v: to be repeated after %v, want %v", c.err, after, c.after)
		}
		if c.err != nil && !strings.Contains(err.Error(), c.err.Error()) {
			t.Errorf("%q does not say %q", err, c.err)
		}
	}
}

// mustBe requires a class, an error kind and a status; 0 is no answer.
func mustBe(t *testing.T, err error, class branch.Class, kind interlock.ErrorKind, status int) {
	t.Helper()
	var said *branchhttp.AnswerError
	if got, _ := branch.ClassOf(err); err == nil || got != class || interlock.Kind(err) != kind {
		t.Errorf("%v: %v and %v, want %v and %v", err, got, interlock.Kind(err), class, kind)
	}
	if errors.As(err, &said) && said.Status != status || said == nil && status != 0 {
		t.Errorf("%v: want status %d", err, status)
	}
}

// TestForeignAnswers: of foreign participants, of proxies and of servers that are not
// participants.
func TestForeignAnswers(t *testing.T) {
	elsewhere := 0
	target := participant(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere++ }))
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		class  branch.Class
		kind   interlock.ErrorKind
		status int
	}{
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, target, http.StatusTemporaryRedirect)
		},
			branch.ClassUnknown, interlock.Uncertain, 307},
		"page": {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>welcome</html>") },
			branch.ClassUnknown, interlock.Uncertain, 0},
		"not found": {http.NotFound, branch.ClassUnknown, interlock.Uncertain, 404},
		"gateway":   {status(502, ""), branch.ClassUnknown, interlock.Uncertain, 502},
		"late":      {status(408, ""), branch.ClassUnknown, interlock.Uncertain, 408},
		"long output": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `"`+strings.Repeat("x", branchhttp.MaxBody)+`"`)
		}, branch.ClassUnknown, interlock.Uncertain, 0},
		"cut off": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, `{}`)
		}, branch.ClassUnknown, interlock.Uncertain, 0},
		"hung up": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
			branch.ClassUnknown, interlock.Uncertain, 0},
		"refusal cut off": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			w.WriteHeader(409)
			_, _ = io.WriteString(w, `no`)
		}, branch.ClassFail, interlock.Definite, 409},
	} {
		output, err := caller(t).Post(t.Context(), participant(t, c.answer), a(branch.Try), nil)
		t.Log(name, err)
		mustBe(t, err, c.class, c.kind, c.status)
		if _, after := branch.ClassOf(err); output != nil || after != 0 {
			t.Errorf("%s: %q, again after %v", name, output, after)
		}
	}
	if elsewhere > 0 {
		t.Error("a redirect was followed")
	}
}

func status(code int, retryAfter string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if retryAfter != "" {
			w.Header().Set("Retry-After", retryAfter)
		}
		w.WriteHeader(code)
	}
}

// TestRefusalIsKept, up to the bound.
func TestRefusalIsKept(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	url := participant(t, branchhttp.Handler(func(context.Context, []byte) ([]byte, error) { return nil, branch.Fail(errors.New(long)) }))
	_, err := caller(t).Post(t.Context(), url, a(branch.Do), nil)
	var said *branchhttp.AnswerError
	if !errors.As(err, &said) || said.Body != long[:4<<10] {
		t.Errorf("%.200v", err)
	}
}

// TestNothingWasSent: only then is it a Retry.
func TestNothingWasSent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testbed.OK(t, err)
	refusing := "http://" + l.Addr().String()
	l.Close()
	_, err = caller(t).Post(t.Context(), refusing, a(branch.Do), nil)
	mustBe(t, err, branch.ClassRetry, interlock.Retryable, 0)

	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS() // by an unknown certificate
	defer secure.Close()
	_, err = caller(t).Post(t.Context(), secure.URL, a(branch.Do), nil)
	mustBe(t, err, branch.ClassRetry, interlock.Retryable, 0)

	ended, cancel := context.WithCancelCause(t.Context())
	changed := errors.New("the caller changed its mind")
	cancel(changed)
	_, err = caller(t).Post(ended, refusing, a(branch.Do), nil)
	mustBe(t, err, branch.ClassRetry, interlock.Retryable, 0)
	if !errors.Is(err, changed) {
		t.Errorf("%v", err)
	}
}

// strange is a transport without httptrace that fails.
type strange struct{ err error }

func (s strange) RoundTrip(*http.Request) (*http.Response, error) { return nil, s.err }

// again is a transport that connects, sends, and then fails to connect again.
type again struct{ http.RoundTripper }

func (a again) RoundTrip(r *http.Request) (*http.Response, error) {
	if resp, err := a.RoundTripper.RoundTrip(r); err == nil {
		resp.Body.Close()
	}
	return nil, &net.OpError{Op: "dial", Err: errors.New("refused")}
}

// TestSomethingMayHaveBeenSent: the outcome is unknown.
func TestSomethingMayHaveBeenSent(t *testing.T) {
	by := func(transport http.RoundTripper) branchhttp.Caller {
		return branchhttp.Caller{Client: &http.Client{Transport: transport}}
	}
	_, err := by(strange{errors.New("who knows")}).Post(t.Context(), "http://127.0.0.1:1", a(branch.Do), nil)
	mustBe(t, err, branch.ClassUnknown, interlock.Uncertain, 0)

	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	reached := make(chan struct{})
	url := participant(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { close(reached) }))
	_, err = by(again{transport}).Post(t.Context(), url, a(branch.Do), nil)
	<-reached
	mustBe(t, err, branch.ClassUnknown, interlock.Uncertain, 0)
}

// TestNobodyWaitsAfterTheDeadline: the earlier deadline of ctx and the call is sent, and
// ends the work of both sides.
func TestNobodyWaitsAfterTheDeadline(t *testing.T) {
	const soon, late = 2 * time.Second, time.Hour // the request arrives before soon, also on a busy machine
	for _, after := range [][2]time.Duration{{soon, late}, {late, soon}, {soon, 0}, {0, soon}} {
		t.Run(fmt.Sprint(after), func(t *testing.T) {
			t.Parallel()
			told := make(chan time.Time, 1)
			ended := make(chan error, 1)
			url := participant(t, branchhttp.Handler(func(ctx context.Context, _ []byte) ([]byte, error) {
				told <- branch.From(ctx).Deadline
				<-ctx.Done()
				ended <- context.Cause(ctx)
				return nil, context.Cause(ctx)
			}))
			now, c, ctx := time.Now(), a(branch.Do), t.Context()
			if after[0] > 0 {
				c.Deadline = now.Add(after[0])
			}
			if after[1] > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithDeadline(ctx, now.Add(after[1]))
				defer cancel()
			}
			_, err := caller(t).Post(ctx, url, c, nil)
			if class, _ := branch.ClassOf(err); err == nil || class != branch.ClassUnknown {
				t.Errorf("%v", err)
			}
			if got := testbed.Receive(t, told, "the call"); got.UnixMilli() != now.Add(soon).UnixMilli() {
				t.Errorf("it received %v, want %v", got, now.Add(soon))
			}
			if err := testbed.Receive(t, ended, "the end of the work"); err == nil {
				t.Error("the work did not see the end")
			}
		})
	}
}

func TestDeadlineInThePastIsNotWorkedOn(t *testing.T) {
	c := a(branch.Do)
	c.Deadline = time.Now().Add(-time.Second)
	_, err := caller(t).Post(t.Context(), "http://127.0.0.1:1", c, nil)
	mustBe(t, err, branch.ClassRetry, interlock.Retryable, 0)

	r := raw(c.Transaction, map[string]string{branchhttp.HeaderDeadline: fmt.Sprint(c.Deadline.UnixMilli())})
	w := httptest.NewRecorder()
	branchhttp.Handler(func(context.Context, []byte) ([]byte, error) {
		t.Error("it was worked on")
		return nil, nil
	}).ServeHTTP(w, r)
	if w.Code != http.StatusRequestTimeout {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// raw returns a request with changed headers; it omits empty ones.
func raw(transaction string, headers map[string]string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("{}"))
	for name, value := range map[string]string{branchhttp.HeaderTransaction: transaction, branchhttp.HeaderBranch: "b",
		branchhttp.HeaderOperation: "do", branchhttp.HeaderAttempt: "1", branchhttp.HeaderBegun: "1"} {
		r.Header.Set(name, value)
	}
	for name, value := range headers {
		if r.Header[name] = []string{value}; value == "" {
			delete(r.Header, name)
		}
	}
	return r
}

// TestBadCallIsRefused: a participant does not work on an unreadable, ambiguous or
// invalid call, and a caller cannot send it.
func TestBadCallIsRefused(t *testing.T) {
	if _, err := branchhttp.FromRequest(raw("t", nil)); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 256)
	for header, values := range map[string][]string{
		branchhttp.HeaderTransaction: {"", "%zz", "%", "%00", "%ff", long[:201]},
		branchhttp.HeaderBranch:      {"", "%2", "%00", "%c3%28", long},
		branchhttp.HeaderStep:        {"%zz", "%00", long},
		branchhttp.HeaderOperation:   {"", "DO", "redo", "do ", long},
		branchhttp.HeaderAttempt:     {"", "0", "-1", "+1", "01", "1.0", "x", "2147483648", "99999999999999999999"},
		branchhttp.HeaderEpoch:       {"0", "-1", "x", "0x10", "9223372036854775808"},
		branchhttp.HeaderBegun:       {"", "0", "-5", "yesterday", "253402300800000"},
		branchhttp.HeaderDeadline:    {"0", "-5", "1e3", "253402300800000"},
		branchhttp.HeaderUntil:       {"0", "-5", "1e3", "253402300800000"},
	} {
		for _, value := range values {
			mustRefuse(t, raw("t", map[string]string{header: value}), header)
		}
		twice := raw("t", nil)
		twice.Header[header] = []string{"1", "1"}
		mustRefuse(t, twice, header)
		empty := raw("t", nil)
		empty.Header[header] = []string{""}
		mustRefuse(t, empty, header)
	}
}

func mustRefuse(t *testing.T, r *http.Request, header string) {
	t.Helper()
	_, err := branchhttp.FromRequest(r)
	var bad *branchhttp.HeaderError
	if !errors.As(err, &bad) || bad.Header != header || interlock.Kind(err) != interlock.Bug {
		t.Errorf("%s: %.100q gave %v", header, r.Header[header], err)
	}
	w := httptest.NewRecorder()
	branchhttp.Handler(func(context.Context, []byte) ([]byte, error) {
		t.Errorf("%s: %.100q was worked on", header, r.Header[header])
		return nil, nil
	}).ServeHTTP(w, r)
	if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), header) {
		t.Errorf("%s: answered %d %s", header, w.Code, w.Body)
	}
}

// TestBadCallIsNotSent: it is a Bug.
func TestBadCallIsNotSent(t *testing.T) {
	url := participant(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was sent") }))
	bad := map[string]branch.Call{"zero": {}}
	for name, change := range map[string]func(*branch.Call){
		"no transaction":   func(c *branch.Call) { c.Transaction = "" },
		"long transaction": func(c *branch.Call) { c.Transaction = strings.Repeat("x", 201) },
		"no branch":        func(c *branch.Call) { c.Branch = "" },
		"NUL":              func(c *branch.Call) { c.Step = "a\x00" },
		"operation":        func(c *branch.Call) { c.Operation = "redo" },
		"attempt":          func(c *branch.Call) { c.Attempt = 0 },
		"epoch":            func(c *branch.Call) { c.Epoch = -1 },
		"not begun":        func(c *branch.Call) { c.Begun = time.Time{} },
	} {
		c := a(branch.Do)
		change(&c)
		bad[name] = c
	}
	for name, c := range bad {
		_, err := caller(t).Post(t.Context(), url, c, nil)
		t.Log(name, err)
		mustBe(t, err, branch.ClassFail, interlock.Bug, 0)
	}
	for _, address := range []string{"", "participant", "ftp://127.0.0.1/", "http://", "http://a b/", ":"} {
		_, err := caller(t).Post(t.Context(), address, a(branch.Do), nil)
		mustBe(t, err, branch.ClassFail, interlock.Bug, 0)
	}
	_, err := caller(t).Post(t.Context(), url, a(branch.Do), make([]byte, branchhttp.MaxInput+1))
	mustBe(t, err, branch.ClassFail, interlock.Bug, 0)
}

// TestUnusableOutput: a call that was answered 2xx is done, whatever its body: it is neither
// repeated nor undone, and the fault is reported with the next step. Only a try and a
// prepare, which can be undone, are in doubt.
func TestUnusableOutput(t *testing.T) {
	for output, fix := range map[string]string{"OK": "answer JSON", "\"\xff\"": "answer JSON", `"` + strings.Repeat("x", branchhttp.MaxBody) + `"`: "answer less"} {
		url := participant(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, output) }))
		for _, op := range []branch.Operation{branch.Do, branch.Undo, branch.Confirm, branch.Cancel, branch.Commit, branch.Rollback, branch.Try, branch.Prepare} {
			var reported error
			by := caller(t)
			by.Unusable = func(c branch.Call, err error) { reported = err }
			got, err := by.Post(t.Context(), url, a(op), nil)
			if op == branch.Try || op == branch.Prepare {
				mustBe(t, err, branch.ClassUnknown, interlock.Uncertain, 0)
				reported = err
			} else if err != nil || got != nil {
				t.Errorf("%s: %q, %v", op, got, err)
			}
			if reported == nil || !strings.Contains(reported.Error(), fix) {
				t.Errorf("%s: reported %v", op, reported)
			}
		}
	}
}

// TestUnusableOutputFloodsNoLog: a participant with a fault is called often.
func TestUnusableOutputFloodsNoLog(t *testing.T) {
	lines := testbed.CaptureLog(t)
	url := participant(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "OK") }))
	for range 200 {
		_, err := caller(t).Post(t.Context(), url, a(branch.Do), nil)
		testbed.OK(t, err)
	}
	if n := strings.Count(lines.String(), "cannot be used"); n == 0 || n > 100 {
		t.Errorf("logged %d times", n)
	}
}

// TestRequestThatIsNoCall gets an error with the reason.
func TestRequestThatIsNoCall(t *testing.T) {
	h := branchhttp.Handler(func(context.Context, []byte) ([]byte, error) {
		t.Error("it was worked on")
		return nil, nil
	})
	get, long := raw("t", nil), raw("t", nil)
	get.Method = http.MethodGet
	long.Body = io.NopCloser(strings.NewReader(strings.Repeat("x", branchhttp.MaxInput+1)))
	cut := raw("t", nil)
	cut.Body = io.NopCloser(io.MultiReader(strings.NewReader("{"), broken{}))
	for r, status := range map[*http.Request]int{get: 405, long: 413, cut: 400} {
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != status {
			t.Errorf("answered %d %s, want %d", w.Code, w.Body, status)
		}
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func ExampleHandler() {
	charge := branchhttp.Handler(func(ctx context.Context, input []byte) ([]byte, error) {
		c := branch.From(ctx) // a barrier comes first: see txn/barrier
		if string(input) != `{"total":10}` {
			return nil, branch.Fail(errors.New("no money"))
		}
		return fmt.Appendf(nil, `{"receipt":%q}`, c.Key()), nil
	})
	bank := httptest.NewServer(charge)
	defer bank.Close()

	call := branch.Call{Transaction: "order/42", Branch: "charge", Operation: branch.Do, Attempt: 1, Begun: time.Now()}
	for _, input := range []string{`{"total":10}`, `{"total":1000}`} {
		output, err := branchhttp.Caller{}.Post(context.Background(), bank.URL, call, []byte(input))
		class, _ := branch.ClassOf(err)
		fmt.Printf("%s %v\n", output, err != nil && class == branch.ClassFail)
	}
	http.DefaultClient.CloseIdleConnections()
	// Output:
	// {"receipt":"order%2F42/charge/do"} false
	//  true
}

// TestOtherInput: the answer that a participant had another input arrives as such. The
// status alone, or another value of the header, does not mean it. The header does not
// change the meaning of 2xx, 409 and 425.
func TestOtherInput(t *testing.T) {
	url := participant(t, branchhttp.Handler(func(context.Context, []byte) ([]byte, error) { return nil, branch.ErrOtherInput }))
	_, err := caller(t).Post(t.Context(), url, a(branch.Do), []byte(`1`))
	var answer *branchhttp.AnswerError
	if class, _ := branch.ClassOf(err); !errors.Is(err, branch.ErrOtherInput) || class != branch.ClassUnknown || interlock.Kind(err) != interlock.Uncertain ||
		!errors.As(err, &answer) || answer.Status != http.StatusUnprocessableEntity {
		t.Errorf("%v", err)
	}
	for _, c := range []struct {
		status int
		header string
		class  branch.Class
	}{{422, "", branch.ClassUnknown}, {422, "42", branch.ClassUnknown}, {409, "other", branch.ClassFail}, {425, "other", branch.ClassInProgress}} {
		url := participant(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(branchhttp.HeaderInput, c.header)
			w.WriteHeader(c.status)
		}))
		_, err := caller(t).Post(t.Context(), url, a(branch.Do), []byte(`1`))
		if class, _ := branch.ClassOf(err); class != c.class || errors.Is(err, branch.ErrOtherInput) {
			t.Errorf("%d %q: %v", c.status, c.header, err)
		}
	}
}

// TestMarkArrivesAsItWas, with the maximum number and length of exceptions; and its answer
// returns.
func TestMarkArrivesAsItWas(t *testing.T) {
	var got branchhttp.Mark
	var fails error
	url := participant(t, branchhttp.ForgetHandler(func(_ context.Context, m branchhttp.Mark) (int, error) {
		got = m
		return 7, fails
	}))
	var many []string
	for range 256 {
		many = append(many, strings.Repeat("<", 200))
	}
	for _, except := range [][]string{nil, {"order/42", "ä\u2028\n"}, many} {
		m := branchhttp.Mark{Before: time.UnixMilli(1700000000000), Except: except}
		n, err := caller(t).Forget(t.Context(), url, m)
		if err != nil || n != 7 || !got.Before.Equal(m.Before) || !slices.Equal(got.Except, except) {
			t.Errorf("%d, %v; %+v arrived", n, err, got)
		}
	}
	fails = errors.New("no database")
	_, err := caller(t).Forget(t.Context(), url, branchhttp.Mark{Before: time.UnixMilli(1)})
	var answer *branchhttp.AnswerError
	if !errors.As(err, &answer) || answer.Status != 500 || answer.Body != "no database" || interlock.Kind(err) != interlock.Uncertain {
		t.Errorf("%v", err)
	}
	_, err = caller(t).Forget(t.Context(), "http://u:p@localhost/", branchhttp.Mark{Before: time.UnixMilli(1)})
	if interlock.Kind(err) != interlock.Bug || strings.Contains(err.Error(), "u:p") {
		t.Errorf("%v", err)
	}
	silent := participant(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(branchhttp.HeaderOperation) != branchhttp.MarkOperation {
			w.WriteHeader(http.StatusBadRequest)
		}
	}))
	if n, err := caller(t).Forget(t.Context(), silent, branchhttp.Mark{Before: time.UnixMilli(1)}); n != 0 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

// TestWhatIsNoMark deletes nothing.
func TestWhatIsNoMark(t *testing.T) {
	url := participant(t, branchhttp.ForgetHandler(func(context.Context, branchhttp.Mark) (int, error) { t.Error("forgotten"); return 0, nil }))
	client := caller(t).Client
	for body, want := range map[string]int{
		"": 400, "{}": 400, `{"before":1}`: 400, `{"before":0,"except":[]}`: 400, `{"before":-5,"except":[]}`: 400, `{"before":1e300,"except":[]}`: 400,
		`{"before":1,"except":[]} {}`: 400, `{"before":1,"except":[],"only":["a"]}`: 400, `{"before":1,"except":null}`: 400, `{"before":1,"except":[""]}`: 400,
		`{"before":1,"except":["a"],"except":[]}`: 400, `{"before":1,"except":["a"],"Except":[]}`: 400, `{"before":1,"before":2,"except":[]}`: 400,
		`null`: 400, `{"before":1,"except":["` + "\xff" + `"]}`: 400,
		`{"before":1,"except":["\u0000"]}`: 400, `{"before":1,"except":["` + strings.Repeat("x", 201) + `"]}`: 400,
		`{"before":1,"except":[` + strings.Repeat(" ", branchhttp.MaxMark) + `]}`: 413,
	} {
		answer, err := client.Post(url, "application/json", strings.NewReader(body))
		testbed.OK(t, err)
		_, _ = io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("%.60s: %d, want %d", body, answer.StatusCode, want)
		}
	}
	answer, err := client.Get(url)
	testbed.OK(t, err)
	if answer.Body.Close(); answer.StatusCode != 405 || answer.Header.Get("Allow") != "POST" {
		t.Errorf("%v", answer)
	}
}
