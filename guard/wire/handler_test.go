package wire_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"
	"unsafe"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/guard/wire"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/internal/virtual"
	"github.com/interlock-dev/interlock/observe"
)

// TestBadTokensAreTheCallersFault: for any bad token, the answer has the fault, and
// nothing reaches the handler.
func TestBadTokensAreTheCallersFault(t *testing.T) {
	t.Parallel()
	var refused []string
	hooks := &observe.Wire{Refused: func(e observe.WireRefused) { refused = append(refused, e.Reason) },
		Admitted: func(e observe.WireAdmitted) { t.Errorf("let in: %+v", e) }}
	never := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was served") })
	trusting := service(t, wire.Handler(account, never, &wire.Options{Hooks: hooks}))
	strict := service(t, wire.Handler(account, never, &wire.Options{Hooks: hooks, Verifier: verifier(t, nil, "a")}))
	fine := token(1).String() + ";resource=account/42"
	s := signer(t, "a", 'a', nil)
	signed := sign(t, s, grant("account/42", token(1), bound), "bank")
	for name, c := range map[string]struct {
		url    string
		values []string
		want   wire.Reason
	}{
		"nothing":                       {trusting + "?id=42", nil, wire.Missing},
		"nothing signed":                {strict + "?id=42", nil, wire.Missing},
		"an empty one":                  {trusting + "?id=42", []string{""}, wire.Malformed},
		"two":                           {trusting + "?id=42", []string{fine, fine}, wire.Malformed},
		"nonsense":                      {trusting + "?id=42", []string{"Bearer x"}, wire.Malformed},
		"oversize":                      {trusting + "?id=42", []string{strings.Repeat("9", 100_000)}, wire.Malformed},
		"a token of next week":          {trusting + "?id=42", []string{ahead(7*24*time.Hour).String() + ";resource=account/42"}, wire.Implausible},
		"the largest token":             {trusting + "?id=42", []string{"9223372036854775807;resource=account/42"}, wire.Implausible},
		"another resource":              {trusting + "?id=43", []string{fine}, wire.WrongResource},
		"a request about nothing":       {trusting, []string{fine}, wire.Malformed},
		"signed, to one who trusts":     {trusting + "?id=42", []string{signed}, wire.Malformed},
		"unsigned, to one who does not": {strict + "?id=42", []string{fine}, wire.Forged},
		"signed by nobody":              {strict + "?id=42", []string{"v4.public.e30.e30"}, wire.Forged},
		"signed by another":             {strict + "?id=42", []string{sign(t, signer(t, "a", 'b', nil), grant("account/42", token(1), bound), "bank")}, wire.Forged},
		"signed for others":             {strict + "?id=42", []string{sign(t, s, grant("account/42", token(1), bound), "shop")}, wire.WrongResource},
		"signed for another":            {strict + "?id=43", []string{signed}, wire.WrongResource},
	} {
		refused = nil
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.url, nil)
		ok(t, err)
		req.Header[wire.Header] = c.values
		resp, err := http.DefaultClient.Do(req)
		ok(t, err)
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		ok(t, err)
		var p struct {
			Type, Title string
			Status      int
		}
		if err := json.Unmarshal(body, &p); err != nil || resp.Header.Get("Content-Type") != wire.ProblemMedia ||
			p.Type != wire.ProblemType+string(c.want) || p.Title == "" || p.Status != resp.StatusCode {
			t.Errorf("%s: %d %s, %v", name, resp.StatusCode, body, err)
		}
		if resp.StatusCode != c.want.Status() || resp.StatusCode >= 500 || (resp.StatusCode == 401) != (resp.Header.Get("WWW-Authenticate") != "") {
			t.Errorf("%s: %d %v", name, resp.StatusCode, resp.Header)
		}
		if len(refused) != 1 || refused[0] != string(c.want) {
			t.Errorf("%s: received %q", name, refused)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

// TestWhatAGuardSaysReachesTheCaller: the caller gets the handler's error.
func TestWhatAGuardSaysReachesTheCaller(t *testing.T) {
	t.Parallel()
	stale := &interlock.StaleTokenError{Resource: "account/42", Seen: token(9), Got: token(1)}
	unsure := &interlock.Error{Op: "commit", Driver: "postgres", Name: "account/42", Kind: interlock.Uncertain,
		Err: fmt.Errorf("%w: connection to 10.1.2.3 reset", interlock.ErrExpired)}
	for _, c := range []struct {
		err    error
		reason wire.Reason
		status int
		target error
	}{
		{stale, wire.Stale, 412, interlock.ErrStaleToken},
		{&interlock.Error{Op: "enter", Name: "account/42", Kind: interlock.Definite, Err: stale}, wire.Stale, 412, interlock.ErrStaleToken},
		{&interlock.Error{Op: "enter", Name: "account/42", Kind: interlock.Definite, Err: interlock.ErrImplausibleToken},
			wire.Implausible, 400, interlock.ErrImplausibleToken},
		{&interlock.Error{Op: "run transaction", Name: "account/42", Kind: interlock.Definite, Err: interlock.ErrLost}, wire.Over, 412, interlock.ErrExpired},
		{unsure, wire.Unknown, 500, interlock.ErrUncertain},
		{&interlock.Error{Op: "enter", Name: "account/42", Kind: interlock.Retryable, Err: errors.New("deadlock")}, wire.Busy, 503, nil},
	} {
		url := service(t, wire.Handler(account, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if !wire.Refuse(w, c.err) {
				t.Errorf("%v was not answered", c.err)
			}
		}), nil))
		status, _, err := post(wire.Under(t.Context(), grant("account/42", token(1), bound), ""), client(t, &wire.Transport{}), url+"?id=42")
		r := wantReason(t, err, c.reason)
		if status != c.status || r.Resource != "account/42" || interlock.Kind(err) != interlock.Kind(c.err) || c.target != nil && !errors.Is(err, c.target) ||
			strings.Contains(err.Error(), "10.1.2.3") {
			t.Errorf("%v is answered as %d: %v (%v)", c.err, status, err, interlock.Kind(err))
		}
		if got, found := errors.AsType[*interlock.StaleTokenError](err); found != (c.reason == wire.Stale) || got != nil && *got != *stale {
			t.Errorf("%v is answered as %+v", c.err, got)
		}
	}
	for _, err := range []error{nil, errors.New("not enough money"), context.DeadlineExceeded,
		&interlock.Error{Op: "insert", Kind: interlock.Definite, Err: errors.New("duplicate key")}} {
		if wire.Refuse(nil, err) {
			t.Errorf("%v was answered", err)
		}
	}
}

