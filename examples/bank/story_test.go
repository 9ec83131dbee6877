package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/history"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The account holds opening; A wants to withdraw amountA, B amountB.
const (
	account = "alice"
	opening = 100
	amountA = 30
	amountB = 40
)

// ttl is how long a lock lives without renewal: long enough for a busy machine,
// short enough for a story.
var ttl = map[string]time.Duration{"etcd": 2 * time.Second, "redis": 2 * time.Second}

// A story is one run: a lock system, and a way of withdrawing.
type story struct {
	backend string   // etcd or redis
	mode    string   // "broken", "guarded", …
	flags   []string // of both workers

	postgres string // URL of this story's own schema
	locks    string // URL of this story's own lock system
	worker   string // path of the program
	dir      string // where the histories go

	a, b         *worker
	codeA, codeB int
	balance      int64
	events       []history.Event
	report       history.Report
	holds        bool // went as it should
}

// TestStory stops a worker past its lease, between reading a balance and writing
// it, with the guard and without, and tells what happened on stdout.
func TestStory(t *testing.T) {
	var stories []*story
	for _, backend := range []string{"etcd", "redis"} {
		stories = append(stories,
			&story{backend: backend, mode: "broken", flags: []string{"--broken"}},
			&story{backend: backend, mode: "guarded", flags: []string{"--in-steps"}})
	}
	runAll(t, stories)
	for _, s := range stories {
		s.check(t, func(t *testing.T) {
			if s.mode == "broken" {
				s.mustBeBroken(t)
				return
			}
			s.mustBeGuarded(t)
			s.mustBeRefusedByTheGuard(t)
		})
	}
	narrate(os.Stdout, stories)
}

// TestStoppedInsideTheTransaction stops the worker while it holds the row lock of
// the guard's mark. Postgres ends its transaction with its lease, so that the
// next one gets on.
func TestStoppedInsideTheTransaction(t *testing.T) {
	stories := []*story{{backend: "etcd", mode: "one transaction"}, {backend: "redis", mode: "one transaction"}}
	runAll(t, stories)
	for _, s := range stories {
		s.check(t, s.mustBeGuarded)
	}
}

// runAll runs the stories side by side: most of each is waiting for a lease.
func runAll(t *testing.T, stories []*story) {
	database := testbed.Postgres(t)
	program := testbed.Go(t, "examples/bank")
	t.Run("run", func(t *testing.T) {
		for i, s := range stories {
			t.Run(s.backend+" "+s.mode, func(t *testing.T) {
				t.Parallel()
				s.worker = program
				s.locks = startLocks(t, s.backend)
				s.postgres = schema(t, database.URL(), fmt.Sprintf("story%d", i))
				s.dir = historyDir(t, s.backend+"-"+s.mode)
				s.run(t)
			})
		}
	})
}

// startLocks starts a lock system of this story's own.
func startLocks(t *testing.T, backend string) string {
	if backend == "etcd" {
		return "etcd://" + testbed.Etcd(t).Addr()
	}
	return "redis://" + testbed.Redis(t).Addr()
}

// schema makes a place of this story's own in the database, with the account.
func schema(t *testing.T, url, name string) string {
	query(t, url, "CREATE SCHEMA "+name)
	return url + "&search_path=" + name
}

