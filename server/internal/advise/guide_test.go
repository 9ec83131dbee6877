package advise

import (
	"encoding/json"
	"fmt"
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/internal/generated"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func load(t *testing.T) *Guides {
	t.Helper()
	g, err := Load()
	testbed.OK(t, err)
	return g
}

// each visits every combination of answers of a guide.
func (g *Guides) each(guide Guide, visit func(answers map[string]string)) {
	answers := map[string]string{}
	var next func(i int)
	next = func(i int) {
		if i == len(guide.Asks) {
			visit(answers)
			return
		}
		q, _ := g.Question(guide.Asks[i])
		for _, a := range q.Answers {
			answers[q.ID] = a.ID
			next(i + 1)
		}
	}
	next(0)
}

func TestEveryAnswerHasAdviceAndEveryAdviceAnAnswer(t *testing.T) {
	g := load(t)
	for _, guide := range g.Guides {
		reached := map[string]bool{}
		g.each(guide, func(answers map[string]string) {
			row, ok := guide.Choose(answers)
			if !ok {
				t.Errorf("%s: no advice for %v", guide.ID, answers)
			}
			reached[fmt.Sprint(row)] = true
		})
		for i, row := range guide.Rows {
			if !reached[fmt.Sprint(row)] {
				t.Errorf("%s: no answers match row %d, %q", guide.ID, i+1, row.Choose)
			}
		}
	}
}

// TestWhatIsAsked requires that the opening questions come first and are used by
// the guides, and that each question is used.
func TestWhatIsAsked(t *testing.T) {
	g := load(t)
	asked := map[string]bool{}
	for _, guide := range g.Guides {
		for _, id := range guide.Asks {
			asked[id] = true
		}
	}
	for i, id := range []string{"invariant", "consistency", "contention", "retry"} {
		if g.Questions[i].ID != id {
			t.Errorf("question %d is %s, want %s", i+1, g.Questions[i].ID, id)
		}
	}
	for _, q := range g.Questions {
		if !asked[q.ID] {
			t.Errorf("no guide asks %s", q.ID)
		}
		if q.Ask == "" || q.Why == "" || len(q.Answers) < 2 {
			t.Errorf("%s lacks a text or answers", q.ID)
		}
	}
	if race, _ := g.Question("race"); len(race.Answers) < 12 {
		t.Errorf("%d races", len(race.Answers))
	}
}

func TestRowsAreWhole(t *testing.T) {
	for _, guide := range load(t).Guides {
		for i, r := range guide.Rows {
			for what, text := range map[string]string{"choice": r.Choose, "reason": r.Reason, "risk": r.Risk, "avoid": r.Avoid, "code": r.Code} {
				if text == "" || what != "code" && len(text) > 240 {
					t.Errorf("%s %d: the %s has %d bytes", guide.ID, i+1, what, len(text))
				}
			}
			if n := len(r.Checklist); n < 2 || n > 6 {
				t.Errorf("%s %d: %d things to check", guide.ID, i+1, n)
			}
			if lines := strings.Count(strings.TrimSpace(r.Code), "\n") + 1; lines > 10 {
				t.Errorf("%s %d: %d lines of code", guide.ID, i+1, lines)
			}
			if r.Lang != "go" && r.Lang != "sql" {
				t.Errorf("%s %d: code in %s", guide.ID, i+1, r.Lang)
			}
		}
	}
}

