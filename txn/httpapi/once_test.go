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

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/branchhttp"
	"github.com/interlock-dev/interlock/txn/httpapi"
)

// slow is a journal that delays its first decision before the store.
type slow struct {
	*memory.Journal
	once    sync.Once
	reached chan struct{}
	goOn    chan struct{}
}

func newSlow(store *memory.Journal) *slow {
	return &slow{Journal: store, reached: make(chan struct{}), goOn: make(chan struct{})}
}

func (s *slow) Append(ctx context.Context, appends []driver.Append) []error {
	for _, a := range appends {
		if a.Records[0].Kind == "decide" {
			s.once.Do(func() { close(s.reached); <-s.goOn })
		}
	}
	return s.Journal.Append(ctx, appends)
}

// TestOneOutcomeIsTold: two requests of one id overlap at two coordinators, and the second finds the
// participants in use. Neither reports an abort while the other one commits.
func TestOneOutcomeIsTold(t *testing.T) {
	t.Parallel()
	body := `{"branches":{"north":{"add":-1},"south":{"add":1}}}`
	for name, first := range map[string]bool{"the second is quick": false, "the first is quick": true} {
		t.Run(name, func(t *testing.T) {
			shop, store := newShop(t), memory.NewJournal()
			late := newSlow(store)
			participants := map[string]string{"north": shop.url, "south": shop.url}
			one, two := serve(t, late, &httpapi.Options{Participants: participants}), serve(t, store, &httpapi.Options{Participants: participants})
			told := make(chan any, 1)
			go func() { told <- one.do("POST", "/v1/2pc/1", body, 200)["decision"] }()
			<-late.reached
			shop.set(func() { shop.refuse = "south" }) // which the first one has
			if first {
				gate := make(chan struct{})
				shop.set(func() { shop.wait = gate })
				other := make(chan any, 1)
				go func() { other <- two.do("POST", "/v1/2pc/1", body, 200)["decision"] }()
				<-shop.asked
				close(late.goOn)
				same(t, "first", <-told, "commit")
				close(gate)
				same(t, "second", <-other, "commit")
			} else {
				same(t, "second", two.do("POST", "/v1/2pc/1", body, 200)["decision"], "abort")
				close(late.goOn)
				same(t, "first", <-told, "abort")
			}
			two.do("GET", "/v1/2pc/1?wait=1m", "", 200)
			want := 0
			if first {
				want = 2
			}
			if n, held := shop.count("final"), shop.count("held"); n != want || held > 0 {
				t.Errorf("%d branches are committed, want %d, and %d held", n, want, held)
			}
		})
	}
}

// TestAbortHasAReason: an abort has a reason, and a repeated request gets the same one.
func TestAbortHasAReason(t *testing.T) {
	shop := newShop(t)
	shop.refuse = "south"
	s := serve(t, memory.NewJournal(), &httpapi.Options{Participants: map[string]string{"north": shop.url, "south": shop.url}})
	body := `{"branches":{"north":{"add":-1},"south":{"add":1}}}`
	got := s.do("POST", "/v1/2pc/1?wait=1m", body, 200)
	same(t, "state", got["state"], "ABORTED")
	calls := len(shop.history)
	same(t, "again", s.do("POST", "/v1/2pc/1?wait=1m", body, 200), got)
	same(t, "looked at", s.do("GET", "/v1/2pc/1", "", 200), got)
	if len(shop.history) != calls {
		t.Error("a repeated request calls again")
	}
}

// TestAbortHasALongReason: an abort is recorded although a participant gives a long reason that is not UTF-8.
func TestAbortHasALongReason(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	latin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, strings.Repeat("\xe9t\xe9 ", 300))
	}))
	t.Cleanup(latin.Close)
	s := serve(t, memory.NewJournal(), &httpapi.Options{Participants: map[string]string{"north": latin.URL}})
	got := s.do("POST", "/v1/2pc/1", `{"branches":{"north":1}}`, 200)
	same(t, "decision", got["decision"], "abort")
	called := calls.Load()
	same(t, "again", s.do("POST", "/v1/2pc/1", `{"branches":{"north":1}}`, 200)["reason"], got["reason"])
	if calls.Load() != called {
		t.Error("a repeated request calls again")
	}
}

