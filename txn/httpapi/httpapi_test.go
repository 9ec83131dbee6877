package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/branchhttp"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/httpapi"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/tcc"
)

var escaped = url.PathEscape(wild)

// steps is an order at a shop, whose last step is the pivot.
func steps(s *shop) string {
	return fmt.Sprintf(`{"type":"order","input":{"item":"book"},"steps":[
		{"name":"reserve","do":"%[1]s","undo":"%[1]s","input":{"n":1}},
		{"parallel":[{"name":"gift","do":"%[1]s","undo":"%[1]s"},{"name":"look","do":"%[1]s","uncompensable":true}]},
		{"name":"pause","sleep":"30ms"},
		{"name":"pay","do":"%[1]s","pivot":true,"timeout":"5s","retry":{"first":"1ms","max":"10ms"}}]}`, s.url)
}

// TestSaga: it runs to its end, with inputs and outputs; a repeated request has the
// first one's result, and another order under its id is refused.
func TestSaga(t *testing.T) {
	shop, s := open(t)
	got := s.do("POST", "/v1/sagas/"+escaped+"?wait=1m", steps(shop), 200)
	same(t, "state", got["state"], "SUCCEEDED")
	same(t, "id", got["id"], wild)
	same(t, "type", got["type"], "order")
	same(t, "output", got["outputs"].(map[string]any)["pay"], map[string]any{"branch": "pay"})
	same(t, "own input", shop.bodies["reserve do"], `{"n":1}`)
	same(t, "what others get", shop.bodies["gift do"], `{"input":{"item":"book"},"outputs":{"reserve":{"branch":"reserve"}}}`)
	calls := len(shop.history)
	same(t, "repeated", s.do("POST", "/v1/sagas/"+escaped+"?wait=1m", steps(shop), 200), got)
	same(t, "looked at", s.do("GET", "/v1/sagas/"+escaped, "", 200), got)
	if len(shop.history) != calls {
		t.Error("a repeated start calls again")
	}
	s.do("POST", "/v1/sagas/"+escaped, strings.Replace(steps(shop), "book", "pen", 1), http.StatusConflict)
}

// TestSagaUndone: after a refusal completed steps are undone, and the answer has the reason.
func TestSagaUndone(t *testing.T) {
	shop, s := open(t)
	shop.refuse = "pay"
	got := s.do("POST", "/v1/sagas/1?wait=1m", steps(shop), 200)
	same(t, "state", got["state"], "COMPENSATED")
	if reason := fmt.Sprint(got["reason"]); !strings.Contains(reason, "pay") || !strings.Contains(reason, "409") {
		t.Error(reason)
	}
	same(t, "reserve", shop.state("1 reserve"), "back")
	same(t, "gift", shop.state("1 gift"), "back")
	same(t, "undo's body", shop.bodies["gift undo"],
		`{"input":{"item":"book"},"outputs":{"reserve":{"branch":"reserve"}},"output":{"branch":"gift"}}`)
}

// TestSagaHelped: a saga that could not be undone is a dead letter, which an operator retries, with
// name and reason.
func TestSagaHelped(t *testing.T) {
	shop, s := open(t)
	shop.refuse = "b"
	body := fmt.Sprintf(`{"type":"x","steps":[{"name":"a","do":"%[1]s","undo":"%[1]s/gone","retry":{"first":"1ms","max":"1ms","undos":2}},
		{"name":"b","do":"%[1]s","pivot":true}]}`, shop.url)
	shop.set(func() { shop.broken = "/gone" })
	got := s.do("POST", "/v1/sagas/1?wait=1m", body, 200)
	same(t, "state", got["state"], "DEAD_LETTER")
	same(t, "dead", got["dead"].([]any)[0].(map[string]any)["step"], "a")
	s.do("POST", "/v1/sagas/1/skip", `{"actor":"me","reason":"fixed","branch":"a"}`, http.StatusBadRequest)
	s.do("POST", "/v1/sagas/1/retry", `{"actor":"me"}`, http.StatusUnprocessableEntity)
	s.do("POST", "/v1/sagas/1/pray", `{"actor":"me","reason":"fixed"}`, http.StatusBadRequest)
	s.do("POST", "/v1/sagas/1/abort", `{"actor":"me","reason":"fixed"}`, http.StatusConflict)
	s.do("POST", "/v1/sagas/1/now", `{"actor":"me","reason":"fixed"}`, http.StatusConflict)
	shop.set(func() { shop.broken = "" })
	got = s.do("POST", "/v1/sagas/1/retry?wait=1m", `{"actor":"me","reason":"fixed"}`, 200)
	same(t, "state", got["state"], "COMPENSATED")
	same(t, "a", shop.state("1 a"), "back")
}