// TestDecisions pins advice against accidental changes.
func TestDecisions(t *testing.T) {
	g := load(t)
	for _, c := range []struct{ guide, answers, want string }{
		{"mechanism", "invariant=nothing where=rows contention=hot retry=yes", "advisory"},
		{"mechanism", "invariant=overwrite where=rows contention=rare retry=yes", "optimistic"},
		{"mechanism", "invariant=overwrite where=rows contention=often retry=yes", "Row locks"},
		{"mechanism", "invariant=overwrite where=rows contention=often retry=no", "fenced"},
		{"mechanism", "invariant=overwrite where=rows contention=hot retry=no", "One statement"},
		{"mechanism", "invariant=disorder where=keys contention=hot retry=no", "One owner"},
		{"nodes", "invariant=nothing down=go-on", "Redlock"},
		{"nodes", "invariant=overwrite down=go-on", "consensus"},
		{"backend", "invariant=overwrite running=postgres need=pooler", "lease table"},
		{"backend", "invariant=overwrite running=redis need=failover", "etcd"},
		{"backend", "invariant=overwrite running=postgres need=fifo", "etcd"},
		{"steps", "consistency=eventual reserve=no prepared=no steps=many teams=few", "orchestrator"},
		{"steps", "consistency=eventual reserve=no prepared=no steps=few teams=many", "orchestrator"},
		{"steps", "consistency=eventual reserve=no prepared=no steps=few teams=few", "choreographed"},
		{"steps", "consistency=strict reserve=yes prepared=no steps=few teams=few", "TCC"},
		{"steps", "consistency=strict reserve=yes prepared=yes steps=few teams=few", "Two-phase"},
	} {
		answers := map[string]string{}
		for pair := range strings.FieldsSeq(c.answers) {
			id, a, _ := strings.Cut(pair, "=")
			answers[id] = a
		}
		guide, _ := g.Guide(c.guide)
		if row, ok := guide.Choose(answers); !ok || !strings.Contains(row.Choose, c.want) {
			t.Errorf("%s %s: %q, want something about %q", c.guide, c.answers, row.Choose, c.want)
		}
	}
}

// TestWhatRunsIsAdvised requires that without a special need the advice is what runs already.
func TestWhatRunsIsAdvised(t *testing.T) {
	g := load(t)
	guide, _ := g.Guide("backend")
	names := map[string]string{"redis": "Redis", "etcd": "etcd", "zookeeper": "ZooKeeper", "consul": "Consul", "postgres": "PostgreSQL",
		"mariadb": "MariaDB", "kubernetes": "Kubernetes"}
	g.each(guide, func(answers map[string]string) {
		row, _ := guide.Choose(answers)
		if answers["need"] == "nothing" && !strings.HasPrefix(row.Choose, names[answers["running"]]) {
			t.Errorf("%v: %q", answers, row.Choose)
		}
	})
}

// TestRedlockIsForNothingThatMatters requires that it is advised only where a
// failure is harmless.
func TestRedlockIsForNothingThatMatters(t *testing.T) {
	g := load(t)
	for _, guide := range g.Guides {
		g.each(guide, func(answers map[string]string) {
			row, _ := guide.Choose(answers)
			weak := strings.Contains(row.Choose, "Redlock") || strings.Contains(row.Choose, "plain") || strings.Contains(row.Choose, "dvisory")
			if weak && answers["invariant"] != "nothing" && answers["need"] != "peers" {
				t.Errorf("%s %v: %q", guide.ID, answers, row.Choose)
			}
		})
	}
}

// preamble declares the variables that the code of a row uses.
const preamble = `package snippets

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/elect"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/claim/partition"
	"github.com/interlock-dev/interlock/claim/rowlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/flow/crdt"
	"github.com/interlock-dev/interlock/flow/limit"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/flow/overload"
	"github.com/interlock-dev/interlock/flow/queue"
	"github.com/interlock-dev/interlock/flow/reply"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/guard/idempotency"
	"github.com/interlock-dev/interlock/guard/once"
	"github.com/interlock-dev/interlock/guard/version"
	"github.com/interlock-dev/interlock/txn/barrier"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/branchhttp"
	"github.com/interlock-dev/interlock/txn/choreography"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/countermeasure"
	"github.com/interlock-dev/interlock/txn/saga"
	"github.com/interlock-dev/interlock/txn/tcc"
	"github.com/interlock-dev/interlock/txn/twopc"
)

var (
	c       *coordinator.Coordinator
	engine *twopc.Engine
	north   twopc.Definition[pgx.Tx]
	south   twopc.Definition[*sql.Conn]
	rooms   tcc.Holds[pgx.Tx]
	records *idempotency.SQL[pgx.Tx]
	id      string // of a message, or a request
	n       int64  // a version
	topics  driver.Queue
	message queue.Message
	shared  *crdt.Store

	_ = elect.New
	_ = partition.Join
	_ = time.Second
	_ = rowlock.Lock[string]
	_ = interlock.FIFO
	_ fence.Write
	_ = postgres.Tx
	_ = redis.Open
)

func use(...any) {}

func apply(ctx context.Context, tx pgx.Tx) error { return nil }
func work(ctx context.Context) error { return nil }

type order struct{ Item string }

func hold(ctx context.Context, o order) (json.RawMessage, error) { return nil, nil }
func release(ctx context.Context, o order, held *json.RawMessage) error { return nil }
func charge(ctx context.Context, o order) (string, error) { return "", nil }
func mail(ctx context.Context, o order) (struct{}, error) { return struct{}{}, nil }
func move(ctx context.Context, from pgx.Tx, to *sql.Conn) error { return nil }
func customer(r *http.Request) string { return "" }
func pay(ctx context.Context, tx pgx.Tx) (idempotency.Response, error) { return idempotency.Response{}, nil }
func payment(ctx context.Context, tx pgx.Tx) (int64, error) { return 0, nil }
`

