package participant

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/txn/barrier/conformance"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/branchhttp"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// python starts the participant on a database and returns its address. Without a port it
// chooses one.
func python(t *testing.T, database string, port ...string) (*testbed.Process, string) {
	t.Helper()
	p := testbed.Command(t, testbed.Binary(t, "python3"), append([]string{"-I", "participant.py", database}, port...)...)
	return p, p.Line(30 * time.Second)
}

// client returns a client with its own connections, which end with the test.
func client(t *testing.T) *http.Client {
	transport := &http.Transport{MaxIdleConnsPerHost: 16}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// TestPythonPassesTheKit runs every protocol in every order.
func TestPythonPassesTheKit(t *testing.T) {
	t.Parallel()
	p, address := python(t, filepath.Join(t.TempDir(), "seats.db"))
	report, err := conformance.Run(t.Context(), conformance.Options{URL: address, Client: client(t),
		Protocols: conformance.Protocols(), Concurrency: 2, Rounds: 2, Patience: 30 * time.Second})
	if err != nil {
		t.Fatal(err, p.Stderr())
	}
	t.Logf("%d plays, %d messages", report.Plays, report.Messages)
	if err := report.Err(); err != nil {
		t.Error(err)
	}
}

// TestPythonRefusesWhatItCannotRead checks that an invalid request has no effect and is not
// mistaken for the next request.
func TestPythonRefusesWhatItCannotRead(t *testing.T) {
	t.Parallel()
	_, address := python(t, filepath.Join(t.TempDir(), "seats.db"))
	u, err := url.Parse(address)
	testbed.OK(t, err)
	const order = `{"account":"a","amount":1,"capacity":9}`
	const about = "Host: x\r\nInterlock-Transaction: t\r\nInterlock-Operation: do\r\nInterlock-Attempt: 1\r\nInterlock-Begun: 1\r\n"
	const branch, length = "Interlock-Branch: b\r\n", "Content-Length: 39\r\n\r\n" + order
	for name, c := range map[string]struct {
		request string
		status  int
	}{
		"no length":     {about + branch + "\r\n", 411},
		"bad length":    {about + branch + "Content-Length: -1\r\n\r\n", 411},
		"long":          {about + branch + "Content-Length: 4194305\r\n\r\n", 413},
		"two lengths":   {about + branch + "Content-Length: 3\r\n" + length, 500},
		"chunks too":    {about + branch + "Transfer-Encoding: chunked\r\n" + length, 411},
		"branch twice":  {about + branch + branch + length, 400},
		"no branch":     {about + length, 400},
		"not a name":    {about + "Interlock-Branch: %ff\r\n" + length, 400},
		"no JSON":       {about + branch + "Content-Length: 1\r\n\r\n{", 500},
		"other JSON":    {about + branch + "Content-Length: 2\r\n\r\n[]", 500},
		"endless":       {about + "X: " + strings.Repeat("x", 1<<17) + "\r\n" + branch + length, 431},
		"after a while": {about + branch + "Interlock-Deadline: 1\r\n" + length, 408},
	} {
		conn, err := net.Dial("tcp", u.Host)
		testbed.OK(t, err)
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\n"+c.request) // it may refuse to read this
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		conn.Close()
		if err != nil || answer.StatusCode != c.status {
			t.Errorf("%s: %v, %v, want %d", name, answer, err, c.status)
		}
	}
	if got := has(t, address, "a"); got != (conformance.Effects{}) {
		t.Errorf("something was done: %+v", got)
	}
}

// TestPythonKilledKeepsWhatItSaid kills the participant three times during transactions;
// each must end, once.
func TestPythonKilledKeepsWhatItSaid(t *testing.T) {
	t.Parallel()
	const transactions = 24
	database := filepath.Join(t.TempDir(), "seats.db")
	p, address := python(t, database)
	u, err := url.Parse(address)
	testbed.OK(t, err)
	caller := branchhttp.Caller{Client: client(t)}
	ended := make(chan error, transactions)
	for i := range transactions {
		go func() { ended <- transact(t.Context(), caller, address, i) }()
	}
	for n := range transactions {
		if n == 3 || n == 9 || n == 15 {
			p.Kill()
			p, _ = python(t, database, u.Port())
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	for i := range transactions {
		want := conformance.Effects{Confirmed: 1}
		if i%2 == 1 {
			want = conformance.Effects{}
		}
		if got := has(t, address, fmt.Sprint("account ", i)); got != want {
			t.Errorf("account %d has %+v, want %+v", i, got, want)
		}
	}
}

// transact tries, and then confirms or cancels, until it succeeds.
func transact(ctx context.Context, caller branchhttp.Caller, address string, i int) error {
	last := branch.Confirm
	if i%2 == 1 {
		last = branch.Cancel
	}
	var hold []byte
	for _, operation := range []branch.Operation{branch.Try, branch.Try, last, last} {
		c := branch.Call{Transaction: fmt.Sprint("t", i), Branch: "seats", Operation: operation, Begun: time.Now()}
		output, err := persist(ctx, caller, address, c, fmt.Appendf(nil, `{"account":"account %d","amount":1,"capacity":1}`, i))
		switch {
		case err != nil:
			return err
		case operation == branch.Try && hold == nil:
			hold = output
		case operation == branch.Try && string(hold) != string(output):
			return fmt.Errorf("%s was answered %s, and then %s", c.Key(), hold, output)
		}
	}
	return nil
}

// persist calls until there is an answer or a refusal.
func persist(ctx context.Context, caller branchhttp.Caller, address string, c branch.Call, input []byte) ([]byte, error) {
	for c.Attempt = 1; ; c.Attempt++ {
		calling, cancel := context.WithTimeout(ctx, 10*time.Second)
		output, err := caller.Post(calling, address, c, input)
		cancel()
		class, _ := branch.ClassOf(err)
		if err == nil || class == branch.ClassFail || c.Attempt == 600 {
			return output, err
		}
		time.Sleep(50 * time.Millisecond) // the participant is restarting
	}
}

func has(t *testing.T, address, account string) (e conformance.Effects) {
	t.Helper()
	testbed.OK(t, json.Unmarshal(get(t, address+"?account="+url.QueryEscape(account)), &e))
	return e
}

func get(t *testing.T, address string) []byte {
	t.Helper()
	answer, err := client(t).Get(address)
	testbed.OK(t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	testbed.OK(t, err)
	return body
}