// TestSagaSettled: an operator records the outcome of a pivot that does not answer, with or without
// an output.
func TestSagaSettled(t *testing.T) {
	shop, s := open(t)
	for id, c := range map[string]struct{ found, state string }{
		"1": {`"done":true,"output":{"receipt":7}`, "SUCCEEDED"},
		"2": {`"done":false`, "COMPENSATED"},
	} {
		body := fmt.Sprintf(`{"type":"x","steps":[{"name":"a","do":"%[1]s","undo":"%[1]s"},{"name":"p","do":"http://127.0.0.1:1/","pivot":true,"retry":{"first":"1h","max":"1h"}}]}`, shop.url)
		s.do("POST", "/v1/sagas/"+id+"?wait=100ms", body, 200)
		by := `{"actor":"me","reason":"the bank was asked","step":"p",`
		for _, wrong := range []string{`"done":null`, `"done":false,"output":1`, `"output":1`, `"done":true,"input":1`} {
			s.do("POST", "/v1/sagas/"+id+"/settle", by+wrong+"}", http.StatusBadRequest)
		}
		s.do("POST", "/v1/sagas/"+id+"/settle", `{"actor":"me","reason":"x","step":"a","done":true}`, http.StatusConflict)
		s.do("POST", "/v1/sagas/"+id+"/settle", by+c.found+"}", 200)
		got := s.do("GET", "/v1/sagas/"+id+"?wait=1m", "", 200)
		same(t, "state", got["state"], c.state)
		if c.state == "SUCCEEDED" {
			same(t, "output", got["outputs"].(map[string]any)["p"].(map[string]any)["receipt"], float64(7))
		}
	}
}

// TestSagaGoesOn: the next service continues the sagas of a closed one from the journal.
func TestSagaGoesOn(t *testing.T) {
	shop, store := newShop(t), memory.NewJournal()
	shop.down = true
	s := serve(t, store, nil)
	got := s.do("POST", "/v1/sagas/1?wait=50ms", steps(shop), 200)
	same(t, "state", got["state"], "RUNNING")
	s.do("POST", "/v1/sagas/2", steps(shop), 200)
	same(t, "aborted", s.do("POST", "/v1/sagas/2/abort?wait=50ms", `{"actor":"me","reason":"a slip"}`, 200)["state"], "UNDOING")
	s.stop()
	shop.set(func() { shop.down = false })
	next := serve(t, store, nil)
	same(t, "state", next.do("GET", "/v1/sagas/1?wait=1m", "", 200)["state"], "SUCCEEDED")
}

// TestTCC: all branches are confirmed if each holds, else all are cancelled; the try has the time of
// the hold.
func TestTCC(t *testing.T) {
	shop, s := open(t)
	body := fmt.Sprintf(`{"type":"booking","branches":[{"name":"hotel","url":"%[1]s","input":{"rooms":1}},{"name":"flight","url":"%[1]s"}]}`, shop.url)
	got := s.do("POST", "/v1/tcc/"+escaped+"?wait=1m", body, 200)
	same(t, "decision", got["decision"], "confirm")
	same(t, "state", got["state"], "CONFIRMED")
	same(t, "hold", got["holds"].(map[string]any)["hotel"], map[string]any{"branch": "hotel"})
	same(t, "hotel", shop.state(wild+" hotel"), "final")
	same(t, "body without an input", shop.bodies["flight try"]+shop.bodies["flight confirm"], "nullnull")
	if shop.untils[wild+" hotel"].IsZero() {
		t.Error("the try has no time of the hold")
	}
	same(t, "looked at", s.do("GET", "/v1/tcc/"+escaped, "", 200)["state"], "CONFIRMED")
	calls := func() (n int) {
		shop.set(func() { n = len(shop.history) })
		return n
	}
	before := calls()
	same(t, "the same again", s.do("POST", "/v1/tcc/"+escaped, body, 200)["holds"], got["holds"])
	same(t, "calls", calls(), before)
	same(t, "asked", s.do("POST", "/v1/tcc/"+escaped+"/decision", `{"branch":"hotel"}`, 200)["decision"], "confirm")

	shop.set(func() { shop.refuse = "flight" })
	got = s.do("POST", "/v1/tcc/2?wait=1m", body, 200)
	same(t, "decision", got["decision"], "cancel")
	same(t, "state", got["state"], "CANCELLED")
	if state := shop.state("2 hotel"); state != "back" && state != "" { // the flight can be refused before the hotel is asked
		t.Errorf("hotel: %s", state)
	}
	for _, nobody := range []string{"{}", "null", `{"branch":""}`} {
		s.do("POST", "/v1/tcc/3/decision", nobody, http.StatusUnprocessableEntity)
	}
	s.do("GET", "/v1/tcc/3", "", http.StatusNotFound)
	same(t, "asked first", s.do("POST", "/v1/tcc/3/decision", `{"branch":"hotel"}`, 200)["decision"], "cancel")
	shop.set(func() { shop.refuse = "" })
	same(t, "then run", s.do("POST", "/v1/tcc/3?wait=1m", body, 200)["decision"], "cancel")
	s.do("POST", "/v1/tcc/"+escaped+"/retry", `{"actor":"me","reason":"why not"}`, http.StatusConflict)
	s.do("POST", "/v1/tcc/"+escaped+"/pray", `{"actor":"me","reason":"why not"}`, http.StatusBadRequest)
}

