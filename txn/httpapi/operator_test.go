package httpapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/txn/barrier"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/branchhttp"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/saga"
)

// TestEveryOperatorEditsInputs: a step gets the input of an operator, over HTTP and by
// saga.Operator, which `interlock saga retry --input` uses.
func TestEveryOperatorEditsInputs(t *testing.T) {
	shop, store := newShop(t), memory.NewJournal()
	s := serve(t, store, nil)
	j, err := journal.New(store, nil)
	ok(t, err)
	defer j.Close()
	by := saga.By{Actor: "me", Reason: "the address was misspelled"}
	http := func(id, input string) {
		s.do("POST", "/v1/sagas/"+id+"/retry", `{"actor":"me","reason":"x","step":"mail","input":`+input+`}`, 200)
	}
	library := func(id, input string) {
		ok(t, saga.NewOperator(j).Edit(t.Context(), id, "mail", []byte(input), by))
	}
	for i, c := range []struct {
		retry func(id, input string)
		input string
	}{{http, `{"to":"b"}`}, {http, `5`}, {library, `{"to":"b"}`}, {library, `5`}, {library, `{"steps":[]}`}} {
		id := fmt.Sprint(i)
		shop.set(func() { shop.broken = "/mail" })
		s.do("POST", "/v1/sagas/"+id, fmt.Sprintf(`{"type":"x","steps":[{"name":"pay","do":"%[1]s","pivot":true},
			{"name":"mail","do":"%[1]s/mail","retry":{"first":"1h"}}]}`, shop.url), 200)
		testbed.Eventually(t, "the mail waits", time.Minute, func() bool {
			return s.do("GET", "/v1/sagas/"+id, "", 200)["state"] == "COMPLETING"
		})
		shop.set(func() { shop.broken = "" })
		c.retry(id, c.input)
		same(t, "state", s.do("GET", "/v1/sagas/"+id+"?wait=30s", "", 200)["state"], "SUCCEEDED")
		shop.set(func() { same(t, "what the step was sent", shop.bodies["mail do"], c.input) })
	}
}

// TestEditComesTooLate: a call with the former input was done, and its answer was lost. The
// participant reports that, and the coordinator shows it.
func TestEditComesTooLate(t *testing.T) {
	t.Parallel()
	p := barrier.Keyed[memory.Business]{Barrier: memory.NewBarrier(), Business: func(_ context.Context, input []byte) (memory.Business, error) {
		return func([]byte, bool) ([]byte, error) { return json.Marshal(string(input)) }, nil
	}}
	var lost atomic.Bool
	participant := httptest.NewServer(branchhttp.Handler(func(ctx context.Context, input []byte) ([]byte, error) {
		out, err := p.Call(ctx, input)
		if branch.From(ctx).Branch == "mail" && !lost.Swap(true) {
			return nil, errNo
		}
		return out, err
	}))
	t.Cleanup(participant.Close)
	s := serve(t, memory.NewJournal(), nil)
	s.do("POST", "/v1/sagas/late", fmt.Sprintf(`{"type":"x","input":"old","steps":[{"name":"pay","do":"%[1]s","pivot":true},
		{"name":"mail","do":"%[1]s","retry":{"first":"1h"}}]}`, participant.URL), 200)
	testbed.Eventually(t, "the answer is lost", time.Minute, func() bool {
		return lost.Load() && s.do("GET", "/v1/sagas/late", "", 200)["state"] == "COMPLETING"
	})
	s.do("POST", "/v1/sagas/late/retry", `{"actor":"me","reason":"x","step":"mail","input":{"to":"b"}}`, 200)
	got := s.do("GET", "/v1/sagas/late?wait=30s", "", 200)
	same(t, "state", got["state"], "SUCCEEDED")
	same(t, "output", got["outputs"].(map[string]any)["mail"], `{"input":"old","outputs":{"pay":"{\"input\":\"old\",\"outputs\":{}}"}}`)
	if crossed := fmt.Sprint(got["crossed"]); !strings.Contains(crossed, "step:mail") || !strings.Contains(crossed, "the edit of its input came too late") {
		t.Errorf("%v", crossed)
	}
}

// TestSignals: a saga waits for an approval by its name, and later steps get it. Without a signal in
// time the step has its Else value, or the saga is undone.
func TestSignals(t *testing.T) {
	shop, s := open(t)
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
	shop, s := open(t)
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
