package httpapi_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestSignals: a saga waits for an approval by its name, and later steps get it. Without a signal in
// time the step has its Else value, or the saga is undone.
func TestSignals(t *testing.T) {
	t.Parallel()
	shop := newShop(t)
	s := serve(t, memory.NewJournal(), nil)
	body := func(wait string) string {
		return fmt.Sprintf(`{"type":"x","steps":[{"name":"a","do":"%[1]s","undo":"%[1]s"},{"name":"approval","signal":true%[2]s},{"name":"b","do":"%[1]s","pivot":true}]}`, shop.url, wait)
	}
	same(t, "waits", s.do("POST", "/v1/sagas/1?wait=50ms", body(""), 200)["state"], "RUNNING")
	s.do("POST", "/v1/sagas/1/signals/approval", `{"value":{"by":"ann"}}`, 200)
	s.do("POST", "/v1/sagas/1/signals/approval", `{"value":{"by":"ann"}}`, 200)
	same(t, "state", s.do("GET", "/v1/sagas/1?wait=30s", "", 200)["state"], "SUCCEEDED")
	shop.set(func() {
		same(t, "what b was sent", shop.bodies["b do"], `{"input":null,"outputs":{"a":{"branch":"a"},"approval":{"by":"ann"}}}`)
	})
	s.do("POST", "/v1/sagas/2", body(""), 200)
	s.do("POST", "/v1/sagas/2/signals/approval", `{"value":1}`, 200)
	s.do("POST", "/v1/sagas/2/signals/approval", `{"value":2}`, 409)
	same(t, "late", s.do("POST", "/v1/sagas/3?wait=30s", body(`,"within":"20ms"`), 200)["state"], "COMPENSATED")
	same(t, "else", s.do("POST", "/v1/sagas/4?wait=30s", body(`,"within":"20ms","else":false`), 200)["outputs"].(map[string]any)["approval"], false)
	s.do("POST", "/v1/sagas/5", `{"type":"x","steps":[{"name":"a","sleep":"1s","within":"1s"}]}`, 400)
	s.do("POST", "/v1/sagas/none/signals/approval", `{}`, 404)
}

// TestStartAt: nothing is called before the start time.
func TestStartAt(t *testing.T) {
	t.Parallel()
	shop := newShop(t)
	s := serve(t, memory.NewJournal(), nil)
	body := func(at string) string {
		return fmt.Sprintf(`{"type":"x","startAt":%q,"steps":[{"name":"a","do":"%s","pivot":true}]}`, at, shop.url)
	}
	same(t, "later", s.do("POST", "/v1/sagas/1?wait=50ms", body(time.Now().Add(time.Hour).Format(time.RFC3339)), 200)["state"], "RUNNING")
	shop.set(func() { same(t, "calls", len(shop.history), 0) })
	same(t, "by hand", s.do("POST", "/v1/sagas/1/now?wait=30s", `{"actor":"me","reason":"it is time"}`, 200)["state"], "SUCCEEDED")
	same(t, "in the past", s.do("POST", "/v1/sagas/2?wait=30s", body("2020-01-01T00:00:00Z"), 200)["state"], "SUCCEEDED")
	s.do("POST", "/v1/sagas/3", body("tomorrow"), 400)
}

// TestOnEnd: the outcome of a saga is posted until the address answers, and not before its Retry-After.
func TestOnEnd(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var told []string
	var first time.Time
	ear := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		if told = append(told, r.Header.Get("Interlock-Operation")+" "+r.Header.Get("Interlock-Transaction")+" "+string(text)); len(told) == 1 {
			first = time.Now()
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusServiceUnavailable)
		} else if pause := time.Since(first); pause < time.Second {
			t.Errorf("it was called again after %v", pause)
		}
	}))
	t.Cleanup(ear.Close)
	s := serve(t, memory.NewJournal(), nil)
	s.do("POST", "/v1/sagas/1", fmt.Sprintf(`{"type":"order","onEnd":%q,"steps":[{"name":"a","sleep":"1ms"}]}`, ear.URL), 200)
	testbed.Eventually(t, "it is reported twice", time.Minute, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(told) == 2
	})
	for _, text := range told {
		if !strings.HasPrefix(text, `ended 1 {"id":"1","type":"order","state":"SUCCEEDED"`) {
			t.Error(text)
		}
	}
	s.do("POST", "/v1/sagas/2", `{"type":"order","onEnd":"ftp://x","steps":[{"name":"a","sleep":"1ms"}]}`, 400)
}
