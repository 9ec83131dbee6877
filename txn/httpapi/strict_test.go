package httpapi_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/txn/httpapi"
	"github.com/interlock-dev/interlock/txn/tcc"
	"github.com/interlock-dev/interlock/txn/twopc"
)

// TestErrorsHaveOneShape: also those of requests that are refused unread. The helper checks the shape
// of each.
func TestErrorsHaveOneShape(t *testing.T) {
	t.Parallel()
	s := serve(t, memory.NewJournal(), nil)
	for _, c := range []struct {
		method, path string
		status       int
	}{
		{"GET", "/", 404}, {"GET", "/v1/saga/1", 404}, {"POST", "/v1/sagas/", 404}, {"POST", "/v1/sagas/1/", 404},
		{"DELETE", "/v1/sagas/1", 405}, {"PUT", "/v1/tcc/1", 405}, {"GET", "/v1/2pc/1/decision", 405}, {"OPTIONS", "/v1/2pc/1", 405},
		// A redirect would change a POST to a GET, perhaps of another transaction.
		{"POST", "/v1/sagas//1", 404}, {"POST", "/v1/sagas/../sagas/1", 404}, {"POST", "//v1/sagas/1", 404}, {"POST", "/v1/./sagas/1", 404},
	} {
		s.do(c.method, c.path, "", c.status)
	}
	s.do("POST", "/v1/sagas/%2e%2e", `{"type":"x"}`, http.StatusUnprocessableEntity) // is an id like any other
}

// TestAllowedMethodsAreTold: the refusal of a method has the allowed ones.
func TestAllowedMethodsAreTold(t *testing.T) {
	t.Parallel()
	s := serve(t, memory.NewJournal(), nil)
	r, err := http.NewRequestWithContext(t.Context(), "DELETE", s.url+"/v1/sagas/1", nil)
	ok(t, err)
	defer http.DefaultClient.CloseIdleConnections()
	answer, err := http.DefaultClient.Do(r)
	ok(t, err)
	answer.Body.Close()
	if allow := answer.Header.Get("Allow"); !strings.Contains(allow, "GET") || !strings.Contains(allow, "POST") {
		t.Errorf("%q", allow)
	}
}

// TestAmbiguousRequestsAreRefused: requests that parsers read differently are refused. Values of the
// user are not checked.
func TestAmbiguousRequestsAreRefused(t *testing.T) {
	shop := newShop(t)
	s := serve(t, memory.NewJournal(), &httpapi.Options{Participants: map[string]string{"north": shop.url, "south": shop.url}})
	step := fmt.Sprintf(`"do":"%s","pivot":true`, shop.url)
	for _, c := range [][3]string{
		{"sagas", `{"type":"x","steps":[{"name":"a",` + step + `}],"type":"y"}`, `"type" twice`},
		{"sagas", `{"type":"x","steps":[{"name":"a","undo":"http://elsewhere/"}],"steps":[{"name":"a",` + step + `}]}`, `"steps" twice`},
		{"sagas", `{"type":"x","steps":[{"name":"a",` + step + `,"name":"b"}]}`, `"name" twice`},
		{"sagas", `{"type":"x","steps":[{"name":"a",` + step + `,"retry":{"attempts":1,"attempts":2}}]}`, `"attempts" twice`},
		{"sagas", `{"type":"x","steps":[{"parallel":[{"name":"a","name":"b"}]}]}`, `"name" twice`},
		{"sagas", `{"TYPE":"x","steps":[{"name":"a",` + step + `}]}`, `"TYPE"`},
		{"sagas", `{"type":"x","steps":[{"Name":"a",` + step + `}]}`, `"Name"`},
		{"sagas", `{"type":"x","steps":[{"name":"a",` + step + `,"undoo":""}]}`, `"undoo"`},
		{"tcc", `{"type":"x","branches":[{"name":"a","url":"http://x/","url":"http://y/"}]}`, `"url" twice`},
		{"tcc", `{"type":"x","branches":[{"name":"a","url":"http://x/","URL":"http://y/"}]}`, `"URL"`},
		{"2pc", `{"branches":{"north":{"add":1},"north":{"add":2}}}`, `"north" twice`},
		{"2pc", `{"branches":{"north":1},"branches":{"south":1}}`, `"branches" twice`},
	} {
		got := s.do("POST", "/v1/"+c[0]+"/1", c[1], http.StatusBadRequest)
		if !strings.Contains(fmt.Sprint(got["error"]), c[2]) {
			t.Errorf("%s: %v, want %s", c[1], got, c[2])
		}
	}
	for _, path := range []string{"/v1/sagas/1", "/v1/tcc/1", "/v1/2pc/1"} {
		s.do("GET", path, "", http.StatusNotFound)
	}
	own := `{"a":1,"A":2,"a":12345678901234567890123,"steps":[{"name":1,"name":2}]}`
	s.do("POST", "/v1/sagas/2?wait=1m", `{"type":"x","input":`+own+`,"steps":[{"name":"a","input":`+own+`,`+step+`}]}`, 200)
	same(t, "own input", shop.bodies["a do"], own)
	s.do("POST", "/v1/2pc/3?wait=1m", `{"branches":{"north":`+own+`,"south":null}}`, 200)
	same(t, "own input", shop.bodies["north prepare"], own)
}

