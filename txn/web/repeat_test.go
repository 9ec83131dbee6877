package web_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/txn/branch"
)

// ledger is a participant that does each branch once, answers a repeated call as the
// first one, and takes none for it that has another input, as barriers do. What says
// what a call is answered, once.
type ledger struct {
	url string

	mu     sync.Mutex
	inputs map[string]string // of what was done, by branch
	undone map[string]bool
	lose   map[string]int // answers to a branch that are lost, though it is done
	output func(name string) []byte
}

func newLedger(t *testing.T) *ledger {
	l := &ledger{inputs: map[string]string{}, undone: map[string]bool{}, lose: map[string]int{},
		output: func(name string) []byte { return fmt.Appendf(nil, "%q", name) }}
	server := httptest.NewServer(branch.Handler(l.answer))
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
		return nil, fmt.Errorf("it came with another input: %.100s, and now %.100s", before, input)
	}
	return l.output(c.Branch), nil
}

// TestRepeatedStepIsSentTheSame: one of a group, too, whose answer was lost while others
// were done.
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
	same(t, "state", s.do("POST", "/v1/sagas/1?wait=10s", body, 200)["state"], "SUCCEEDED")
	same(t, "what b was sent", l.inputs["b"], `{"input":1,"outputs":{"z":"z"}}`)
	same(t, "what e was sent", l.inputs["e"], `{"input":1,"outputs":{"a":"a","b":"b","c":"c","d":"d","z":"z"}}`)
}

// TestLongOutputsCanBeUndone: what could not be sent with the undo of a step is no output
// of it, so that the saga is undone and not stuck.
func TestLongOutputsCanBeUndone(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	l.output = func(string) []byte { return []byte(`"` + strings.Repeat("<", 100<<10) + `"`) } // sent on as \u003c
	s := serve(t, memory.NewJournal(), nil)
	body := fmt.Sprintf(`{"type":"x","steps":[{"name":"a","do":"%[1]s","undo":"%[1]s"},
		{"name":"b","do":"%[1]s","undo":"%[1]s","retry":{"first":"1ms","max":"1ms","attempts":2}},
		{"name":"c","do":"%[1]s","pivot":true}]}`, l.url)
	got := s.do("POST", "/v1/sagas/1?wait=1m", body, 200)
	same(t, "state", got["state"], "COMPENSATED")
	if reason := fmt.Sprint(got["reason"]); !strings.Contains(reason, "too long") {
		t.Errorf("%.300s", reason)
	}
	if !l.undone["a"] || !l.undone["b"] || l.inputs["c"] != "" {
		t.Errorf("%v are undone", l.undone)
	}
}