// TestTCCHelped: a branch that refuses to confirm is a dead letter. Answers and operators' requests
// call it a branch.
func TestTCCHelped(t *testing.T) {
	t.Parallel()
	store, confirmed := memory.NewJournal(), atomic.Bool{}
	s := serve(t, store, &httpapi.Options{TCC: &tcc.Options{Retry: tcc.Policy{First: time.Millisecond, Refusals: 1}},
		Client: everywhere(t, branchhttp.Handler(func(ctx context.Context, _ []byte) ([]byte, error) {
			if branch.From(ctx).Operation == branch.Confirm && !confirmed.Load() {
				return nil, branch.Fail(errNo)
			}
			return []byte(`{"seat":"12A"}`), nil
		}))})
	got := s.do("POST", "/v1/tcc/1?wait=1m", `{"type":"x","branches":[{"name":"flight","url":"http://air/"}]}`, 200)
	same(t, "state", got["state"], "DEAD_LETTER")
	same(t, "dead", got["dead"].([]any)[0].(map[string]any)["step"], "flight")
	for _, other := range []string{`"branch":"flight"`, `"step":"flight","input":1`} { // an input cannot be another one
		s.do("POST", "/v1/tcc/1/retry", `{"actor":"me","reason":"fixed",`+other+`}`, http.StatusBadRequest)
	}
	confirmed.Store(true)
	got = s.do("POST", "/v1/tcc/1/retry?wait=1m", `{"actor":"me","reason":"fixed","step":"flight"}`, 200)
	same(t, "state", got["state"], "CONFIRMED")
}

// TestTwoPC: all participants commit, or none.
func TestTwoPC(t *testing.T) {
	shop := newShop(t)
	s := serve(t, memory.NewJournal(), &httpapi.Options{Participants: map[string]string{"north": shop.url, "south": shop.url}})
	body := `{"branches":{"north":{"add":-1},"south":{"add":1}}}`
	got := s.do("POST", "/v1/2pc/1?wait=1m", body, 200)
	same(t, "decision", got["decision"], "commit")
	same(t, "state", got["state"], "COMMITTED")
	same(t, "output", got["outputs"].(map[string]any)["north"], map[string]any{"branch": "north"})
	same(t, "body", shop.bodies["south prepare"], `{"add":1}`)
	has(t, shop.history, "north commit", "south commit")
	same(t, "looked at", s.do("GET", "/v1/2pc/1", "", 200)["decision"], "commit")

	shop.set(func() { shop.refuse = "south" })
	same(t, "decision", s.do("POST", "/v1/2pc/2", body, 200)["decision"], "abort")
	has(t, shop.history, "north rollback")
	for key, state := range shop.states { // participants get a separate id for each run
		name, _, _ := strings.Cut(key, " ")
		want := map[string]string{"final": "commit", "back": "abort"}[state]
		same(t, "asked", s.do("POST", "/v1/2pc/"+url.PathEscape(name)+"/decision", "", 200)["decision"], want)
	}
	s.do("POST", "/v1/2pc/1/resolve", `{"actor":"me","reason":"why not"}`, http.StatusConflict)
}