// TestRefusalsReplaceTheAnswer that the handler had prepared: its headers do not describe the refusal.
func TestRefusalsReplaceTheAnswer(t *testing.T) {
	t.Parallel()
	url := service(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for _, name := range []string{"Content-Encoding", "ETag", "Last-Modified"} {
			w.Header().Set(name, "gzip")
		}
		w.Header().Set("X-Request", "7")
		wire.Refuse(w, &interlock.StaleTokenError{Resource: "r"})
		if len(w.Header()) != 3 || w.Header().Get("X-Request") != "7" {
			t.Errorf("headers: %v", w.Header())
		}
	}))
	_, _, err := post(t.Context(), client(t, &wire.Transport{}), url)
	wantReason(t, err, wire.Stale)
}

// TestChecksLeaveOtherAnswersAlone: a body that is no refusal is unchanged.
func TestChecksLeaveOtherAnswersAlone(t *testing.T) {
	t.Parallel()
	stale, err := json.Marshal(&wire.Refusal{Reason: wire.Stale, Seen: token(2), Got: token(1)})
	ok(t, err)
	for _, c := range []struct {
		status      int
		media, text string
	}{
		{200, "application/json", string(stale)}, {200, wire.ProblemMedia, string(stale)}, {412, "text/plain", string(stale)},
		{400, wire.ProblemMedia, string(stale)}, {412, wire.ProblemMedia, `{"type":"about:blank","status":412}`}, {412, wire.ProblemMedia, "{"},
		{412, wire.ProblemMedia, strings.Repeat(" ", 100_000) + string(stale)}, {412, "", string(stale)}, {412, wire.ProblemMedia, ""},
		{403, wire.ProblemMedia, `{"type":"urn:interlock:problem:none","status":403}`},
	} {
		url := service(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", c.media)
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.text)
		}))
		if status, text, err := post(t.Context(), client(t, &wire.Transport{}), url); status != c.status || text != c.text || err != nil {
			t.Errorf("%d %s %.80q is read as %d %.80q, %v", c.status, c.media, c.text, status, text, err)
		}
	}
}

