package twopc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/branchhttp"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
)

// service is a participant behind HTTP. Its input is an amount, which it adds to a number
// of a memory participant.
type service struct {
	bank *memory.Participant

	mu     sync.Mutex
	calls  []branch.Call
	answer map[branch.Operation]int // statuses instead of the work, once each
	insist bool                     // and every time
	lose   map[branch.Operation]bool
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		s.list(w, r)
		return
	}
	c, err := branchhttp.FromRequest(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	s.calls = append(s.calls, c)
	status, lose := s.answer[c.Operation], s.lose[c.Operation]
	if !s.insist {
		delete(s.answer, c.Operation)
	}
	delete(s.lose, c.Operation)
	s.mu.Unlock()
	if status != 0 {
		w.WriteHeader(status)
		return
	}
	output, err := s.do(r, c)
	switch {
	case lose:
		panic(http.ErrAbortHandler)
	case err != nil:
		http.Error(w, err.Error(), http.StatusConflict)
	default:
		_, _ = fmt.Fprint(w, output)
	}
}

func (s *service) do(r *http.Request, c branch.Call) (output string, err error) {
	x := driver.XID{Transaction: c.Transaction, Branch: c.Branch}
	switch c.Operation {
	case branch.Commit:
		return "", s.bank.Commit(r.Context(), x)
	case branch.Rollback:
		return "", s.bank.Rollback(r.Context(), x)
	}
	var amount int64
	if err := json.NewDecoder(r.Body).Decode(&amount); err != nil {
		return "", err
	}
	tx, b, err := s.bank.Begin(r.Context(), x)
	if err != nil {
		return "", err
	}
	if amount != 0 {
		if _, err = tx.Add("sum", amount); err != nil {
			return "", errors.Join(err, b.Abandon(r.Context()))
		}
	}
	vote, err := b.Prepare(r.Context())
	return fmt.Sprintf(`{"vote":%q}`, vote), err
}

