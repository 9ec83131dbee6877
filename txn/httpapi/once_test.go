package httpapi_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

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
			t.Parallel()
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
	t.Parallel()
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

// TestOneParticipantCommitsOnce: a single participant, which needs no two phases, commits once for
// any number of requests.
func TestOneParticipantCommitsOnce(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
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
