package cli_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// A participant that accepts everything, and does nothing, fails, with the messages,
// the expectation and the result. An unreachable one is a separate error.
func TestConformanceConvicts(t *testing.T) {
	t.Parallel()
	yes := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			fmt.Fprint(w, `{"held":0,"confirmed":0}`)
		}
	}))
	defer yes.Close()
	out, said := run(t, 1, "conformance", yes.URL, "--protocol", "tcc", "--rounds", "1", "-o", "json")
	var v struct {
		Plays    int
		Failures []struct{ Protocol, Operation, Expected, Got string }
	}
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		t.Fatal(err, out)
	}
	if v.Plays < 10 || len(v.Failures) < 10 || v.Failures[0].Protocol != "tcc" || v.Failures[0].Expected == v.Failures[0].Got {
		t.Errorf("%+v", v)
	}
	if !strings.Contains(said, "docs/reference/conformance.md") {
		t.Error(said)
	}
	run(t, 64, "conformance", yes.URL, "--protocol", "paxos")
	run(t, 64, "conformance")
	run(t, 64, "conformance", "127.0.0.1:1")
	if _, said := run(t, 64, "conformance", "http://me:s3cret@127.0.0.1:1/?s3cret"); strings.Contains(said, "s3cret") {
		t.Error(said)
	}
	gone := httptest.NewServer(nil)
	gone.Close()
	if _, said := run(t, 69, "conformance", gone.URL+"/?token=s3cret"); strings.Contains(said, "s3cret") {
		t.Error(said)
	}
}

// An interrupted run reports its findings so far.
func TestConformanceInterrupted(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 1000)
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		time.Sleep(100 * time.Millisecond)
		fmt.Fprint(w, `{"held":0,"confirmed":0}`)
	}))
	defer slow.Close()
	p := testbed.Command(t, program(t), "conformance", slow.URL, "-o", "json")
	for range 20 {
		<-asked
	}
	p.Signal(syscall.SIGINT)
	wantCode(t, p, 130)
	if line := p.Line(patience); !strings.HasPrefix(line, `{"plays":`) {
		t.Errorf("%q\n%s", line, p.Stderr())
	}
	if said := p.Stderr(); !strings.Contains(said, "not all was played") {
		t.Error(said)
	}
}
