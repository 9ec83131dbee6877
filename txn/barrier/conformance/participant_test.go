package conformance_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/txn/barrier/conformance"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/branchhttp"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// handler serves a participant: its branch, and the effects of its accounts.
func handler(work func(context.Context, []byte) ([]byte, error),
	effects func(context.Context, string) (conformance.Effects, error)) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /", branchhttp.Handler(work))
	mux.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) {
		e, err := effects(r.Context(), r.URL.Query().Get("account"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_ = json.NewEncoder(w).Encode(e)
	})
	return mux
}

// served returns the address of a participant.
func served(t *testing.T, work func(context.Context, []byte) ([]byte, error),
	effects func(context.Context, string) (conformance.Effects, error)) string {
	t.Helper()
	s := httptest.NewServer(handler(work, effects))
	t.Cleanup(s.Close)
	return s.URL
}

// inside sends requests to a handler without a network, since there are many.
type inside struct{ handler http.Handler }

func (i inside) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	i.handler.ServeHTTP(w, r)
	return w.Result(), nil
}

// client returns a client with its own connections, which end with the test.
func client(t *testing.T) *http.Client {
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// plays runs the kit, which must not return an error.
func plays(t *testing.T, o conformance.Options) conformance.Report {
	t.Helper()
	if o.Client == nil {
		o.Client = client(t)
	}
	report, err := conformance.Run(t.Context(), o)
	testbed.OK(t, err)
	return report
}

var errNoRoom = errors.New("there is no room")

// accounts is the business of a participant, without any barrier. It is not safe for
// concurrent use.
type accounts struct {
	all  map[string]conformance.Effects
	runs int
}

// run does the business of one message.
func (a *accounts) run(c branch.Call, in conformance.Input) ([]byte, error) {
	e := a.all[in.Account]
	switch c.Operation {
	case branch.Do, branch.Try, branch.Prepare:
		if e.Held+e.Confirmed+in.Amount > in.Capacity {
			return nil, branch.Fail(errNoRoom)
		}
		if c.Operation == branch.Do {
			e.Confirmed += in.Amount
		} else {
			e.Held += in.Amount
		}
	case branch.Confirm, branch.Commit:
		e.Held -= in.Amount
		e.Confirmed += in.Amount
	case branch.Undo:
		e.Confirmed -= in.Amount
	case branch.Cancel, branch.Rollback:
		e.Held -= in.Amount
	}
	a.all[in.Account] = e
	a.runs++
	return fmt.Appendf(nil, `{"hold":%d}`, a.runs), nil
}

// A flaw is a fault of a participant.
type flaw string

const (
	none            flaw = ""
	emptyUndo       flaw = "an undo of what never came is an error"
	emptyUndoRuns   flaw = "an undo of what never came takes something back"
	hanging         flaw = "a first behind its undo is accepted"
	doubleFirst     flaw = "a repeated first is done again"
	businessFirst   flaw = "the business is asked before the barrier"
	otherResult     flaw = "a repeated first has another result"
	doubleUndo      flaw = "a repeated undo is done again"
	confirmUndone   flaw = "a confirm behind the undo is accepted"
	confirmNothing  flaw = "a confirm of what never came is accepted"
	doubleConfirm   flaw = "a repeated confirm is done again"
	undoConfirmed   flaw = "an undo of what is confirmed is accepted"
	forgetful       flaw = "a refusal is forgotten"
	undoRefused     flaw = "an undo of a refusal takes something back"
	unkeyed         flaw = "the input is not compared"
	byTransaction   flaw = "branches are not told apart"
	racy            flaw = "the barrier looks, and then writes"
	unhurried       flaw = "deadlines do not count"
	careless        flaw = "headers are not read strictly"
	dumb            flaw = "a refusal is an error of the server's"
	chatty          flaw = "the output is not JSON"
	refusesForGood  flaw = "a late message is refused for good"
	remembersNoUndo flaw = "an undo is not remembered"
	busyRefused     flaw = "a message is refused while another of its branch is under way"
)

// row is a barrier's row of a branch.
type row struct{ state, result, input string }

// simple is a participant in memory. Its barrier is a map and has a flaw.
type simple struct {
	flaw flaw

	mu       sync.Mutex
	rows     map[string]row
	busy     map[string]bool
	business accounts
}

func newSimple(f flaw) *simple {
	return &simple{flaw: f, rows: map[string]row{}, busy: map[string]bool{}, business: accounts{all: map[string]conformance.Effects{}}}
}

func (p *simple) effects(_ context.Context, account string) (conformance.Effects, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.business.all[account], nil
}

func (p *simple) work(ctx context.Context, input []byte) ([]byte, error) {
	c := branch.From(ctx)
	c.Operation, c.Attempt = "", 0
	id := c.Key()
	if p.flaw == byTransaction {
		id = c.Transaction
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	seen := p.rows[id]
	switch p.flaw {
	case busyRefused:
		if p.busy[id] {
			return nil, branch.Fail(errors.New("it is being worked on"))
		}
		p.busy[id] = true
		defer delete(p.busy, id)
		fallthrough
	case racy:
		p.mu.Unlock()
		time.Sleep(time.Millisecond) // so that two concurrent messages both read first
		p.mu.Lock()
	}
	var in conformance.Input
	if err := json.Unmarshal(input, &in); err != nil {
		return nil, err
	}
	next, output, err := p.pass(branch.From(ctx), seen, in, string(input))
	p.rows[id] = next
	return output, err
}

// spoil adds the flaws in HTTP.
func (p *simple) spoil(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case p.flaw == unhurried:
			r.Header.Del(branchhttp.HeaderDeadline)
		case p.flaw == careless && r.Header.Get(branchhttp.HeaderBranch) == "":
			r.Header.Set(branchhttp.HeaderBranch, "some")
		}
		answer := httptest.NewRecorder()
		h.ServeHTTP(answer, r)
		body := answer.Body.String()
		switch {
		case p.flaw == dumb && answer.Code == http.StatusConflict:
			answer.Code = http.StatusInternalServerError
		case p.flaw == refusesForGood && answer.Code == http.StatusRequestTimeout:
			answer.Code = http.StatusConflict
		case p.flaw == chatty && answer.Code == http.StatusOK && r.Method == http.MethodPost:
			body = "ok"
		}
		w.WriteHeader(answer.Code)
		_, _ = io.WriteString(w, body)
	})
}