// TestCodeCompiles builds all Go code in a package for the compiler only.
func TestCodeCompiles(t *testing.T) {
	var b strings.Builder
	b.WriteString(preamble)
	for _, guide := range load(t).Guides {
		for i, r := range guide.Rows {
			if r.Lang != "go" {
				continue
			}
			code := strings.TrimRight(r.Code, "\n")
			formatted, err := format.Source([]byte(code))
			if err != nil || string(formatted) != code {
				t.Errorf("%s %d: not gofmt-ed (%v):\n%s", guide.ID, i+1, err, formatted)
			}
			fmt.Fprintf(&b, "\nfunc _(ctx context.Context, d driver.Fenced, plain driver.Advisory, locks *lock.Fenced, client rueidis.Client,\n"+
				"\tclients []rueidis.Client, pool *pgxpool.Pool, values driver.Values, store *fence.Store, g *partition.Group, data []byte) (err error) {\n"+
				"//line %s:%d\n{\n%s\n%s}\nreturn err\n}\n", guide.ID, i+1, code, uses(code))
		}
	}
	file := filepath.Join(t.TempDir(), "snippets.go")
	testbed.OK(t, os.WriteFile(file, []byte(b.String()), 0o600))
	here, err := os.Getwd()
	testbed.OK(t, err)
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(here, "snippets", "snippets.go"): file}})
	if err == nil {
		err = os.WriteFile(file+".json", overlay, 0o600)
	}
	testbed.OK(t, err)
	if out, err := exec.Command("go", "build", "-overlay", file+".json", "./snippets").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// uses returns a statement that uses the variables of a piece of code.
func uses(code string) string {
	for _, name := range []string{"locks", "plain", "quorum", "d"} {
		if strings.HasPrefix(code, name+", err :=") || strings.Contains(code, "\n"+name+", err :=") {
			return "use(" + strings.Join(declared(code), ", ") + ")\n"
		}
	}
	return ""
}

func declared(code string) (names []string) {
	for line := range strings.Lines(code) {
		if name, _, ok := strings.Cut(line, ", err :="); ok && !strings.HasPrefix(line, "\t") {
			names = append(names, strings.TrimSpace(name))
		}
	}
	return names
}

func TestThePageIsMadeFromTheGuides(t *testing.T) {
	generated.Check(t, "../../../docs/explanation/choosing.md", load(t).Markdown())
}

func TestBadGuidesAreRefused(t *testing.T) {
	for _, text := range []string{
		"nonsense: 1",
		"guides: [{id: g, asks: [q]}]",
		"questions: [{id: q, answers: [{id: a}]}]\nguides: [{id: g, asks: [q], rows: [{when: {q: [b]}}]}]",
		"questions: [{id: q, answers: [{id: a}]}]\nguides: [{id: g, asks: [], rows: [{when: {q: [a]}}]}]",
	} {
		if _, err := parse([]byte(text)); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
}

func TestAsking(t *testing.T) {
	g := load(t)
	guide, _ := g.Guide("nodes")
	for _, c := range []struct{ typed, want string }{
		{"2\n1\n", "overwrite wait"},
		{"overwrite\ngo-on\n", "overwrite go-on"},
		{"why\n9\n\n1\nback\n3\n2\n", "disorder go-on"},
	} {
		answers, out := map[string]string{}, new(strings.Builder)
		if err := g.Ask(guide, answers, strings.NewReader(c.typed), out); err != nil {
			t.Errorf("%q: %v", c.typed, err)
		}
		if got := answers["invariant"] + " " + answers["down"]; got != c.want {
			t.Errorf("%q: answered %q, want %q", c.typed, got, c.want)
		}
	}
	for _, typed := range []string{"", "2\n", "2\nquit\n"} {
		if err := g.Ask(guide, map[string]string{}, strings.NewReader(typed), new(strings.Builder)); err == nil {
			t.Errorf("%q was an answer", typed)
		}
	}
}
