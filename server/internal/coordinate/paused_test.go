package coordinate

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/server/internal/backend"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/httpapi"
	"github.com/interlock-dev/interlock/txn/journal"
)

// TestCopiesOnAPausedStore sends copies of a request while the journal's store does not answer.
// None may get the answer that the saga has certainly not begun: one of them may have begun it.
func TestCopiesOnAPausedStore(t *testing.T) {
	t.Parallel()
	etcd := testbed.Etcd(t)
	target, err := backend.Parse("etcd://" + etcd.Addr())
	ok(t, err)
	store, disconnect, err := target.Journal(t.Context(), "")
	ok(t, err)
	defer disconnect()
	j, err := journal.New(store, &journal.Options{Patience: 500 * time.Millisecond})
	ok(t, err)
	defer j.Close()
	c, err := coordinator.New(j, nil)
	ok(t, err)
	service, err := httpapi.New(c, nil)
	ok(t, err)
	server := httptest.NewServer(service)
	defer server.Close()
	client := server.Client()
	post := func(ctx context.Context, id string) string {
		body := `{"type":"x","steps":[{"name":"a","sleep":"1h"}]}`
		r, err := http.NewRequestWithContext(ctx, "POST", server.URL+"/v1/sagas/"+id, strings.NewReader(body))
		if err != nil {
			return err.Error()
		}
		answer, err := client.Do(r)
		if err != nil {
			return err.Error()
		}
		defer answer.Body.Close()
		return fmt.Sprint(answer.StatusCode)
	}
	etcd.Pause()
	const copies = 12
	answers := make(chan string, 2*copies)
	for range copies {
		go func() { answers <- post(t.Context(), "one") }()
	}
	for range copies {
		if got := <-answers; got != "504" {
			t.Errorf("a copy is answered %s, want 504", got)
		}
	}
	for i := range copies { // most are never sent to the store
		go func() { answers <- post(t.Context(), fmt.Sprint("other", i)) }()
	}
	for range copies {
		if got := <-answers; got != "504" && got != "503" {
			t.Errorf("a request is answered %s, want 503 or 504", got)
		}
	}
	etcd.Resume()
	testbed.Eventually(t, "a repeated request finds out", patience, func() bool { return post(t.Context(), "one") == "200" })
}