// TestOneParticipantCommitsOnce: a single participant, which needs no two phases, commits once for
// any number of requests.
func TestOneParticipantCommitsOnce(t *testing.T) {
	shop := newShop(t)
	s := serve(t, memory.NewJournal(), &httpapi.Options{Participants: map[string]string{"north": shop.url}})
	for range 3 {
		got := s.do("POST", "/v1/2pc/1?wait=1m", `{"branches":{"north":{"add":-1}}}`, 200)
		same(t, "decision", got["decision"], "commit")
		same(t, "state", got["state"], "COMMITTED")
		same(t, "history", shop.history, []string{"north prepare", "north commit"})
	}
}

// TestHeuristicIsAcknowledged: a participant that refuses to commit after its vote is reported until
// an operator acknowledges it.
func TestHeuristicIsAcknowledged(t *testing.T) {
	shop := newShop(t)
	liar := httptest.NewServer(branchhttp.Handler(func(ctx context.Context, _ []byte) ([]byte, error) {
		if branch.From(ctx).Operation == branch.Commit {
			return nil, branch.Fail(errNo)
		}
		return nil, nil
	}))
	t.Cleanup(liar.Close)
	s := serve(t, memory.NewJournal(), &httpapi.Options{Participants: map[string]string{"north": shop.url, "south": liar.URL}})
	got := s.do("POST", "/v1/2pc/1?wait=1m", `{"branches":{"north":1,"south":2}}`, 200)
	same(t, "decision", got["decision"], "commit")
	same(t, "state", got["state"], "HEURISTIC")
	if said := fmt.Sprint(got["branches"]); !strings.Contains(said, "409") || shop.count("final") != 1 {
		t.Error(said)
	}
	s.do("POST", "/v1/2pc/1/resolve", `{"actor":"me"}`, 422)
	same(t, "state", s.do("POST", "/v1/2pc/1/resolve", `{"actor":"me","reason":"put right by hand"}`, 200)["state"], "RESOLVED")
}

// TestOneRunOfABooking: of 50 copies of a request at two coordinators, one tries the branches.
// All return its outcome, also if the client of the first one disconnects.
func TestOneRunOfABooking(t *testing.T) {
	shop, store := newShop(t), memory.NewJournal()
	gate := make(chan struct{})
	shop.set(func() { shop.wait = gate })
	services := []*service{serve(t, store, nil), serve(t, store, nil)}
	body := fmt.Sprintf(`{"type":"booking","branches":[{"name":"hotel","url":%q},{"name":"flight","url":%[1]q}]}`, shop.url)
	first, leave := context.WithCancel(t.Context())
	defer leave()
	left := make(chan error, 1)
	go func() {
		r, err := http.NewRequestWithContext(first, "POST", services[0].url+"/v1/tcc/1", strings.NewReader(body))
		if err == nil {
			_, err = http.DefaultClient.Do(r)
		}
		left <- err
	}()
	<-shop.asked
	<-shop.asked
	same(t, "before the decision", services[1].do("GET", "/v1/tcc/1", "", 200)["state"], "TRYING")
	const copies = 50
	answers := make(chan map[string]any, copies)
	for i := range copies {
		go func() { answers <- services[i%2].do("POST", "/v1/tcc/1", body, 200) }()
	}
	leave()
	if err := <-left; err == nil {
		t.Error("the first client was answered")
	}
	close(gate)
	for range copies {
		got := <-answers
		same(t, "decision", got["decision"], "confirm")
		same(t, "holds", got["holds"], map[string]any{"hotel": map[string]string{"branch": "hotel"}, "flight": map[string]string{"branch": "flight"}})
	}
	tries := 0
	shop.set(func() {
		for _, call := range shop.history {
			if strings.HasSuffix(call, " try") {
				tries++
			}
		}
	})
	if tries != 2 {
		t.Errorf("%d tries of two branches", tries)
	}
}

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
