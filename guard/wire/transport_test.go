package wire_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/guard/wire"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// closing is a body that records whether it was closed.
type closing struct {
	io.Reader
	closed bool
}

func (c *closing) Close() error { c.closed = true; return nil }

// TestNothingIsSentUnderAnEndedClaim: the error has the reason.
func TestNothingIsSentUnderAnEndedClaim(t *testing.T) {
	t.Parallel()
	url := service(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was sent") }))
	lost, late := grant("r", token(1), bound), grant("r", token(1), -time.Nanosecond)
	lost.End(interlock.ErrLost)
	for cause, c := range map[error]*claim{interlock.ErrLost: lost, interlock.ErrExpired: late, interlock.ErrName: grant("", token(1), bound)} {
		body := &closing{Reader: strings.NewReader("x")}
		req, err := http.NewRequestWithContext(wire.Under(t.Context(), c, ""), http.MethodPost, url, body)
		ok(t, err)
		_, err = client(t, &wire.Transport{}).Do(req)
		if !errors.Is(err, cause) || interlock.Kind(err) == interlock.Uncertain || !body.closed {
			t.Errorf("%v (%v), want %v; body closed: %v", err, interlock.Kind(err), cause, body.closed)
		}
	}
}

// TestRequestsEndWithTheClaim: during the wait for the answer, and while it is read;
// an answer that was read to its end releases the claim's hook.
func TestRequestsEndWithTheClaim(t *testing.T) {
	t.Parallel()
	half := make(chan bool, 2)
	url := service(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/half" {
			_, _ = io.WriteString(w, "half")
			_ = http.NewResponseController(w).Flush()
		}
		half <- true
		<-r.Context().Done()
	}))
	by := client(t, &wire.Transport{})
	for _, path := range []string{"/none", "/half"} {
		c := grant("r", token(1), bound)
		go func() { <-half; c.End(interlock.ErrLost) }()
		_, text, err := post(wire.Under(t.Context(), c, ""), by, url+path)
		if err == nil || interlock.Kind(err) != interlock.Uncertain || !errors.Is(err, interlock.ErrLost) || !errors.Is(err, interlock.ErrUncertain) {
			t.Errorf("%s: %q, %v", path, text, err)
		}
	}
	// The end of the caller's context is the caller's cause.
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() { <-half; cancel(errors.New("changed my mind")) }()
	if _, _, err := post(wire.Under(ctx, grant("r", token(1), bound), ""), by, url); err == nil || errors.Is(err, interlock.ErrExpired) {
		t.Error(err)
	}
}

// TestRequestsUnderNoClaim are sent unchanged, with a carried signed token, or with the caller's
// own header.
func TestRequestsUnderNoClaim(t *testing.T) {
	t.Parallel()
	url := service(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%q", r.Header.Values(wire.Header))
	}))
	by := client(t, &wire.Transport{Signer: signer(t, "a", 'a', nil)})
	for want, ctx := range map[string]context.Context{`[]`: t.Context(), `["v4.public.x"]`: wire.Carry(t.Context(), "v4.public.x")} {
		if _, got, err := post(ctx, by, url); got != want || err != nil {
			t.Errorf("carried %s, %v, want %s", got, err, want)
		}
	}
	req, err := http.NewRequestWithContext(wire.Under(t.Context(), grant("r", token(1), bound), ""), http.MethodGet, url, nil)
	ok(t, err)
	req.Header.Set(wire.Header, "of the caller's own")
	resp, err := client(t, &wire.Transport{}).Do(req)
	ok(t, err)
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); err != nil || !strings.HasPrefix(string(text), `["`+token(1).String()+`;resource=r;owner=web-1;remaining=`) {
		t.Errorf("carried %s, %v", text, err)
	}
	if got := req.Header.Get(wire.Header); got != "of the caller's own" {
		t.Errorf("the caller's request has %q now", got)
	}
}

