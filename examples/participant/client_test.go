package participant

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/branchhttp"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/httpapi"
	"github.com/interlock-dev/interlock/txn/journal"
)

// ends is the output of the client: each transaction ends, and has sold at both sites or
// at none.
const ends = `sagas, room for both: SUCCEEDED, north sold 1, south sold 1
sagas, no room in south: COMPENSATED, north sold 0, south sold 0
tcc, room for both: CONFIRMED, north sold 1, south sold 1
tcc, no room in south: CANCELLED, north sold 0, south sold 0
2pc, room for both: COMMITTED, north sold 1, south sold 1
2pc, no room in south: ABORTED, north sold 0, south sold 0`

// TestClient checks that the client's transactions end correctly. They also do if answers are
// lost, and if it starts all of them again after the participants were killed.
func TestClient(t *testing.T) {
	t.Parallel()
	sites := map[string]*site{"north": newSite(t, "north"), "south": newSite(t, "south")}
	address := coordinate(t, map[string]string{"north": sites["north"].address, "south": sites["south"].address})
	for range 2 {
		p := testbed.Command(t, testbed.Binary(t, "python3"), "-I", "client.py", address, sites["north"].address, sites["south"].address, "order/42 é?")
		if state := p.Wait(2 * time.Minute); !state.Success() {
			t.Fatal(state, p.Stderr())
		}
		var lines []string
		for line := range p.Stdout() {
			lines = append(lines, line)
		}
		if got := strings.TrimSpace(strings.Join(lines, "\n")); got != ends {
			t.Fatalf("%s\nwant\n%s", got, ends)
		}
		for _, s := range sites {
			s.process.Kill()
			s.process, _ = python(t, s.database, s.port)
		}
	}
}

// TestPythonListsWhatIsInDoubt checks that a prepared branch is listed until it is decided,
// so that a coordinator that lost it can find it.
func TestPythonListsWhatIsInDoubt(t *testing.T) {
	t.Parallel()
	s := newSite(t, "north")
	caller, call := branchhttp.Caller{Client: client(t)}, branch.Call{Transaction: "t", Branch: "b", Attempt: 1, Begun: time.Now()}
	list := func() string {
		t.Helper()
		return string(get(t, s.address+"?in-doubt"))
	}
	for _, c := range []struct {
		operation branch.Operation
		want      string
	}{{branch.Prepare, `[{"transaction": "t", "branch": "b", "since": `}, {branch.Commit, `[]`}} {
		call.Operation = c.operation
		if _, err := caller.Post(t.Context(), s.address, call, []byte(`{"account":"a","amount":1,"capacity":1}`)); err != nil {
			t.Fatal(err)
		}
		if got := list(); !strings.HasPrefix(got, c.want) {
			t.Errorf("after %s: %s, want %s", c.operation, got, c.want)
		}
	}
	call.Operation, call.Branch = branch.Try, "held" // not a branch of a two-phase commit
	if _, err := caller.Post(t.Context(), s.address, call, []byte(`{"account":"b","amount":1,"capacity":1}`)); err != nil {
		t.Fatal(err)
	}
	if got := list(); got != "[]" {
		t.Errorf("after try: %s", got)
	}
}

// site is a participant that keeps its address and database.
type site struct {
	process                 *testbed.Process
	address, database, port string
}

func newSite(t *testing.T, name string) *site {
	s := &site{database: filepath.Join(t.TempDir(), name+".db")}
	s.process, s.address = python(t, s.database)
	u, err := url.Parse(s.address)
	testbed.OK(t, err)
	s.port = u.Port()
	return s
}