func (s *service) list(w http.ResponseWriter, r *http.Request) {
	if !r.URL.Query().Has("in-doubt") || r.URL.Query().Get("shop") != "7" {
		http.Error(w, "it is not the list that was asked for", http.StatusBadRequest)
		return
	}
	doubts, err := s.bank.InDoubt(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	all := []listedBranch{}
	for _, d := range doubts {
		all = append(all, listedBranch{d.XID.Transaction, d.XID.Branch, d.Since.UnixMilli()})
	}
	_ = json.NewEncoder(w).Encode(all)
}

// says answers the next call of an operation by a status, without any work.
func (s *service) says(op branch.Operation, status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer[op] = status
}

// insists answers all calls of an operation by a status: the watcher's too.
func (s *service) insists(op branch.Operation, status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer[op], s.insist = status, true
}

// loses loses the answer to the next call of an operation, once it is done.
func (s *service) loses(op branch.Operation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lose[op] = true
}

func (s *service) called() []branch.Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// remote is an engine of a bank in memory, north, and a service behind HTTP, shop.
type remote struct {
	*Engine
	north   Definition[*memory.Branch]
	shop    Definition[*Remote]
	bank    *memory.Participant
	service *service
	store   *memory.Journal
}

func online(t *testing.T) *remote {
	t.Helper()
	t.Parallel()
	s := &service{bank: memory.NewParticipant(), answer: map[branch.Operation]int{}, lose: map[branch.Operation]bool{}}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	client := server.Client()
	t.Cleanup(client.CloseIdleConnections)
	r := &remote{bank: memory.NewParticipant(), service: s, store: memory.NewJournal()}
	r.north = Define("north", r.bank)
	r.shop = Define("shop", HTTP{URL: server.URL + "/pay?shop=7", Caller: branchhttp.Caller{Client: client}})
	j, err := journal.New(r.store, &journal.Options{Shards: 1})
	ok(t, err)
	t.Cleanup(func() { ok(t, j.Close()) })
	c, err := coordinator.New(j, &coordinator.Options{Poll: 10 * time.Millisecond})
	ok(t, err)
	r.Engine, err = New(c, &Options{Patience: 2 * time.Second, Scan: 20 * time.Millisecond, Timeout: 5 * time.Second}, r.north, r.shop)
	ok(t, err)
	ctx, stop := context.WithCancel(context.Background())
	var work sync.WaitGroup
	claim := txntest.Grant(1)
	work.Go(func() { _ = c.Serve(ctx, claim, 0) })
	work.Go(func() { _ = r.Watch(ctx) })
	t.Cleanup(func() { stop(); work.Wait() })
	return r
}

// pay takes an amount from the bank and gives it to the shop.
func (r *remote) pay(amount int64) func(ctx context.Context, t *T) error {
	return func(ctx context.Context, t *T) error {
		if amount != 0 {
			tx, err := r.north.Join(ctx, t)
			if err == nil {
				_, err = tx.Add("sum", -amount)
			}
			if err != nil {
				return err
			}
		}
		b, err := r.shop.Join(ctx, t)
		if err == nil {
			b.Send(fmt.Appendf(nil, "%d", amount))
		}
		return err
	}
}

// certain waits until nothing is in doubt.
func (r *remote) certain(t *testing.T) {
	t.Helper()
	testbed.Eventually(t, "nothing is in doubt", testbed.Patience, func() bool {
		doubts, err := r.InDoubt(t.Context())
		return err == nil && len(doubts) == 0
	})
}

func (r *remote) want(t *testing.T, shop int64) {
	t.Helper()
	r.certain(t)
	if n, m := r.bank.Get("sum"), r.service.bank.Get("sum"); n != -shop || m != shop {
		t.Errorf("%d and %d, want %d", n, m, shop)
	}
}

// TestHTTP: a participant behind HTTP takes part, with lost answers and without.
func TestHTTP(t *testing.T) {
	r := online(t)
	ok(t, r.Run(t.Context(), "1", r.pay(5)))
	ok(t, txntest.Second(r.Wait(t.Context(), "1")))
	r.want(t, 5)
	calls := r.service.called()
	if len(calls) != 2 || calls[0].Operation != branch.Prepare || calls[1].Operation != branch.Commit || calls[0].Begun != calls[1].Begun ||
		calls[0].Deadline.IsZero() || calls[1].Epoch == 0 || calls[0].Branch != "shop" || calls[0].Transaction != calls[1].Transaction {
		t.Errorf("%+v", calls)
	}

	// The answer to prepare is lost: it is aborted, and rolled back there.
	r.service.loses(branch.Prepare)
	wantKind(t, r.Run(t.Context(), "2", r.pay(7)), interlock.Definite, ErrAborted)
	r.want(t, 5)
	// That to the rollback too: the scan finds the rest, if there is any.
	r.service.loses(branch.Prepare)
	r.service.says(branch.Rollback, 500)
	wantKind(t, r.Run(t.Context(), "2", r.pay(7)), interlock.Definite, ErrAborted)
	r.want(t, 5)
	// That to the commit: it is sent again.
	r.service.loses(branch.Commit)
	ok(t, r.Run(t.Context(), "3", r.pay(7)))
	ok(t, txntest.Second(r.Wait(t.Context(), "3")))
	r.want(t, 12)
	// It says no; it is at work and then says no.
	r.service.says(branch.Prepare, 409)
	wantKind(t, r.Run(t.Context(), "4", r.pay(7)), interlock.Definite, ErrAborted)
	r.service.says(branch.Prepare, 425)
	ok(t, r.Run(t.Context(), "4", r.pay(8)))
	r.want(t, 20)
}

// TestCallsSayWhatTheyAre: each call has its transaction, operation, attempt and deadline. It does
// not have the call that the caller itself serves.
func TestCallsSayWhatTheyAre(t *testing.T) {
	r := online(t)
	serving := branch.With(t.Context(), branch.Call{Transaction: "saga", Branch: "pay", Step: "3", Attempt: 7, Epoch: 5, Deadline: time.Now().Add(time.Hour)})
	r.service.says(branch.Prepare, 425)
	ok(t, r.Run(serving, "1", r.pay(5)))
	r.want(t, 5)
	r.service.says(branch.Prepare, 500)
	r.service.says(branch.Rollback, 500)
	wantKind(t, r.Run(serving, "2", r.pay(5)), interlock.Definite, ErrAborted)
	var got []string
	for _, c := range r.service.called() {
		of, err := parse(c.Transaction)
		if ok(t, err); c.Branch != "shop" || c.Step != "" || c.Epoch == 5 || !c.Begun.Equal(of.began) || c.Deadline.IsZero() || c.Deadline.After(time.Now().Add(10*time.Second)) {
			t.Errorf("%+v", c)
		}
		if c.Operation != branch.Commit {
			got = append(got, fmt.Sprint(of.key, " ", c.Operation, " ", c.Attempt))
		}
	}
	same(t, "calls", got, "1 prepare 1", "1 prepare 2", "2 prepare 1", "2 rollback 1", "2 rollback 2")
}

// TestHTTPAlone: a service alone is prepared and committed without a record.
func TestHTTPAlone(t *testing.T) {
	r := online(t)
	alone := func(input string) func(ctx context.Context, t *T) error {
		return func(ctx context.Context, t *T) error {
			b, err := r.shop.Join(ctx, t)
			if err == nil {
				b.Send([]byte(input))
			}
			return err
		}
	}
	ok(t, r.Run(t.Context(), "1", alone("5")))
	ok(t, r.Run(t.Context(), "2", alone("0"))) // votes read only
	r.service.says(branch.Prepare, 500)
	wantKind(t, r.Run(t.Context(), "3", alone("5")), interlock.Definite, ErrAborted)
	r.service.says(branch.Commit, 500)
	wantKind(t, r.Run(t.Context(), "4", alone("5")), interlock.Uncertain, nil)
	r.certain(t)
	r.service.says(branch.Commit, 425) // it may still be in progress
	wantKind(t, r.Run(t.Context(), "5", alone("5")), interlock.Uncertain, nil)
	r.certain(t) // undecided, so they were aborted
	txntest.Equal(t, "sum of the shop", r.service.bank.Get("sum"), 5)
	var operations []string
	for _, c := range r.service.called()[:3] {
		operations = append(operations, string(c.Operation))
	}
	same(t, "calls", operations, "prepare", "commit", "prepare")
}

// TestHTTPHeuristic: if a service refuses to commit after its yes vote, the outcome is
// HEURISTIC.
func TestHTTPHeuristic(t *testing.T) {
	r := online(t)
	r.service.insists(branch.Commit, 409)
	ok(t, r.Run(t.Context(), "1", r.pay(5)))
	wantKind(t, txntest.Second(r.Wait(t.Context(), "1")), interlock.Definite, driver.ErrHeuristic)
	o, err := r.Look(t.Context(), "1")
	if err != nil || o.State != Heuristic || !strings.Contains(o.Branches[1].Heuristic, "409") {
		t.Errorf("%+v, %v", o, err)
	}
}

// TestHTTPListKeepsSecrets: the error of a list does not show secrets of the address.
func TestHTTPListKeepsSecrets(t *testing.T) {
	t.Parallel()
	for address, kind := range map[string]interlock.ErrorKind{
		"http://me:s3cret@127.0.0.1:1/":         interlock.Bug,
		"http://127.0.0.1:s3cret/?token=s3cret": interlock.Bug,
		"http://127.0.0.1:1/?token=s3cret":      interlock.Retryable,
	} {
		if _, err := (HTTP{URL: address}).InDoubt(t.Context()); interlock.Kind(err) != kind || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v (%v)", address, err, interlock.Kind(err))
		}
	}
}

