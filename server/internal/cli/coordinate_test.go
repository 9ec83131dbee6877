package cli_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/branchhttp"
)

// coordinating starts a coordinator, and returns its address.
func coordinating(t *testing.T, url string, args ...string) (*testbed.Process, string) {
	t.Helper()
	p := testbed.Command(t, program(t), append([]string{"coordinate", "--backend", url, "--listen", "127.0.0.1:0", "--ttl", "3s", "--shards", "4"}, args...)...)
	line := p.Line(patience)
	address, _, ok := strings.Cut(strings.TrimPrefix(line, "coordinating on "), ",")
	if !ok {
		t.Fatalf("%q\n%s", line, p.Stderr())
	}
	return p, address
}

// post sends a request, and returns the state in the answer.
func post(t *testing.T, url, body string) (status int, state string) {
	t.Helper()
	answer, err := http.Post(url, "application/json", strings.NewReader(body))
	testbed.OK(t, err)
	defer http.DefaultClient.CloseIdleConnections()
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	var v struct{ State string }
	if err := errors.Join(err, json.Unmarshal(text, &v)); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return answer.StatusCode, v.State
}

// Of two coordinators on one backend, the remaining one finishes the work of a killed
// one, and stops cleanly on a signal.
func TestACoordinatorTakesOver(t *testing.T) {
	t.Parallel()
	var well atomic.Bool
	var done atomic.Int64
	participant := httptest.NewServer(branchhttp.Handler(func(context.Context, []byte) ([]byte, error) {
		if !well.Load() {
			return nil, branch.InProgress(100 * time.Millisecond)
		}
		done.Add(1)
		return nil, nil
	}))
	defer participant.Close()
	url := backends["etcd"](t)
	first, address := coordinating(t, url)
	second, other := coordinating(t, url)
	const sagaProtocol = 12
	for i := range sagaProtocol {
		body := fmt.Sprintf(`{"type":"x","steps":[{"name":"a","do":%q,"pivot":true}]}`, participant.URL)
		if status, state := post(t, fmt.Sprintf("%s/v1/sagas/%d", address, i), body); status != 200 || state != "RUNNING" {
			t.Fatal(status, state)
		}
	}
	first.Kill()
	well.Store(true)
	for i := range sagaProtocol {
		var state string
		testbed.Eventually(t, "the saga has ended", patience, func() bool {
			answer, err := http.Get(fmt.Sprintf("%s/v1/sagas/%d?wait=1s", other, i))
			testbed.OK(t, err)
			defer answer.Body.Close()
			var v struct{ State string }
			testbed.OK(t, json.NewDecoder(answer.Body).Decode(&v))
			state = v.State
			return state == "SUCCEEDED"
		})
	}
	http.DefaultClient.CloseIdleConnections()
	if out, _ := run(t, 0, "saga", "ls", "--type", "x", "--backend", url, "-o", "json"); strings.Count(out, `"type":"x"`) < sagaProtocol {
		t.Error(out)
	}
	if out, message := run(t, 0, "saga", "ls", "--type", "y", "--backend", url); out != "" || !strings.Contains(message, "no such sagas") {
		t.Errorf("%s%s", out, message)
	}
	if done.Load() < sagaProtocol {
		t.Errorf("%d calls", done.Load())
	}
	second.Signal(syscall.SIGTERM)
	wantCode(t, second, 0)
}

// A coordinator reports transactions that wait for an operator, with the command that
// shows them, and those of unknown types; with a flag also each failed call.
func TestACoordinatorTells(t *testing.T) {
	t.Parallel()
	url := backends["etcd"](t)
	participant := httptest.NewServer(branchhttp.Handler(func(ctx context.Context, _ []byte) ([]byte, error) {
		switch c := branch.From(ctx); {
		case c.Branch == "pay":
			return nil, branch.Fail(errors.New("the card was refused"))
		case c.Operation == branch.Undo || c.Operation == branch.Confirm:
			return nil, branch.Fail(errors.New("the shelf is locked"))
		}
		return nil, nil
	}))
	defer participant.Close()
	defer http.DefaultClient.CloseIdleConnections()
	p, address := coordinating(t, url, "--verbose")
	post(t, address+"/v1/sagas/order-1", fmt.Sprintf(`{"type":"order","steps":[{"name":"reserve","do":%q,"undo":%[1]q,"retry":{"first":"100ms","undos":2}},
		{"name":"pay","do":%[1]q,"pivot":true}]}`, participant.URL))
	post(t, address+"/v1/tcc/trip-1", fmt.Sprintf(`{"type":"trip","branches":[{"name":"hotel","url":%q}]}`, participant.URL))
	run(t, 0, "saga", "start", "order-2", "odrer", "--shards", "4", "--backend", url)
	for _, want := range []string{"saga order-1: undo reserve: ", "the shelf is locked", "interlock saga show order-1", "transaction trip-1: confirm hotel: ", "interlock tcc show trip-1",
		"transaction of a type that this process does not know: transaction=order-2 type=saga:odrer "} {
		testbed.Eventually(t, "it says "+want, patience, func() bool { return strings.Contains(p.Stderr(), want) })
	}
	p.Signal(syscall.SIGTERM)
	wantCode(t, p, 0)
}