// coordinate serves a coordinator with an in-memory journal. It drops the answer to every
// third request after executing it.
func coordinate(t *testing.T, participants map[string]string) string {
	t.Helper()
	ok := func(err error) {
		t.Helper()
		testbed.OK(t, err)
	}
	j, err := journal.New(memory.NewJournal(), nil)
	ok(err)
	c, err := coordinator.New(j, &coordinator.Options{Poll: 20 * time.Millisecond})
	ok(err)
	service, err := httpapi.New(c, &httpapi.Options{Client: client(t), Participants: participants})
	ok(err)
	d := memory.NewSpace().Open(nil)
	locks, err := lock.NewFenced(d, nil)
	ok(err)
	claim, err := locks.Acquire(t.Context(), "shards")
	ok(err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- c.Run(ctx, claim) }()
	go func() { ended <- service.Watch(ctx) }()
	server := httptest.NewServer(loses(service, 3))
	t.Cleanup(func() {
		server.Close()
		stop()
		<-ended
		<-ended
		ctx := context.Background()
		_ = claim.Release(ctx)
		_ = locks.Close(ctx)
		_ = d.Close(ctx)
		_ = j.Close()
	})
	return server.URL
}

// loses closes the connection instead of sending every n-th answer.
func loses(h http.Handler, n int64) http.Handler {
	var count atomic.Int64
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if count.Add(1)%n != 0 {
			h.ServeHTTP(w, r)
			return
		}
		h.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	})
}

// TestPythonTellsOfAnotherInput checks that the coordinator detects an operator's edit that
// came too late.
func TestPythonTellsOfAnotherInput(t *testing.T) {
	t.Parallel()
	s := newSite(t, "north")
	caller, call := branchhttp.Caller{Client: client(t)}, branch.Call{Transaction: "t", Branch: "b", Operation: branch.Do, Attempt: 1, Begun: time.Now()}
	for _, c := range []struct {
		input string
		err   error
	}{{`{"account":"a","amount":1,"capacity":9}`, nil}, {`{"account":"a","amount":2,"capacity":9}`, branch.ErrOtherInput}} {
		if _, err := caller.Post(t.Context(), s.address, call, []byte(c.input)); !errors.Is(err, c.err) {
			t.Errorf("%s: %v, want %v", c.input, err, c.err)
		}
	}
}

// TestPythonForgets checks that branches below a mark are deleted and late calls rejected,
// except for the mark's exceptions.
func TestPythonForgets(t *testing.T) {
	t.Parallel()
	s := newSite(t, "north")
	began := time.Now().Add(-48 * time.Hour)
	caller := branchhttp.Caller{Client: client(t)}
	do := func(transaction string, begun time.Time) error {
		call := branch.Call{Transaction: transaction, Branch: "b", Operation: branch.Do, Attempt: 1, Begun: begun}
		_, err := caller.Post(t.Context(), s.address, call, []byte(`{"account":"a","amount":1,"capacity":9}`))
		return err
	}
	for _, transaction := range []string{"dead", "ended"} {
		testbed.OK(t, do(transaction, began))
	}
	// Make the rows two days old.
	if out, err := exec.Command("python3", "-c", `import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
db.execute("update branch set since = since - 172800000")
db.commit()`, s.database).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, want := range []int{1, 0} {
		n, err := caller.Forget(t.Context(), s.address, branchhttp.Mark{Before: began.Add(24 * time.Hour), Except: []string{"dead"}})
		if err != nil || n != want {
			t.Errorf("%d forgotten, %v, want %d", n, err, want)
		}
	}
	for transaction, forgotten := range map[string]bool{"dead": false, "ended": true, "never came": true} {
		if err := do(transaction, began); (err != nil) != forgotten {
			t.Errorf("%s: %v", transaction, err)
		}
	}
	if err := do("new", time.Now()); err != nil {
		t.Error(err)
	}
	if got := string(get(t, s.address+"?account=a")); got != `{"held": 0, "confirmed": 3}` {
		t.Errorf("the account has %s", got)
	}
	if _, err := caller.Forget(t.Context(), s.address, branchhttp.Mark{Before: time.Now().Add(time.Hour)}); err == nil {
		t.Error("a mark ahead of the clock was taken")
	}
}
