package httpapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/branchhttp"
	"github.com/interlock-dev/interlock/txn/httpapi"
)

// said has the answers of the page's branches.
var said = map[string]string{"pay": `{"receipt":7}`, "hotel": `{"room":7}`, "north": `{"balance":90}`}

// TestPage: the requests of docs/reference/http.md have the answers on the page, except one that
// waits for a day.
func TestPage(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/reference/http.md")
	ok(t, err)
	blocks := regexp.MustCompile("(?ms)^```json\n(.*?)^```$").FindAllStringSubmatch(string(text), -1)
	if len(blocks) != 6 {
		t.Fatalf("%d examples, want three requests with their answers", len(blocks))
	}
	s := serve(t, memory.NewJournal(), &httpapi.Options{
		Client:       everywhere(t, branchhttp.Handler(func(ctx context.Context, _ []byte) ([]byte, error) { return []byte(said[branch.From(ctx).Branch]), nil })),
		Participants: map[string]string{"north": "http://north/", "south": "http://south/"}})
	for i, path := range []string{"sagas", "tcc", "2pc"} {
		var want map[string]any
		ok(t, json.Unmarshal([]byte(blocks[2*i+1][1]), &want))
		request := strings.Replace(blocks[2*i][1], `"24h"`, `"24ms"`, 1)
		got := s.do("POST", fmt.Sprintf("/v1/%s/%s?wait=1m", path, want["id"]), request, 200)
		contains(t, path, got, want)
	}
}

// TestPageNamesRoutes: all routes are on the page.
func TestPageNamesRoutes(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("httpapi.go")
	ok(t, err)
	text, err := os.ReadFile("../../docs/reference/http.md")
	ok(t, err)
	page := strings.ReplaceAll(string(text), "{transaction}", "{id}")
	routes := regexp.MustCompile(`"((?:GET|POST) /v1/\S+)":`).FindAllStringSubmatch(string(source), -1)
	if len(routes) < 10 {
		t.Fatalf("%d routes", len(routes))
	}
	for _, r := range routes {
		if route := strings.Replace(r[1], "{operation}", "retry", 1); !strings.Contains(page, "`"+route+"`") {
			t.Errorf("%s is not named", route)
		}
	}
}

// contains requires that an answer contains want; it may have more outputs.
func contains(t *testing.T, at string, got, want any) {
	t.Helper()
	members, nested := want.(map[string]any)
	if !nested {
		same(t, at, got, want)
		return
	}
	all, _ := got.(map[string]any)
	for name, value := range members {
		contains(t, at+"."+name, all[name], value)
	}
}

// everywhere returns a client that sends all requests to one handler, whatever their address.
func everywhere(t *testing.T, h http.Handler) *http.Client {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	transport := &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, server.Listener.Addr().String())
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}