// TestAPassageIsAClaim: the handler's passage has the fields of the caller's claim, and ends with
// the request.
func TestAPassageIsAClaim(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		options   wire.Options
		by        wire.Transport
		ttl, want time.Duration
	}{
		"as it is":                {wire.Options{}, wire.Transport{}, 30 * time.Second, 30 * time.Second},
		"longer than is believed": {wire.Options{Longest: 5 * time.Second}, wire.Transport{}, 30 * time.Second, 5 * time.Second},
		"signed": {wire.Options{Verifier: verifier(t, &wire.VerifierOptions{Skew: -1}, "a")},
			wire.Transport{Signer: signer(t, "a", 'a', nil), Audience: "bank"}, 30 * time.Second, 30 * time.Second},
	} {
		var after *wire.Passage
		url := service(t, wire.Handler(account, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			p, found := wire.From(r.Context())
			if !found || p.Name() != "account/42" || p.Owner() != "web-1" || p.Token() != token(3) || !p.Valid() ||
				p.Remaining() > c.want || p.Remaining() < c.want-bound/4 || p.Context().Err() != nil {
				t.Errorf("%s: %+v", name, p)
			}
			after = p
		}), &c.options))
		held := grant("another name", token(3), c.ttl)
		status, _, err := post(wire.Under(t.Context(), held, "account/42"), client(t, &c.by), url+"?id=42")
		if err != nil || status != 200 {
			t.Fatalf("%s: %d %v", name, status, err)
		}
		<-after.Context().Done()
		if after.Valid() || context.Cause(after.Context()) != interlock.ErrReleased {
			t.Errorf("%s: after the request: %v, %v", name, after.Valid(), context.Cause(after.Context()))
		}
	}
	if _, found := wire.From(t.Context()); found {
		t.Error("there is a passage where no request is")
	}
}

// TestAPassageEndsByItself: at the end of its claim's time, by the faster clock.
func TestAPassageEndsByItself(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		for text, lasts := range map[string]time.Duration{";remaining=3000": 3 * time.Second, "": wire.DefaultRemaining,
			";remaining=3600000": wire.DefaultLongest} {
			p, end, err := (*wire.Options)(nil).Admit(t.Context(), []string{"4096;resource=r" + text}, nil)
			if err == nil {
				time.Sleep(lasts - time.Nanosecond)
				synctest.Wait()
			}
			if err != nil || !p.Valid() || p.Context().Err() != nil || p.Remaining() != time.Nanosecond {
				t.Fatalf("%q: %+v, %v", text, p, err)
			}
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			if p.Valid() || context.Cause(p.Context()) != interlock.ErrExpired {
				t.Errorf("%q: %v, %v", text, p.Remaining(), context.Cause(p.Context()))
			}
			end()
		}
	})
}

// TestLongDetailsAreCut: the caller can read the refusal of a request of any length.
func TestLongDetailsAreCut(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("\xff\"ä", 20_000)
	for reason, resource := range map[wire.Reason]wire.Resource{
		wire.WrongResource: func(*http.Request) (string, error) { return long, nil },
		wire.Malformed:     func(*http.Request) (string, error) { return "", errors.New(long) },
	} {
		url := service(t, wire.Handler(resource, http.NotFoundHandler(), nil))
		_, _, err := post(wire.Under(t.Context(), grant("r", token(1), bound), ""), client(t, &wire.Transport{}), url)
		if wantReason(t, err, reason); err == nil || len(err.Error()) > 4096 || !utf8.ValidString(err.Error()) {
			t.Errorf("%.100q", err)
		}
	}
}

// TestReasonsHaveAnswers: each reason has a suitable status, and only an unknown reason is a server
// error.
func TestReasonsHaveAnswers(t *testing.T) {
	t.Parallel()
	for _, r := range wire.Reasons() {
		refusal := &wire.Refusal{Reason: r, Resource: "r", Seen: 2 << 12, Got: 1 << 12, Detail: "d"}
		data, err := json.Marshal(refusal)
		ok(t, err)
		var back wire.Refusal
		if err := json.Unmarshal(data, &back); err != nil || back != *refusal {
			t.Errorf("%s comes back as %+v, %v", data, back, err)
		}
		if again, found := wire.RefusalOf(fmt.Errorf("call: %w", refusal)); !found || *again != *refusal {
			t.Errorf("%s is passed on as %+v", r, again)
		}
		if r.Status() >= 500 != (r == wire.Unknown || r == wire.Busy) || r.Status() < 400 {
			t.Errorf("%s: %d, %v", r, r.Status(), refusal.ErrorKind())
		}
	}
	if s := wire.Reason("none").Status(); s != 500 || len(wire.Reasons()) != 12 {
		t.Errorf("%d reasons, and another has %d", len(wire.Reasons()), s)
	}
}