// TestQueryIsRead: a misspelled parameter is an error.
func TestQueryIsRead(t *testing.T) {
	shop, s := open(t)
	for _, query := range []string{"wiat=10s", "wait=1s&wait=2s", "wait=1s&x=", "wait=-1s", "wait=10m1s", "wait=1", "wait=%zz", "wait=1s;x=1", "Wait=1s"} {
		s.do("POST", "/v1/sagas/1?"+query, steps(shop), http.StatusBadRequest)
	}
	s.do("GET", "/v1/sagas/1", "", http.StatusNotFound)
	s.do("POST", "/v1/sagas/1?wait=", steps(shop), 200)
}

// TestNamesAreRefusedOrKept: names are never changed.
func TestNamesAreRefusedOrKept(t *testing.T) {
	shop, s := open(t)
	saga := fmt.Sprintf(`{"type":"x","steps":[{"name":"a","do":"%s","pivot":true}]}`, shop.url)
	tcc := fmt.Sprintf(`{"type":"x","branches":[{"name":"a","url":"%s"}]}`, shop.url)
	for _, id := range []string{"%00", "a%00b", "%ff", "%c3%28", "%ed%a0%80"} {
		s.do("POST", "/v1/sagas/"+id, saga, http.StatusBadRequest)
		s.do("POST", "/v1/tcc/"+id, tcc, http.StatusBadRequest)
		s.do("POST", "/v1/2pc/"+id+"/decision", "", http.StatusBadRequest)
	}
	long := strings.Repeat("%c3%a9", 101)
	s.do("POST", "/v1/sagas/"+long, saga, http.StatusUnprocessableEntity)
	s.do("POST", "/v1/tcc/"+long, tcc, http.StatusUnprocessableEntity)
	for _, name := range []string{`a\u0000`, ``, strings.Repeat("é", 128)} {
		s.do("POST", "/v1/sagas/1", strings.Replace(saga, `"a"`, `"`+name+`"`, 1), http.StatusUnprocessableEntity)
		s.do("POST", "/v1/tcc/1", strings.Replace(tcc, `"a"`, `"`+name+`"`, 1), http.StatusUnprocessableEntity)
	}
	s.do("POST", "/v1/sagas/1", strings.Replace(saga, `"a"`, "\"a\xff\"", 1), http.StatusBadRequest)
	s.do("POST", "/v1/tcc/1", strings.Replace(tcc, `"a"`, "\"a\xff\"", 1), http.StatusBadRequest)
	if len(shop.history) > 0 {
		t.Error(shop.history)
	}
	for path, id := range map[string]string{"%0a%0d%1b%5b2J": "\n\r\x1b[2J", "%e2%80%ae%F0%9F%9C%81": "\u202e🜁", "%2e": ".", "%252f": "%2f", "a+b": "a+b", "a;b": "a;b"} {
		got := s.do("POST", "/v1/sagas/"+path+"?wait=1m", saga, 200)
		same(t, "id", got["id"], id)
		same(t, "state", got["state"], "SUCCEEDED")
		if shop.state(id+" a") != "held" {
			t.Errorf("%q has another name where it is done", id)
		}
	}
}

