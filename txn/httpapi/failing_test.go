package httpapi_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/txn/httpapi"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/tcc"
)

// failures are four or more.
var failures = regexp.MustCompile(`"attempts":([4-9]|\d\d)`)

// TestFailuresAreShown: a transaction whose participant fails shows which call, how often
// it failed and the last error, whatever the protocol.
func TestFailuresAreShown(t *testing.T) {
	t.Parallel()
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
			return !strings.Contains(s.text("/v1/"+path+"/"+path+"?wait=10s"), `"error"`)
		})
	}
}

// TestRetryOfATwoPhaseCommit: one that is halted is shown with its reason, and an operator
// resumes it.
func TestRetryOfATwoPhaseCommit(t *testing.T) {
	t.Parallel()
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
		return s.do("GET", "/v1/2pc/1?wait=10s", "", 200)["state"] == "COMMITTED"
	})
	s.do("POST", "/v1/2pc/1/retry", `{"actor":"me","reason":"once more"}`, 409)
}
