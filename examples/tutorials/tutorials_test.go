// Package tutorials tests the programs of docs/tutorials: each runs against real servers, and
// its page shows its code.
package tutorials

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/generated"
	"github.com/interlock-dev/interlock/internal/testbed"
)

const patience = 30 * time.Second

var program = regexp.MustCompile("(?s)<!-- program: (\\w+) -->\n```go\n.*?```\n")

// TestPages checks that the pages show the programs of this directory, each of them.
func TestPages(t *testing.T) {
	pages, err := filepath.Glob("../../docs/tutorials/*.md")
	if err != nil || len(pages) < 6 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	shown := map[string]bool{}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		testbed.OK(t, err)
		want := program.ReplaceAllFunc(text, func(block []byte) []byte {
			name := string(program.FindSubmatch(block)[1])
			shown[name] = true
			source, err := os.ReadFile(filepath.Join(name, "main.go"))
			testbed.OK(t, err)
			_, code, _ := strings.Cut(string(source), "\n") // the comment names the page
			_, code, _ = strings.Cut("\n"+code, "package main")
			return []byte("<!-- program: " + name + " -->\n```go\npackage main" + code + "```\n")
		})
		generated.Check(t, page, string(want))
	}
	if programs, err := filepath.Glob("*/main.go"); err != nil || len(programs) != len(shown) {
		t.Errorf("pages show %v, and the programs are %v, %v", shown, programs, err)
	}
}

// build compiles all programs once, and returns the directory.
func build(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("needs servers: not with -short")
	}
	dir := t.TempDir()
	if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", dir+"/", "./...").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}

// listening starts a server program and returns its address.
func listening(t *testing.T, path string, args ...string) (*testbed.Process, string) {
	t.Helper()
	p := testbed.Start(t, testbed.Program{Path: "sh", Args: append([]string{"-c", `exec "$0" "$@" 2>&1`, path, "-listen", "127.0.0.1:0"}, args...)})
	_, address, ok := strings.Cut(p.Line(patience), "listening on ")
	if !ok {
		t.Fatalf("%s does not listen", path)
	}
	return p, address
}

// TestPrograms runs each program as its tutorial does.
func TestPrograms(t *testing.T) {
	dir := build(t)
	t.Run("saga", func(t *testing.T) { testSaga(t, filepath.Join(dir, "saga")) })
	t.Run("leader", func(t *testing.T) { testLeader(t, filepath.Join(dir, "leader")) })
	t.Run("idempotent", func(t *testing.T) { testIdempotent(t, filepath.Join(dir, "idempotent")) })
	t.Run("outbox", func(t *testing.T) { testOutbox(t, filepath.Join(dir, "outbox"), filepath.Join(dir, "receiver")) })
}

func testSaga(t *testing.T, path string) {
	t.Parallel()
	url := "etcd://" + testbed.Etcd(t).Addr() + "?ttl=2s"
	run := func(code int, args ...string) []string {
		c := exec.Command(path, append([]string{"-backend", url}, args...)...)
		out, err := c.Output()
		if c.ProcessState.ExitCode() != code {
			t.Fatalf("%v, want exit code %d", err, code)
		}
		return strings.Split(strings.TrimSpace(string(out)), "\n")
	}
	steps := func(lines []string) (names string) {
		for _, line := range lines {
			name, _, _ := strings.Cut(line, " ")
			names += " " + name
		}
		return strings.TrimSpace(names)
	}
	if got := steps(run(0, "order/1", "lamp")); got != "reserve charge ship SUCCEEDED" {
		t.Errorf("a lamp: %s", got)
	}
	if got := steps(run(1, "order/2", "piano")); got != "reserve charge refund release COMPENSATED" {
		t.Errorf("a piano: %s", got)
	}
	killed := testbed.Command(t, path, "-backend", url, "-pause", "1m", "order/3", "lamp")
	if line := killed.Line(patience); !strings.HasPrefix(line, "reserve lamp") {
		t.Fatalf("it printed %q", line)
	}
	killed.Kill()
	if got := steps(run(0, "order/3", "lamp")); got != "reserve charge ship SUCCEEDED" {
		t.Errorf("after a crash: %s", got)
	}
}

func testLeader(t *testing.T, path string) {
	t.Parallel()
	url := "etcd://" + testbed.Etcd(t).Addr() + "?ttl=2s"
	start := func(name string) *testbed.Process {
		return testbed.Command(t, "sh", "-c", `exec "$0" "$@" 2>&1`, path, "-backend", url, "-as", name)
	}
	says := func(p *testbed.Process, text string) bool { // or its output ends
		for bound := time.After(patience); ; {
			select {
			case line, more := <-p.Stdout():
				if !more || strings.Contains(line, text) {
					return more
				}
			case <-bound:
				t.Fatalf("it did not say %q", text)
			}
		}
	}
	expect := func(p *testbed.Process, text string) {
		t.Helper()
		if !says(p, text) {
			t.Fatalf("it ended before %q", text)
		}
	}
	for rejected := false; !rejected; {
		first := start("a")
		expect(first, "counted to")
		second := start("b")
		first.Pause()
		expect(second, "leading with token")
		first.Resume()
		rejected = says(first, "rejected") // unless the pause came between a write and a look at the context
		expect(second, "counted to")
		second.Signal(syscall.SIGTERM)
		second.Wait(patience)
	}
}

func testIdempotent(t *testing.T, path string) {
	t.Parallel()
	_, address := listening(t, path, "-postgres", testbed.Postgres(t).URL())
	post := func(key string) (string, string) {
		request, _ := http.NewRequestWithContext(t.Context(), "POST", "http://"+address+"/charges", strings.NewReader(`{"account": "ann", "amount": 30}`))
		request.Header.Set("Idempotency-Key", key)
		response, err := http.DefaultClient.Do(request)
		testbed.OK(t, err)
		defer response.Body.Close()
		body, _ := io.ReadAll(response.Body)
		return response.Status + " " + string(body), response.Header.Get("Idempotency-Replayed")
	}
	first, _ := post("1f9a")
	again, replayed := post("1f9a")
	other, _ := post("77c2")
	if want := `201 Created {"id":1,"account":"ann","amount":30}`; first != want || again != want || replayed != "true" {
		t.Errorf("%s, then %s, replayed: %s", first, again, replayed)
	}
	if want := `201 Created {"id":2,"account":"ann","amount":30}`; other != want {
		t.Errorf("another key: %s", other)
	}
}

func testOutbox(t *testing.T, path, receiver string) {
	t.Parallel()
	database := testbed.Postgres(t).URL()
	events, address := listening(t, receiver, "-postgres", database)
	testbed.Command(t, path, "-postgres", database, "-receiver", "http://"+address+"/events", "-orders", "2")
	for range 2 {
		if line := events.Line(patience); !strings.Contains(line, `{"order": "order-`) || !strings.HasSuffix(line, "done") {
			t.Errorf("the receiver printed %q", line)
		}
	}
}