// FuzzRefusal: any body is decoded, or is not a refusal.
func FuzzRefusal(f *testing.F) {
	for _, seed := range []string{`{"type":"urn:interlock:problem:token-stale","seen":"8192","got":"4096","resource":"r"}`, `{"type":7}`, `null`, `[]`,
		`{"type":"urn:interlock:problem:token-stale","seen":"-1"}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var r wire.Refusal
		if err := r.UnmarshalJSON(data); err == nil && (r.Error() == "" || r.Seen != 0 && !r.Seen.Valid() || r.Reason.Status() < 400) {
			t.Errorf("%q is %+v", data, r)
		}
	})
}

// reading returns the result of [time.Now] after both clocks moved from t by different durations. A
// time.Time with both clocks keeps whole wall seconds in bits 30 to 62 of its first word. There is
// no other way to set them separately.
func reading(t time.Time, monotonic, wall time.Duration) time.Time {
	t = t.Add(monotonic)
	*(*uint64)(unsafe.Pointer(&t)) += uint64(int64((wall-monotonic)/time.Second)) << 30
	return t
}

// TestDeadlinesGoByTheClockThatSaysMore: the wall clock if the machine has slept, and the monotonic
// clock if the wall clock was set back.
func TestDeadlinesGoByTheClockThatSaysMore(t *testing.T) {
	t.Parallel()
	now := time.Now()
	d := wire.After(now, 10*time.Second)
	for _, c := range []struct{ monotonic, wall, left time.Duration }{
		{0, 0, 10 * time.Second},
		{3 * time.Second, 3 * time.Second, 7 * time.Second},
		{3 * time.Second, time.Hour, 10*time.Second - time.Hour},
		{3 * time.Second, -time.Hour, 7 * time.Second},
		{time.Hour, 3 * time.Second, 10*time.Second - time.Hour},
	} {
		at := reading(now, c.monotonic, c.wall)
		if at.Sub(now) != c.monotonic || at.Round(0).Sub(now.Round(0)) != c.wall {
			t.Fatalf("%v is read as %v, and %v on the wall", c, at.Sub(now), at.Round(0).Sub(now.Round(0)))
		}
		if got := d.Remaining(at); got != c.left {
			t.Errorf("%v: %v remain", c, got)
		}
	}
	if (wire.Deadline{}).Remaining(now) > 0 {
		t.Error("the zero value is in the future")
	}
}

// enter runs the work of a request under its guard.
type enter func(ctx context.Context, p *wire.Passage) error

// eachGuard runs test for a service on each database, and on Redis.
func eachGuard(t *testing.T, test func(t *testing.T, work enter)) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		db.Do(t, fence.Table{}.Create)
		db.Exec(t, `create table account (id varchar(64) primary key, balance bigint not null)`, `insert into account values ('account/42', 0)`)
		test(t, func(ctx context.Context, p *wire.Passage) error {
			return fence.Tx(ctx, db, fence.Table{}, p, p.Name(), func(ctx context.Context, tx driver.SQL) error {
				_, err := tx.Exec(ctx, `update account set balance = balance + 1`)
				return err
			})
		})
	}, databases.Pgx, databases.MariaInlined)
	t.Run("redis", func(t *testing.T) {
		c, err := redis.Dial(testbed.Redis(t).URL())
		ok(t, err)
		defer c.Close()
		store := fence.NewStore(redis.NewFence(c))
		test(t, func(ctx context.Context, p *wire.Passage) error {
			return store.Enter(ctx, p, p.Name(), driver.Write{Key: "balance", Value: []byte(p.Token().String())})
		})
	})
}

// serve starts a service that answers with the guard's error.
func serve(t *testing.T, work enter, o *wire.Options) (url string) {
	t.Helper()
	return service(t, wire.Handler(account, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, _ := wire.From(r.Context())
		if err := work(r.Context(), p); !wire.Refuse(w, err) && err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}), o)) + "?id=42"
}

// TestAnAbsurdTokenBricksNothing: the service refuses an implausible token, or the guard if the
// service's clock is wrong, and accepts the next valid caller.
func TestAnAbsurdTokenBricksNothing(t *testing.T) {
	t.Parallel()
	eachGuard(t, func(t *testing.T, work enter) {
		by := client(t, &wire.Transport{})
		call := func(url string, n interlock.Token) (int, error) {
			status, _, err := post(wire.Under(t.Context(), grant("account/42", n, bound), ""), by, url)
			return status, err
		}
		right := serve(t, work, nil)
		wrong := serve(t, work, wire.Options{}.At(func() time.Time { return time.Now().Add(50 * 365 * 24 * time.Hour) }))
		for i, absurd := range []interlock.Token{math.MaxInt64, ahead(interlock.MaxAhead + time.Hour), ahead(10 * 365 * 24 * time.Hour)} {
			for _, url := range []string{right, wrong} {
				status, err := call(url, absurd)
				if wantReason(t, err, wire.Implausible); status != 400 || !errors.Is(err, interlock.ErrImplausibleToken) {
					t.Errorf("%d: %d, %v", absurd, status, err)
				}
			}
			if _, err := call(right, token(i)); err != nil {
				t.Errorf("after %d nobody gets in: %v", absurd, err)
			}
		}
	})
}

// TestAnUnsignedTokenLiesAMinuteAheadAtMost, or Options.MaxAhead. A signed one may be a day ahead.
func TestAnUnsignedTokenLiesAMinuteAheadAtMost(t *testing.T) {
	t.Parallel()
	work := func(context.Context, *wire.Passage) error { return nil }
	s := signer(t, "a", 'a', nil)
	for _, c := range []struct {
		name    string
		options *wire.Options
		by      *wire.Transport
		far, ok time.Duration
	}{
		{"default", nil, &wire.Transport{}, wire.DefaultMaxAhead + 30*time.Second, wire.DefaultMaxAhead - 30*time.Second},
		{"an hour", &wire.Options{MaxAhead: time.Hour}, &wire.Transport{}, time.Hour + time.Minute, time.Hour - time.Minute},
		{"signed", &wire.Options{Verifier: verifier(t, nil, "a")}, &wire.Transport{Signer: s, Audience: "bank"}, 0, interlock.MaxAhead - time.Hour},
	} {
		url, by := serve(t, work, c.options), client(t, c.by)
		call := func(lead time.Duration) error {
			_, _, err := post(wire.Under(t.Context(), grant("account/42", ahead(lead), bound), ""), by, url)
			return err
		}
		if err := call(c.ok); err != nil {
			t.Errorf("%s: %v ahead: %v", c.name, c.ok, err)
		}
		if c.far > 0 {
			wantReason(t, call(c.far), wire.Implausible)
		}
	}
}

// TestATokenOfTomorrowTakesAnOperator: the documented repair after a wrong token that is within the
// plausible range.
func TestATokenOfTomorrowTakesAnOperator(t *testing.T) {
	t.Parallel()
	c, err := redis.Dial(testbed.Redis(t).URL())
	ok(t, err)
	defer c.Close()
	store := fence.NewStore(redis.NewFence(c))
	url := serve(t, func(ctx context.Context, p *wire.Passage) error { return store.Enter(ctx, p, p.Name()) },
		&wire.Options{MaxAhead: 2 * interlock.MaxAhead}) // a day is the most
	by := client(t, &wire.Transport{})
	call := func(n interlock.Token) error {
		_, _, err := post(wire.Under(t.Context(), grant("account/42", n, bound), ""), by, url)
		return err
	}
	wantReason(t, call(ahead(interlock.MaxAhead+time.Hour)), wire.Implausible)
	ok(t, call(ahead(interlock.MaxAhead-time.Hour)))
	wantReason(t, call(token(1)), wire.Stale)
	_, err = store.Rebase(t.Context(), "account/42", token(0), "a token of tomorrow", "operator")
	ok(t, err)
	ok(t, call(token(1)))
}

// TestAStaleTokenIsRefused: the refusal has the entered token, and nothing is done.
func TestAStaleTokenIsRefused(t *testing.T) {
	t.Parallel()
	eachGuard(t, func(t *testing.T, work enter) {
		s := signer(t, "a", 'a', nil)
		url := serve(t, work, &wire.Options{Verifier: verifier(t, nil, "a")})
		by := client(t, &wire.Transport{Signer: s, Audience: "bank"})
		call := func(n int) (int, error) {
			status, _, err := post(wire.Under(t.Context(), grant("account/42", token(n), bound), ""), by, url)
			return status, err
		}
		for _, n := range []int{1, 1, 3} {
			if status, err := call(n); err != nil || status != 200 {
				t.Fatalf("%d %v", status, err)
			}
		}
		status, err := call(2)
		if stale, found := errors.AsType[*interlock.StaleTokenError](err); !found || status != 412 || *stale != (interlock.StaleTokenError{Resource: "account/42", Seen: token(3), Got: token(2)}) {
			t.Errorf("%d %v", status, err)
		}
		// The same text again, like a replay by an eavesdropper.
		text := sign(t, s, grant("account/42", token(2), bound), "bank")
		if _, _, err := post(wire.Carry(t.Context(), text), client(t, &wire.Transport{}), url); !errors.Is(err, interlock.ErrStaleToken) {
			t.Errorf("replayed: %v", err)
		}
	})
}