// TestBadRequests: each error has the reason, and nothing begins.
func TestBadRequests(t *testing.T) {
	shop := newShop(t)
	local := func(u *url.URL) error {
		if u.Hostname() != "127.0.0.1" {
			return errors.New("it is not on this machine")
		}
		return nil
	}
	s := serve(t, memory.NewJournal(), &httpapi.Options{Allow: local, Participants: map[string]string{"north": shop.url}})
	for _, c := range []struct {
		path, body, says string
		status           int
	}{
		{"/v1/sagas/1", `{`, "request is invalid", 400},
		{"/v1/sagas/1", `{"type":"x"} {}`, "more than one", 400},
		{"/v1/sagas/1", `{"type":"x","stepz":[]}`, "stepz", 400},
		{"/v1/sagas/1?wait=long", `{}`, "wait", 400},
		{"/v1/sagas/1", `{"type":"x","steps":[{"name":"a","do":"ftp://x"}]}`, "address", 400},
		{"/v1/sagas/1", `{"type":"x","steps":[{"name":"a","do":"http://example.com"}]}`, "not on this machine", 400},
		{"/v1/sagas/1", `{"type":"x","steps":[{"name":"a"}]}`, "none of", 400},
		{"/v1/sagas/1", `{"type":"x","steps":[{"name":"a","sleep":"-1s"}]}`, "below zero", 400},
		{"/v1/sagas/1", `{"type":"x","steps":[]}`, "no s", 422},
		{"/v1/sagas/1", `{"type":"x","steps":[{"name":"a","do":"` + shop.url + `"}]}`, "undone", 422},
		{"/v1/sagas/" + strings.Repeat("x", 201), steps(shop), "200", 422},
		{"/v1/tcc/1", `{"type":"x","branches":[{"name":"a","url":"http://example.com"}]}`, "not on this machine", 400},
		{"/v1/tcc/1", `{"type":"x","branches":[]}`, "branch", 422},
		{"/v1/2pc/1", `{"branches":{}}`, "no branches", 400},
		{"/v1/2pc/1", `{"branches":{"west":{}}}`, "west", 400},
	} {
		got := s.do("POST", c.path, c.body, c.status)
		if !strings.Contains(fmt.Sprint(got["error"]), c.says) || got["kind"] == "" {
			t.Errorf("%s %s: %v, want %q", c.path, c.body, got, c.says)
		}
	}
	for _, path := range []string{"/v1/sagas/1", "/v1/tcc/1", "/v1/2pc/1"} {
		s.do("GET", path, "", http.StatusNotFound)
	}
	if len(shop.history) > 0 {
		t.Error(shop.history)
	}
	j, err := journal.New(memory.NewJournal(), nil)
	ok(t, err)
	defer j.Close()
	c, err := coordinator.New(j, nil)
	ok(t, err)
	if _, err := httpapi.New(c, &httpapi.Options{Participants: map[string]string{"north": "nowhere"}}); interlock.Kind(err) != interlock.Bug {
		t.Error(err)
	}
}