// historyDir is STORY_DIR/name if that is set, emptied of an earlier run's
// histories; otherwise a directory that goes away.
func historyDir(t *testing.T, name string) string {
	kept := os.Getenv("STORY_DIR")
	if kept == "" {
		return t.TempDir()
	}
	dir := filepath.Join(kept, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"A.jsonl", "B.jsonl", "story.jsonl"} {
		if err := os.Remove(filepath.Join(dir, f)); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	return dir
}

// run is the story itself.
func (s *story) run(t *testing.T) {
	w, err := history.Create(s.file("story"), history.Header{Run: "story", Mode: s.mode}, nil)
	if err != nil {
		t.Fatal(err)
	}
	note := func(kind history.Kind, op, key, value string) {
		w.Record(history.Event{Lane: "story", Kind: kind, Op: op, Key: key, Value: value})
	}
	s.open(t)
	note(history.State, "balance", lockName(account), strconv.Itoa(opening))

	s.a = s.start(t, "A", amountA, "--pause-at", "read")
	s.a.until("read")
	note(history.FaultBegin, "stop", "A", "")
	s.a.p.Pause()
	s.b = s.start(t, "B", amountB)
	s.b.until("acquired") // so A's lease is over
	s.codeB = s.b.rest()
	s.a.goOn()
	note(history.FaultEnd, "stop", "A", "")
	s.a.p.Resume()
	s.codeA = s.a.rest()

	s.balance = s.finalBalance(t)
	note(history.State, "balance", lockName(account), strconv.FormatInt(s.balance, 10))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	s.judge(t)
}

func (s *story) file(lane string) string { return filepath.Join(s.dir, lane+".jsonl") }

func (s *story) files() []string { return []string{s.file("A"), s.file("B"), s.file("story")} }

// open creates the account by the program itself.
func (s *story) open(t *testing.T) {
	p := testbed.Command(t, s.worker, "open", "--postgres", s.postgres,
		"--account", account, "--balance", strconv.Itoa(opening))
	if end := p.Wait(patience); !end.Success() {
		t.Fatalf("bank open: %v: %s", end, p.Stderr())
	}
}

func (s *story) start(t *testing.T, lane string, amount int, extra ...string) *worker {
	args := slices.Concat([]string{"withdraw", "--backend", s.locks, "--postgres", s.postgres,
		"--account", account, "--amount", strconv.Itoa(amount), "--ttl", ttl[s.backend].String(),
		"--as", lane, "--history", s.file(lane)}, s.flags, extra)
	return &worker{tb: t, lane: lane, p: testbed.Command(t, s.worker, args...)}
}

func (s *story) finalBalance(t *testing.T) (balance int64) {
	query(t, s.postgres, "SELECT balance FROM bank_account WHERE name = '"+account+"'", &balance)
	return balance
}

// query runs one statement; into takes the columns of its only row.
func query(t *testing.T, url, sql string, into ...any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	db, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(ctx)
	if into == nil {
		_, err = db.Exec(ctx, sql)
	} else {
		err = db.QueryRow(ctx, sql).Scan(into...)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// judge reads what all three recorded.
func (s *story) judge(t *testing.T) {
	var err error
	if s.events, err = merged(s.files()); err != nil {
		t.Fatal(err)
	}
	if s.report, err = history.CheckFiles(s.files()...); err != nil {
		t.Fatal(err)
	}
}

func merged(files []string) (events []history.Event, err error) {
	var readers []*history.Reader
	for _, path := range files {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		r, err := history.NewReader(f)
		if err != nil {
			return nil, err
		}
		readers = append(readers, r)
	}
	for e, err := range history.Merge(readers...) {
		if err != nil {
			return nil, err
		}
		events = append(events, e)
	}
	return events, nil
}

// check judges a story that ran to its end. A story that did not was skipped,
// or has failed already.
func (s *story) check(t *testing.T, must func(t *testing.T)) {
	if s.report.Events == 0 {
		return
	}
	s.holds = t.Run("check/"+s.backend+" "+s.mode, func(t *testing.T) {
		must(t)
		if t.Failed() {
			t.Logf("A told: %s\nB told: %s\n%v", s.a.told(), s.b.told(), s.report)
		}
	})
}

// mustBeGuarded: B's withdrawal counts, A's does not, A knows both that and why.
func (s *story) mustBeGuarded(t *testing.T) {
	t.Helper()
	s.mustLearnOfItsLoss(t)
	if s.balance != opening-amountB {
		t.Errorf("the balance is %d, want %d", s.balance, opening-amountB)
	}
	if s.codeA != 1 || s.codeB != 0 {
		t.Errorf("exit codes of A and B are %d and %d, want 1 and 0", s.codeA, s.codeB)
	}
	if _, ok := s.a.find("committed"); ok {
		t.Error("A believes that it has committed")
	}
	if !s.report.OK() || s.report.Accepted == 0 {
		t.Error("the checker wants a history with accepted accesses and no violation")
	}
}

// mustBeRefusedByTheGuard: Postgres said no, and named both tokens.
func (s *story) mustBeRefusedByTheGuard(t *testing.T) {
	t.Helper()
	refused, _ := s.a.find("refused")
	first, _ := s.a.find("acquired")
	second, _ := s.b.find("acquired")
	want := stage{Stage: "refused", Token: first.Token, Seen: second.Token, Kind: interlock.Definite.String()}
	refused.Error = "" // for people
	if refused != want || first.Token >= second.Token {
		t.Errorf("A was refused with %+v, want %+v", refused, want)
	}
	if s.report.Rejected != 1 {
		t.Errorf("the history shows %d rejections, want 1", s.report.Rejected)
	}
}

// mustBeBroken: both committed, only one withdrawal counts, and the checker
// points at A's write.
func (s *story) mustBeBroken(t *testing.T) {
	t.Helper()
	s.mustLearnOfItsLoss(t)
	_, a := s.a.find("committed")
	_, b := s.b.find("committed")
	if !a || !b || s.balance != opening-amountA {
		t.Errorf("no update was lost: A committed: %v, B committed: %v, balance %d", a, b, s.balance)
	}
	if v := s.report.Violations; len(v) == 0 || v[0].Rule != history.RuleAccessOrder || v[0].Second.Lane != "A" {
		t.Errorf("the checker did not find A's late write")
	}
}

// mustLearnOfItsLoss: A's claim ended for a reason that a stop can have, and
// B's did not end before it was released.
func (s *story) mustLearnOfItsLoss(t *testing.T) {
	t.Helper()
	lost, _ := s.a.find("lost")
	if !slices.Contains([]string{"expired", "lost", "session ended"}, lost.Cause) {
		t.Errorf("A was told %q as the reason of its loss", lost.Cause)
	}
	if lost, ok := s.b.find("lost"); ok {
		t.Errorf("B lost its claim: %s", lost.Cause)
	}
}