// TestTooLong: a request that is too long is refused as such.
func TestTooLong(t *testing.T) {
	shop := newShop(t)
	s := servePolling(t, memory.NewJournal(), nil, time.Second)
	step := fmt.Sprintf(`,"steps":[{"name":"a","do":"%s","input":1,"pivot":true}]}`, shop.url)
	long := func(text string, n int) string {
		return `{"type":"x","input":"` + strings.Repeat(text, n/len(text)) + `"` + step
	}
	s.do("POST", "/v1/sagas/1", long("x", 1<<20), http.StatusRequestEntityTooLarge)
	s.do("POST", "/v1/sagas/1", long("<", 1<<19), http.StatusRequestEntityTooLarge) // is kept as \u003c
	s.do("POST", "/v1/sagas/1", strings.Repeat("[", 1<<19), http.StatusBadRequest)
	s.do("POST", "/v1/sagas/1", `{"steps":[`+strings.Repeat(`{"parallel":[`, 4<<10)+strings.Repeat(`]}`, 4<<10)+`]}`, http.StatusBadRequest)
	s.do("GET", "/v1/sagas/1", "", http.StatusNotFound)
	same(t, "state", s.do("POST", "/v1/sagas/1?wait=1m", long("x", 1<<20-1<<12), 200)["state"], "SUCCEEDED")
}

// TestBounds: requests beyond a bound are refused, with the bound.
func TestBounds(t *testing.T) {
	t.Parallel()
	s := serve(t, memory.NewJournal(), &httpapi.Options{Steps: 3, Pause: 100 * time.Millisecond})
	refused := func(steps, why string) {
		t.Helper()
		if got := fmt.Sprint(s.do("POST", "/v1/sagas/1", `{"type":"x","steps":[`+steps+`]}`, 400)["error"]); !strings.Contains(got, why) {
			t.Errorf("%s: %s", steps, got)
		}
	}
	sleep := `{"name":"%d","sleep":"1ms"}`
	refused(fmt.Sprintf(strings.Repeat(sleep+",", 3)+sleep, 1, 2, 3, 4), "at most 3 are allowed")
	refused(`{"parallel":[{"name":"a","do":"http://x/"},{"name":"b","do":"http://x/"},{"name":"c","do":"http://x/"}]}`, "at most 3 are allowed")
	refused(`{"name":"a","do":"http://x/","retry":{"first":"99ms"}}`, "at least 100ms")
	refused(`{"name":"a","do":"http://x/","retry":{"max":"1ms"}}`, "at least 100ms")
	refused(`{"name":"a","do":"http://me:s3cret@x/","pivot":true}`, "user or a password")
	same(t, "state", s.do("POST", "/v1/sagas/1?wait=30s", `{"type":"x","steps":[`+fmt.Sprintf(sleep, 1)+`]}`, 200)["state"], "SUCCEEDED")
}