// TestHTTPList: a service without a list returns none, and an invalid list is an error.
func TestHTTPList(t *testing.T) {
	var status int
	var body string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = fmt.Fprint(w, body)
	}))
	defer server.Close()
	defer server.Client().CloseIdleConnections()
	h := HTTP{URL: server.URL, Caller: branchhttp.Caller{Client: server.Client()}}
	for _, status = range []int{404, 405, 501} {
		if doubts, err := h.InDoubt(t.Context()); len(doubts) != 0 || err != nil {
			t.Errorf("%d: %v, %v", status, doubts, err)
		}
	}
	for code, text := range map[int]string{500: "[]", 200: "no list", 203: "[]"} {
		status, body = code, text
		_, err := h.InDoubt(t.Context())
		wantKind(t, err, interlock.Retryable, nil)
	}
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") }))
	defer elsewhere.Close()
	moved := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	defer moved.Close()
	_, err := HTTP{URL: moved.URL, Caller: h.Caller}.InDoubt(t.Context())
	wantKind(t, err, interlock.Retryable, nil)
	status, body = 200, "["+strings.Repeat(" ", branchhttp.MaxBody)+"]"
	_, err = h.InDoubt(t.Context())
	wantKind(t, err, interlock.Retryable, nil)
	status, body = 200, `[{"transaction":"a","branch":"b"}]`
	doubts, err := h.InDoubt(t.Context())
	if len(doubts) != 1 || doubts[0].XID != (driver.XID{Transaction: "a", Branch: "b"}) || !doubts[0].Since.IsZero() || err != nil {
		t.Errorf("%+v, %v", doubts, err)
	}
	_, err = HTTP{URL: "http://a b"}.InDoubt(t.Context())
	wantKind(t, err, interlock.Bug, nil)
	_, _, err = h.Begin(t.Context(), driver.XID{})
	wantKind(t, err, interlock.Bug, nil)
	wantKind(t, HTTP{}.Commit(t.Context(), driver.XID{Transaction: "a", Branch: "b"}), interlock.Bug, nil)
}

// TestRunWithinACall: a participant is called by the names of its own branch, also if Run is called by a step of a
// saga, and the branch is the only one.
func TestRunWithinACall(t *testing.T) {
	r := online(t)
	outer := branch.Call{Transaction: "saga", Branch: "pay", Step: "3", Operation: branch.Do, Attempt: 7, Begun: time.Now(), Deadline: time.Now().Add(time.Hour), Until: time.Now().Add(time.Minute)}
	ok(t, r.Run(branch.With(t.Context(), outer), "1", func(ctx context.Context, t *T) error {
		b, err := r.shop.Join(ctx, t)
		if err == nil {
			b.Send([]byte("1"))
		}
		return err
	}))
	calls := r.service.called()
	for _, c := range calls {
		if c.Branch != "shop" || c.Step != "" || c.Attempt != 1 || !c.Until.IsZero() || !c.Deadline.Before(outer.Until) {
			t.Errorf("%+v", c)
		}
	}
	if len(calls) != 2 {
		t.Errorf("%d calls", len(calls))
	}
}
