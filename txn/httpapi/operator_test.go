package httpapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"strings"
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
	t.Parallel()
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
