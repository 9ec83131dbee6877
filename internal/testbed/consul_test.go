package testbed

import (
	"net/http"
	"strings"
	"testing"
)

// TestConsulClusterElects checks that another server leads after the first is killed, which
// returns as a follower with the writes that it missed.
func TestConsulClusterElects(t *testing.T) {
	t.Parallel()
	e := ConsulCluster(t, 3)
	first := e.Leader()
	first.Kill()
	next := e.Leader()
	if next == first {
		t.Fatal("the killed server leads")
	}
	put(t, next, "k", "v")
	first.Restart()
	e.mustServe(first)
	if body, err := getConsul(first.Addr(), "/v1/kv/k?raw&consistent"); err != nil || string(body) != "v" {
		t.Errorf("after a restart: %q, %v", body, err)
	}
}

func put(t *testing.T, s *Server, key, value string) {
	t.Helper()
	request, err := http.NewRequest(http.MethodPut, s.URL()+"/v1/kv/"+key, strings.NewReader(value))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if answer.StatusCode != http.StatusOK {
		t.Fatal(answer.Status)
	}
}