// Commands show no query of an address, because it can be secret, and know the types of orders.
func TestSagasOverHTTP(t *testing.T) {
	t.Parallel()
	url := backends["etcd"](t)
	_, address := coordinating(t, url)
	for id, order := range map[string]string{
		"plain":    `{"type":"order","steps":[{"name":"a","do":%[1]q,"pivot":true}]}`,
		"reported": `{"type":"order","onEnd":%[1]q,"steps":[{"name":"a","do":%[1]q,"pivot":true}]}`,
		"untyped":  `{"steps":[{"name":"a","do":%[1]q,"pivot":true}]}`,
	} {
		if status, state := post(t, address+"/v1/sagas/"+id, fmt.Sprintf(order, "http://127.0.0.1:1/a?key=s3cret")); status != 200 {
			t.Fatal(status, state)
		}
		for _, format := range []string{"text", "json"} {
			if out, _ := run(t, 0, "saga", "show", id, "-o", format, "--backend", url); !strings.Contains(out, "http://127.0.0.1:1/a?…") || strings.Contains(out, "s3cret") {
				t.Error(out)
			}
		}
	}
	if out, _ := run(t, 0, "saga", "ls", "-o", "json", "--backend", url); strings.Count(out, "http://127.0.0.1:1/a?…") < 3 || strings.Contains(out, "s3cret") {
		t.Error(out)
	}
	if out, _ := run(t, 0, "saga", "ls", "--type", "order", "-o", "json", "--backend", url); !strings.Contains(out, `"id":"plain"`) || !strings.Contains(out, `"id":"reported"`) || strings.Contains(out, "untyped") {
		t.Error(out)
	}
}

// Beyond loopback a coordinator requires its token. Package coordinate tests the check itself.
func TestACoordinatorWithAToken(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	testbed.OK(t, os.WriteFile(token, []byte("0123456789abcdef\n"), 0o600))
	_, address := coordinating(t, backends["etcd"](t), "--listen", "0.0.0.0:0", "--token-file", token, "--allow", "http://127.0.0.1/")
	answer, err := http.Get("http://127.0.0.1:" + address[strings.LastIndex(address, ":")+1:] + "/v1/sagas/none")
	testbed.OK(t, err)
	defer http.DefaultClient.CloseIdleConnections()
	if answer.Body.Close(); answer.StatusCode != http.StatusUnauthorized {
		t.Error(answer.Status)
	}
}

// Invalid flags are rejected at the start, and calls of forbidden addresses are not
// sent.
func TestCoordinateRefuses(t *testing.T) {
	t.Parallel()
	url := backends["etcd"](t)
	run(t, 64, "coordinate", "--participant", "north", "--backend", url)
	run(t, 64, "coordinate", "--participant", "n=http://x", "--participant", "n=http://y", "--backend", url)
	if _, said := run(t, 64, "coordinate", "--participant", "n=postgres://n/bank", "--backend", url); !strings.Contains(said, "not an http:// URL") {
		t.Error(said)
	}
	run(t, 64, "coordinate", "--allow", "10.0.0.7", "--backend", url)
	run(t, 64, "coordinate", "--listen", "7461", "--backend", url)
	run(t, 64, "coordinate", "--shards", "5000", "--backend", url)
	token := filepath.Join(t.TempDir(), "token")
	for _, listen := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:0", "elsewhere:0"} {
		if _, said := run(t, 64, "coordinate", "--listen", listen, "--backend", url); !strings.Contains(said, "--token-file") {
			t.Errorf("%s: %s", listen, said)
		}
	}
	run(t, 64, "coordinate", "--token-file", token, "--backend", url) // the file is missing
	testbed.OK(t, os.WriteFile(token, []byte(" short \n"), 0o600))
	run(t, 64, "coordinate", "--token-file", token, "--backend", url)
	testbed.OK(t, errors.Join(os.WriteFile(token, []byte("0123456789abcdef\n"), 0o600), os.Chmod(token, 0o644)))
	if _, said := run(t, 64, "coordinate", "--token-file", token, "--backend", url); !strings.Contains(said, "chmod 600") {
		t.Error(said)
	}
	if _, said := run(t, 64, "coordinate", "--token-file", token, "--listen", "0.0.0.0:0", "--backend", url); !strings.Contains(said, "--allow") {
		t.Error(said)
	}
	run(t, 64, "coordinate", "--allow-network", "10.0.0.7", "--backend", url)
	run(t, 64, "coordinate", "--client-cert", token, "--backend", url)
	run(t, 64, "coordinate", "--sign-secret-file", token, "--backend", url)
	run(t, 69, "coordinate", "--backend", "etcd://127.0.0.1:1")
	_, said := run(t, 64, "coordinate", "--backend", "redis://127.0.0.1:1")
	if !strings.Contains(said, "cannot store a journal") {
		t.Error(said)
	}
	_, address := coordinating(t, url, "--allow", "http://127.0.0.1:7/good/")
	for to, want := range map[string]int{"bad": 400, "good/../bad": 400, "good/x": 200} { // httpapi.Within decides
		if status, _ := post(t, address+"/v1/sagas/1", fmt.Sprintf(`{"type":"x","steps":[{"name":"a","do":"http://127.0.0.1:7/%s","pivot":true}]}`, to)); status != want {
			t.Errorf("%s: %d", to, status)
		}
	}
}