// TestTokensDoNotStray: a redirect keeps the token on the same host only, also on the
// way back.
func TestTokensDoNotStray(t *testing.T) {
	t.Parallel()
	var seen []string
	note := func(r *http.Request) { seen = append(seen, fmt.Sprint(r.URL.Path, len(r.Header.Values(wire.Header)))) }
	var home string
	away := service(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		note(r)
		http.Redirect(w, r, home+"/back", http.StatusTemporaryRedirect)
	}))
	home = service(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		note(r)
		switch r.URL.Path {
		case "/first":
			http.Redirect(w, r, "/second", http.StatusTemporaryRedirect)
		case "/second":
			http.Redirect(w, r, away+"/away", http.StatusTemporaryRedirect)
		}
	}))
	_, _, err := post(wire.Under(t.Context(), grant("r", token(1), bound), ""), client(t, &wire.Transport{}), home+"/first")
	if got := fmt.Sprint(seen); err != nil || got != "[/first1 /second1 /away0 /back1]" {
		t.Errorf("%s, %v", got, err)
	}
}

// TestConnectionsThatChangeTheirProtocol can still be written to, and end with the claim.
func TestConnectionsThatChangeTheirProtocol(t *testing.T) {
	t.Parallel()
	url := service(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
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
	}))
	upgraded := func(ctx context.Context) io.ReadWriteCloser {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		ok(t, err)
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", "echo")
		resp, err := client(t, &wire.Transport{}).Do(req)
		ok(t, err)
		t.Cleanup(func() { resp.Body.Close() })
		rw, writable := resp.Body.(io.ReadWriteCloser)
		if !writable {
			t.Fatal("it cannot be written to")
		}
		return rw
	}
	rw := upgraded(wire.Under(t.Context(), grant("r", token(1), bound), ""))
	fmt.Fprint(rw, "hello\n")
	if text, err := io.ReadAll(rw); string(text) != "you said hello\n" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	c := grant("r", token(1), bound)
	rw = upgraded(wire.Under(t.Context(), c, ""))
	read := testbed.Later(t, bound, func() error { _, err := io.ReadAll(rw); return err })
	c.End(interlock.ErrLost)
	if err := read(); interlock.Kind(err) != interlock.Uncertain || !errors.Is(err, interlock.ErrLost) {
		t.Errorf("the connection of a lost claim ended with %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	rw = upgraded(wire.Carry(ctx, "v4.public.x"))
	cancel() // that of the request, which is over
	fmt.Fprint(rw, "hello\n")
	if text, err := io.ReadAll(rw); string(text) != "you said hello\n" || err != nil {
		t.Errorf("with a carried token: %q, %v", text, err)
	}
}

// TestWhatWasSentIsNeverDenied: net/http returns the cause of a request's context, and elsewhere a
// cause may prove that nothing was sent. The outcome of a request in flight is unknown, whether the
// claim or the caller ended it, with any cause. In the body of Do the claim's context is the
// caller's own.
func TestWhatWasSentIsNeverDenied(t *testing.T) {
	t.Parallel()
	in := make(chan bool, 1)
	url := service(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		in <- true
		<-r.Context().Done()
	}))
	by := client(t, &wire.Transport{})
	stale := &interlock.StaleTokenError{Resource: "another"}
	for name, c := range map[string]struct {
		ctx  func(*claim) context.Context
		with error
	}{
		"the claim's own context": {func(c *claim) context.Context { return wire.Under(c.Context(), c, "") }, interlock.ErrLost},
		"a sibling's failure":     {func(c *claim) context.Context { return wire.Under(c.Context(), grant("r", token(1), bound), "") }, stale},
		"no cause":                {func(c *claim) context.Context { return wire.Under(c.Context(), grant("r", token(1), bound), "") }, context.Canceled},
		"a carried token":         {func(c *claim) context.Context { return wire.Carry(c.Context(), "v4.public.x") }, interlock.ErrExpired},
	} {
		held := grant("r", token(1), bound)
		go func() { <-in; held.End(c.with) }()
		_, _, err := post(c.ctx(held), by, url)
		if interlock.Kind(err) != interlock.Uncertain || !errors.Is(err, interlock.ErrUncertain) || !errors.Is(err, c.with) {
			t.Errorf("%s: %v (%v)", name, err, interlock.Kind(err))
		}
	}
}