// pass is the barrier.
func (p *simple) pass(c branch.Call, seen row, in conformance.Input, input string) (next row, output []byte, err error) {
	run := func(state string) (row, []byte, error) {
		output, err := p.business.run(c, in)
		switch {
		case err != nil && p.flaw == forgetful:
			return seen, nil, err
		case err != nil:
			return row{"refused", err.Error(), input}, nil, err
		}
		return row{state, string(output), input}, output, nil
	}
	violation := errors.New("somebody has decided otherwise")
	switch c.Operation {
	case branch.Do, branch.Try, branch.Prepare:
		if p.flaw == businessFirst {
			if e := p.business.all[in.Account]; e.Held+e.Confirmed+in.Amount > in.Capacity {
				return seen, nil, branch.Fail(errNoRoom)
			}
		}
		switch {
		case seen.state == "" || seen.state == "undone" && p.flaw == hanging, seen.state == "done" && p.flaw == doubleFirst:
			in.Capacity += int64(len(seen.state)) // so that it is not refused again
			return run("done")
		case seen.state == "undone":
			return seen, nil, branch.Fail(errors.New("it was undone"))
		case seen.input != input && p.flaw != unkeyed:
			return seen, nil, errors.New("another input")
		case seen.state == "refused":
			return seen, nil, branch.Fail(errors.New(seen.result))
		case p.flaw == otherResult:
			p.business.runs++
			return seen, fmt.Appendf(nil, `{"hold":%d}`, p.business.runs), nil
		}
		return seen, []byte(seen.result), nil
	case branch.Confirm, branch.Commit:
		switch {
		case seen.state == "done", seen.state == "undone" && p.flaw == confirmUndone, seen.state == "confirmed" && p.flaw == doubleConfirm,
			seen.state == "" && p.flaw == confirmNothing:
			next, _, err := run("confirmed")
			next.result = seen.result
			return next, nil, err
		case seen.state == "confirmed":
			return seen, nil, nil
		}
		return seen, nil, violation
	}
	switch {
	case seen.state == "" && p.flaw == emptyUndo:
		return seen, nil, errors.New("nothing is known of it")
	case seen.state == "done" && p.flaw == remembersNoUndo:
		_, _, err := run("")
		return row{}, nil, err
	case seen.state == "done", seen.state == "undone" && p.flaw == doubleUndo, seen.state == "" && p.flaw == emptyUndoRuns,
		seen.state == "confirmed" && p.flaw == undoConfirmed, seen.state == "refused" && p.flaw == undoRefused:
		next, _, err := run("undone")
		return next, nil, err
	case seen.state == "confirmed":
		return seen, nil, violation
	case seen.state == "refused":
		return seen, nil, nil
	}
	return row{state: "undone"}, nil, nil
}
