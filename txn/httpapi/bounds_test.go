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
	t.Parallel()
	shop := newShop(t)
	s := serve(t, memory.NewJournal(), nil)
	body := fmt.Sprintf(`{"type":"x","timeout":"20ms","steps":[{"name":"a","do":"%[1]s","undo":"%[1]s"},{"name":"b","sleep":"1h"},{"name":"c","do":"%[1]s","pivot":true}]}`, shop.url)
	same(t, "state", s.do("POST", "/v1/sagas/1?wait=1m", body, 200)["state"], "COMPENSATED")
}

// TestLists: pages of all transactions in some states, and of those that wait for an operator.
func TestLists(t *testing.T) {
	t.Parallel()
	shop := newShop(t)
	shop.refuse, shop.broken = "b", "/gone"
	s := serve(t, memory.NewJournal(), nil)
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
