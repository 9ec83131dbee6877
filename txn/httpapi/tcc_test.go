package httpapi_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/driver/memory"
)

// TestOneRunOfABooking: of 50 copies of a request at two coordinators one tries the branches, and all
// return its outcome, also if the client of the first one disconnects.
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