// TestSecretsOfAddresses: no error contains the query or the user of an address.
func TestSecretsOfAddresses(t *testing.T) {
	t.Parallel()
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	s := serve(t, memory.NewJournal(), &httpapi.Options{Participants: map[string]string{"north": closed.URL + "/?token=s3cret"},
		TCC: &tcc.Options{Retry: tcc.Policy{First: time.Millisecond, Max: 10 * time.Millisecond}}, TwoPC: &twopc.Options{Prepare: 100 * time.Millisecond, Timeout: 100 * time.Millisecond}})
	for path, body := range map[string]string{
		"/v1/sagas/1":          `{"type":"x","steps":[{"name":"a","do":"http://me:s3cret@x/?s3cret","pivot":true}]}`,
		"/v1/sagas/2":          `{"type":"x","steps":[{"name":"a","do":"ftp://x/?token=s3cret","pivot":true}]}`,
		"/v1/sagas/3":          `{"type":"x","steps":[{"name":"a","do":"http://x:y/?token=s3cret","pivot":true}]}`,
		"/v1/tcc/1":            `{"type":"x","branches":[{"name":"a","url":"http://s3cret@x/"}]}`,
		"/v1/sagas/4?wait=30s": fmt.Sprintf(`{"type":"x","steps":[{"name":"a","do":"%s/?token=s3cret","pivot":true,"retry":{"first":"1ms","attempts":1}}]}`, closed.URL),
		"/v1/tcc/2?wait=30s":   fmt.Sprintf(`{"type":"x","branches":[{"name":"a","url":"%s/?token=s3cret"}]}`, closed.URL),
		"/v1/2pc/1?wait=100ms": `{"branches":{"north":1}}`,
	} {
		r, err := http.Post(s.url+path, "application/json", strings.NewReader(body))
		ok(t, err)
		text := new(strings.Builder)
		_ = r.Write(text)
		if strings.Contains(text.String(), "s3cret") {
			t.Errorf("%s: %s", path, text)
		}
		if err := r.Body.Close(); err != nil {
			t.Error(err)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	same(t, "shown", string(httpapi.RedactOrder([]byte(`{"type":"x","steps":[{"name":"a","do":"http://u:s3cret@x/y?s3cret=1","undo":"http://x/#s3cret"}]}`))),
		`{"type":"x","steps":[{"name":"a","do":"http://x/y?…","undo":"http://x/"}]}`)
}

// TestTimeoutOfASaga: a saga that has not called its pivot in time is undone.
func TestTimeoutOfASaga(t *testing.T) {
	shop, s := open(t)
	body := fmt.Sprintf(`{"type":"x","timeout":"20ms","steps":[{"name":"a","do":"%[1]s","undo":"%[1]s"},{"name":"b","sleep":"1h"},{"name":"c","do":"%[1]s","pivot":true}]}`, shop.url)
	same(t, "state", s.do("POST", "/v1/sagas/1?wait=1m", body, 200)["state"], "COMPENSATED")
}

// TestLists: pages of all transactions in some states, and of those that wait for an operator.
func TestLists(t *testing.T) {
	shop, s := open(t)
	shop.refuse, shop.broken = "b", "/gone"
	for _, id := range []string{"1", "2", "3"} {
		s.do("POST", "/v1/sagas/"+id, `{"type":"wait","steps":[{"name":"a","sleep":"1h"}]}`, 200)
	}
	body := fmt.Sprintf(`{"type":"order","steps":[{"name":"a","do":"%[1]s","undo":"%[1]s/gone","retry":{"first":"1ms","undos":1}},{"name":"b","do":"%[1]s","pivot":true}]}`, shop.url)
	s.do("POST", "/v1/sagas/9?wait=1m", body, 200)
	ids := func(path string) (all []string, after any) {
		t.Helper()
		got := s.do("GET", path, "", 200)
		for _, one := range got["items"].([]any) {
			all = append(all, one.(map[string]any)["id"].(string))
		}
		return all, got["after"]
	}
	first, after := ids("/v1/sagas?limit=2")
	same(t, "a page", first, []string{"1", "2"})
	rest, _ := ids("/v1/sagas?limit=2&after=" + fmt.Sprint(after))
	same(t, "the next", rest, []string{"3", "9"})
	dead, _ := ids("/v1/sagas?state=DEAD_LETTER")
	same(t, "dead letters", dead, []string{"9"})
	waiting, _ := ids("/v1/sagas?state=RUNNING,UNDOING&type=wait")
	same(t, "of a type", waiting, []string{"1", "2", "3"})
	item := s.do("GET", "/v1/sagas?state=DEAD_LETTER", "", 200)["items"].([]any)[0].(map[string]any)
	if said := fmt.Sprint(item["dead"]); !strings.Contains(said, "409") || item["type"] != "order" {
		t.Errorf("%v", item)
	}
	trip := fmt.Sprintf(`{"type":"trip","branches":[{"name":"a","url":"%s/"}]}`, shop.url)
	s.do("POST", "/v1/tcc/t1", trip, 200)
	testbed.Eventually(t, "it has ended", time.Minute, func() bool {
		all, _ := ids("/v1/tcc")
		return len(all) == 0
	})
	s.do("GET", "/v1/sagas?state=ODD", "", 400)
	s.do("GET", "/v1/sagas?limit=0", "", 400)
	s.do("GET", "/v1/sagas?stat=RUNNING", "", 400)
}

// TestHealth: a journal that answers suffices.
func TestHealth(t *testing.T) {
	t.Parallel()
	s := serve(t, memory.NewJournal(), nil)
	same(t, "health", s.do("GET", "/healthz", "", 200)["status"], "ok")
	same(t, "readiness", s.do("GET", "/readyz", "", 200)["status"], "ok")
}