// TestRefusalsSayNoMoreThanIsKnown: an error is classified by its own kind, not by an
// error somewhere in its chain.
func TestRefusalsSayNoMoreThanIsKnown(t *testing.T) {
	t.Parallel()
	unsure := func(err error) error {
		return &interlock.Error{Op: "pay", Name: "r", Kind: interlock.Uncertain, Err: err}
	}
	url := service(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	passage, end, err := wire.Options{}.At(time.Now).Admit(t.Context(), []string{"4096;resource=r;remaining=50"}, nil)
	ok(t, err)
	defer end()
	req, err := http.NewRequestWithContext(passage.Context(), http.MethodPost, url, nil)
	ok(t, err)
	_, sent := client(t, &wire.Transport{}).Do(req) // a call of the handler, which was sent
	if !errors.Is(sent, interlock.ErrExpired) {
		t.Fatalf("net/http says %v", sent)
	}
	for _, err := range []error{sent, fmt.Errorf("pay: %w", sent), unsure(&wire.Refusal{Reason: wire.Busy}),
		unsure(&interlock.StaleTokenError{Resource: "r"}), unsure(interlock.ErrImplausibleToken), unsure(interlock.ErrLost)} {
		if r, found := wire.RefusalOf(err); !found || r.Reason != wire.Unknown {
			t.Errorf("%v is answered as %v", err, r)
		}
	}
}

// TestOneTextForEachPass: an encoded pass is decoded unchanged, and no other text is accepted, so
// the compared, signed and logged texts are the same.
func TestOneTextForEachPass(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]wire.Pass{
		"890117171089408;resource=account/42;owner=web-1;remaining=8200": {Token: 890117171089408, Resource: "account/42",
			Owner: "web-1", Remaining: 8200 * time.Millisecond},
		"4096;resource=a": {Token: 4096, Resource: "a"},
		"9223372036854775807;resource=%C3%A4%20%22;owner=%25%3B%3D%0D%0A": {Token: math.MaxInt64, Resource: `ä "`, Owner: "%;=\r\n"},
	} {
		p, err := wire.ParsePass(text)
		if err != nil || p != want || p.String() != text {
			t.Errorf("%q is read as %+v, %v, and written as %q", text, p, err, p)
		}
	}
}

func TestOtherTextsAreMalformed(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 513)
	for _, text := range []string{
		"", ";", "4096", "4096;", "4096;resource=", "4096;owner=a", "4095;resource=a", "0;resource=a", "-4096;resource=a",
		"+4096;resource=a", "04096;resource=a", " 4096;resource=a", "4096 ;resource=a", "4096;resource=a ", "4096; resource=a",
		"9223372036854775808;resource=a", "4096.0;resource=a", "4e3;resource=a", "0x1000;resource=a",
		"4096;resource=a;resource=a", "4096;resource=a;resource=b", "4096;owner=b;resource=a", "4096;resource=a;owner=",
		"4096;resource=a;remaining=0", "4096;resource=a;remaining=-1", "4096;resource=a;remaining=01", "4096;resource=a;remaining=1s",
		"4096;resource=a;remaining=86400001", "4096;resource=a;remaining=99999999999999999999", "4096;resource=a;more=1",
		"4096;resource=%61", "4096;resource=%c3%a4", "4096;resource=%", "4096;resource=%0", "4096;resource=%GG", "4096;resource=ä",
		"4096;resource=a%00", "4096;resource=%FF", "4096;resource=a+b", "4096;resource=a;", "4096,resource=a",
		"4096;resource=" + long, "4096;resource=a;owner=" + long, "4096;resource=a\x00", strings.Repeat("4", 9<<10),
	} {
		if p, err := wire.ParsePass(text); err == nil || p != (wire.Pass{}) {
			t.Errorf("%.80q is read as %+v, %v", text, p, err)
		} else if wantReason(t, err, wire.Malformed); len(err.Error()) > 200 || interlock.Kind(err) != interlock.Bug {
			t.Errorf("%v (%v)", err, interlock.Kind(err))
		}
	}
}

// FuzzParsePass: any text is rejected, or is the canonical text of its pass.
func FuzzParsePass(f *testing.F) {
	for _, seed := range []string{"4096;resource=account/42;owner=web-1;remaining=8200", "4096;resource=%25;owner=%00", "-1;;=;%"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := wire.ParsePass(text)
		if err != nil {
			wantReason(t, err, wire.Malformed)
			return
		}
		again, err := wire.ParsePass(fmt.Sprint(p))
		if p.String() != text || err != nil || again != p || !p.Token.Valid() || p.Resource == "" {
			t.Errorf("%q: %+v, %v", text, p, err)
		}
	})
}
