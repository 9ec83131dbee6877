package httpapi_test

import (
	"context"
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
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/branchhttp"
)

// ledger is a participant that does each branch once, gives a repeated call the first answer, and
// rejects one with another input, as barriers do.
type ledger struct {
	url string

	mu     sync.Mutex
	inputs map[string]string // of completed calls, by branch
	undone map[string]bool
	lose   map[string]int // answers to a branch that are lost, though it is done
	output func(name string) []byte
}

func newLedger(t *testing.T) *ledger {
	l := &ledger{inputs: map[string]string{}, undone: map[string]bool{}, lose: map[string]int{},
		output: func(name string) []byte { return fmt.Appendf(nil, "%q", name) }}
	server := httptest.NewServer(branchhttp.Handler(l.answer))
	t.Cleanup(server.Close)
	l.url = server.URL
	return l
}

func (l *ledger) answer(ctx context.Context, input []byte) ([]byte, error) {
	c := branch.From(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.Operation == branch.Undo {
		l.undone[c.Branch] = true
		return nil, nil
	}
	before, done := l.inputs[c.Branch]
	l.inputs[c.Branch] = string(input)
	if l.lose[c.Branch]--; l.lose[c.Branch] >= 0 {
		return nil, errNo
	}
	if done && before != string(input) {
		l.inputs[c.Branch] = before
		return nil, fmt.Errorf("it arrived with another input: %.100s, and now %.100s", before, input)
	}
	return l.output(c.Branch), nil
}

// TestRepeatedStepIsSentTheSame: a repeated call has the same body, also in a group in which others
// have completed since.
func TestRepeatedStepIsSentTheSame(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	l.lose["b"], l.lose["d"] = 2, 2
	s := serve(t, memory.NewJournal(), nil)
	retry := `"retry":{"first":"1ms","max":"5ms","attempts":6}`
	body := fmt.Sprintf(`{"type":"x","input":1,"steps":[{"name":"z","do":"%[1]s","undo":"%[1]s"},
		{"parallel":[{"name":"a","do":"%[1]s","undo":"%[1]s",%[2]s},{"name":"b","do":"%[1]s","undo":"%[1]s",%[2]s}]},
		{"parallel":[{"name":"c","do":"%[1]s","uncompensable":true,%[2]s},{"name":"d","do":"%[1]s","undo":"%[1]s",%[2]s}]},
		{"name":"e","do":"%[1]s","pivot":true}]}`, l.url, retry)
	same(t, "state", s.do("POST", "/v1/sagas/1?wait=1m", body, 200)["state"], "SUCCEEDED")
	same(t, "what b was sent", l.inputs["b"], `{"input":1,"outputs":{"z":"z"}}`)
	same(t, "what e was sent", l.inputs["e"], `{"input":1,"outputs":{"a":"a","b":"b","c":"c","d":"d","z":"z"}}`)
}

// TestLongOutputsAreKept: an output of the documented maximum size, with any content, reaches later
// steps and the undo.
func TestLongOutputsAreKept(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	long := `"` + strings.Repeat("<", branchhttp.MaxBody-2) + `"`
	l.output = func(string) []byte { return []byte(long) }
	s := servePolling(t, memory.NewJournal(), nil, time.Second)
	body := fmt.Sprintf(`{"type":"x","steps":[{"name":"a","do":"%[1]s","undo":"%[1]s"},{"name":"b","do":"%[1]s","pivot":true}]}`, l.url)
	got := s.do("POST", "/v1/sagas/1?wait=1m", body, 200)
	same(t, "state", got["state"], "SUCCEEDED")
	if outputs := got["outputs"].(map[string]any); `"`+outputs["b"].(string)+`"` != long {
		t.Errorf("%.100v", outputs)
	}
	if want := `{"input":null,"outputs":{"a":` + long + `}}`; l.inputs["b"] != want {
		t.Errorf("b was sent %d bytes, want %d", len(l.inputs["b"]), len(want))
	}
	hold := fmt.Sprintf(`{"type":"x","branches":[{"name":"x","url":"%[1]s"},{"name":"y","url":"%[1]s"}]}`, l.url)
	same(t, "decision", s.do("POST", "/v1/tcc/2?wait=1m", hold, 200)["state"], "CONFIRMED")
}

// TestLongOutputsCanBeUndone: outputs that together are too long for the next step make it fail, and
// the undos get the outputs that fit.
func TestLongOutputsCanBeUndone(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	long := `"` + strings.Repeat("x", branchhttp.MaxBody-2) + `"`
	l.output = func(string) []byte { return []byte(long) }
	s := servePolling(t, memory.NewJournal(), nil, time.Second)
	var steps []string
	for _, name := range []string{"a", "b", "c", "d"} {
		steps = append(steps, fmt.Sprintf(`{"name":%q,"do":"%[2]s","undo":"%[2]s"}`, name, l.url))
	}
	steps = append(steps, fmt.Sprintf(`{"name":"e","do":"%s","pivot":true}`, l.url))
	got := s.do("POST", "/v1/sagas/1?wait=1m", `{"type":"x","steps":[`+strings.Join(steps, ",")+`]}`, 200)
	same(t, "state", got["state"], "COMPENSATED")
	if reason := fmt.Sprint(got["reason"]); !strings.Contains(reason, "an input of its own") {
		t.Errorf("%.300s", reason)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.undone) != 4 || l.inputs["e"] != "" {
		t.Errorf("%v are undone", l.undone)
	}
}

// TestStepThatAnswersNoJSON: such a step is done, once, and has no output.
func TestStepThatAnswersNoJSON(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	participant := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		_, _ = io.WriteString(w, "OK")
	}))
	t.Cleanup(participant.Close)
	s := serve(t, memory.NewJournal(), nil)
	body := fmt.Sprintf(`{"type":"x","steps":[{"name":"a","do":"%[1]s","undo":"%[1]s"},{"name":"b","do":"%[1]s","pivot":true}]}`, participant.URL)
	got := s.do("POST", "/v1/sagas/1?wait=1m", body, 200)
	same(t, "state", got["state"], "SUCCEEDED")
	same(t, "outputs", got["outputs"], map[string]any{"a": nil, "b": nil})
	if calls.Load() != 2 {
		t.Errorf("%d calls of two steps", calls.Load())
	}
}