// TestWithin: permitted paths have further segments, in canonical form.
func TestWithin(t *testing.T) {
	allow, err := httpapi.Within("http://stock.internal/good", "https://10.0.0.7:8443/", "http://[::1]:80/a/")
	ok(t, err)
	for address, want := range map[string]bool{
		"http://stock.internal/good": true, "http://stock.internal/good/": true, "http://stock.internal/good/x?secret=1": true,
		"http://STOCK.internal:80/good/x": true, "http://stock.internal./good": true, "https://10.0.0.7:8443": true, "https://10.0.0.7:8443/x": true,
		"http://[::1]/a/b": true, "http://stock.internal/good/a..b": true, "http://stock.internal/good/a%20b": true,

		"http://stock.internal/goods": false, "http://stock.internal/goo": false, "http://stock.internal/": false, "http://stock.internal": false,
		"https://stock.internal/good": false, "http://stock.internal:8080/good": false, "http://stock.internal.evil.example/good": false,
		"http://[::1]/a": false, "http://[::1]/ab": false, "https://10.0.0.7/x": false,
		"http://stock.internal/good/../bad": false, "http://stock.internal/good/%2e%2e/bad": false, "http://stock.internal/good/..%2fbad": false,
		"http://stock.internal/good;x/../bad": false, "http://stock.internal/good/;/x": false, "http://stock.internal/good/%3b": false,
		`http://stock.internal/good/..\\bad`: false, "http://stock.internal/good/..%5cbad": false, "http://stock.internal/good/%252e%252e/bad": false,
		"http://stock.internal//good": false, "http://stock.internal/good//x": false, "http://stock.internal/good/./x": false, "http://stock.internal/good/%00": false,
	} {
		u, err := url.Parse(address)
		ok(t, err)
		if err := allow(u); (err == nil) != want {
			t.Errorf("%s: %v", address, err)
		}
	}
	for _, bad := range []string{"", "stock", "http://stock", "http://u@stock/", "http://stock/?a=b", "http://stock/a/../b", "http://stock/%2f", ":", "http://u:s3cret@stock/", "http://stock/?s3cret"} {
		if _, err := httpapi.Within(bad); interlock.Kind(err) != interlock.Bug || err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// failures matches four or more attempts.
var failures = regexp.MustCompile(`"attempts":([4-9]|\d\d)`)

// TestFailuresAreShown: for each protocol, a transaction with a failing participant shows the call,
// its number of failures and the last error.
func TestFailuresAreShown(t *testing.T) {
	shop := newShop(t)
	s := serve(t, memory.NewJournal(), &httpapi.Options{Participants: map[string]string{"north": shop.url, "south": shop.url},
		TCC: &tcc.Options{Retry: tcc.Policy{First: time.Millisecond, Max: 10 * time.Millisecond}}})
	shop.set(func() { shop.failing = true })
	s.do("POST", "/v1/tcc/tcc", fmt.Sprintf(`{"type":"x","branches":[{"name":"hotel","url":%q}]}`, shop.url), 200)
	s.do("POST", "/v1/2pc/2pc", `{"branches":{"north":1,"south":2}}`, 200)
	s.do("POST", "/v1/sagas/sagas", fmt.Sprintf(`{"type":"x","steps":[{"name":"pay","do":"%[1]s","pivot":true},
		{"name":"mail","do":"%[1]s/confirm","retry":{"first":"1ms","max":"10ms"}}]}`, shop.url), 200)
	for path, part := range map[string]string{"tcc": `"step":"hotel"`, "2pc": `"participant":"north"`, "sagas": `"step":"mail"`} {
		testbed.Eventually(t, "it fails: "+path, time.Minute, func() bool {
			text := s.text("/v1/" + path + "/" + path)
			return strings.Contains(text, part) && failures.MatchString(text) && strings.Contains(text, "500")
		})
	}
	shop.set(func() { shop.failing = false })
	for _, path := range []string{"tcc", "2pc", "sagas"} {
		testbed.Eventually(t, "nothing fails: "+path, time.Minute, func() bool {
			return !strings.Contains(s.text("/v1/"+path+"/"+path+"?wait=1m"), `"error"`)
		})
	}
}

// TestRetryOfATwoPhaseCommit: one that is halted is shown with its reason, and an operator
// resumes it.
func TestRetryOfATwoPhaseCommit(t *testing.T) {
	shop, store := newShop(t), memory.NewJournal()
	j, err := journal.New(store, &journal.Options{Shards: 2})
	ok(t, err)
	defer j.Close()
	_, err = j.Begin(t.Context(), "1", "2pc:transaction", time.Now().Add(time.Hour),
		journal.Entry{Kind: "decide", Step: "commit", Data: []byte(`{"id":"1","run":"100000000000","branches":["north"]}`)},
		journal.Entry{Kind: "halted", Data: []byte(`{"text":"its process seems to crash"}`)})
	ok(t, err)
	s := serve(t, store, &httpapi.Options{Participants: map[string]string{"north": shop.url}})
	same(t, "halted", s.do("GET", "/v1/2pc/1", "", 200)["halted"], "its process seems to crash")
	page := s.do("GET", "/v1/2pc?state=COMMITTING&limit=1&after=0", "", 200)
	same(t, "after", page["after"], "1")
	contains(t, "listed", page["items"].([]any)[0], map[string]any{"id": "1", "type": "transaction", "state": "COMMITTING", "halted": "its process seems to crash"})
	same(t, "list of others", s.text("/v1/2pc?state=HEURISTIC"), `{"items":[]}`)
	same(t, "list after it", s.text("/v1/2pc?after=1"), `{"items":[]}`)
	s.do("POST", "/v1/2pc/1/retry", `{"actor":"me"}`, 422)
	s.do("POST", "/v1/2pc/1/retry", `{"actor":"me","reason":"it has a fix"}`, 200)
	testbed.Eventually(t, "it is committed", time.Minute, func() bool {
		return s.do("GET", "/v1/2pc/1?wait=1m", "", 200)["state"] == "COMMITTED"
	})
	s.do("POST", "/v1/2pc/1/retry", `{"actor":"me","reason":"once more"}`, 409)
}
