package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/history"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestMain(m *testing.M) { testbed.MainAs(m, "bank", main) }

// The account holds opening; A wants to withdraw amountA, B amountB.
const (
	account = "alice"
	opening = 100
	amountA = 30
	amountB = 40
)

// ttl is the lease duration without renewal: long enough for a busy machine, short
// enough for a story.
const ttl = 2 * time.Second

// story is one run with a lock system and a way of withdrawing.
type story struct {
	backend string   // etcd or redis
	mode    string   // "broken", "guarded" or "transaction"
	flags   []string // of both workers

	postgres string // URL of this story's schema
	locks    string // URL of this story's lock system
	worker   string // path of the program
	dir      string // directory of the histories

	a, b         *worker
	codeA, codeB int
	balance      int64
	events       []history.Event
	report       history.Report
	holds        bool // the story went as expected
}

// TestStory stops a worker past its lease, between reading a balance and writing it, with
// and without the guard, and prints the events on stdout.
func TestStory(t *testing.T) {
	t.Parallel()
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

// TestStoppedInsideTheTransaction stops the worker while it has the row lock of the
// guard's mark. Postgres ends its transaction with its lease, so that the next worker
// continues.
func TestStoppedInsideTheTransaction(t *testing.T) {
	t.Parallel()
	stories := []*story{{backend: "etcd", mode: "transaction"}, {backend: "redis", mode: "transaction"}}
	runAll(t, stories)
	for _, s := range stories {
		s.check(t, func(t *testing.T) {
			s.mustBeGuarded(t)
			if failed, _ := s.a.find("failed"); failed.Kind != interlock.Definite.String() {
				t.Errorf("A got %q for its withdrawal, want definite", failed.Kind)
			}
		})
	}
}

// runAll runs the stories in parallel: each mostly waits for a lease.
func runAll(t *testing.T, stories []*story) {
	database := testbed.Postgres(t)
	program := testbed.Self(t, "bank")
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

// run runs the story.
func (s *story) run(t *testing.T) {
	w, err := history.Create(s.file("story"), history.Header{Run: "story", Mode: s.mode}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close() // a second time, unless the story fails before
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
	s.b.until("acquired") // so A's lease has ended
	s.codeB = s.b.rest()
	s.a.goOn()
	note(history.FaultEnd, "stop", "A", "")
	s.a.p.Resume()
	s.codeA = s.a.rest()

	s.balance = s.finalBalance(t)
	note(history.State, "final balance", lockName(account), strconv.FormatInt(s.balance, 10))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	s.judge(t)
}

func (s *story) file(lane string) string { return filepath.Join(s.dir, lane+".jsonl") }

func (s *story) files() []string { return []string{s.file("A"), s.file("B"), s.file("story")} }

// open creates the account with the program.
func (s *story) open(t *testing.T) {
	p := testbed.Command(t, s.worker, "open", "--postgres", s.postgres,
		"--account", account, "--balance", strconv.Itoa(opening))
	if end := p.Wait(patience); !end.Success() {
		t.Fatalf("bank open: %v: %s", end, p.Stderr())
	}
}

func (s *story) start(t *testing.T, lane string, amount int, extra ...string) *worker {
	args := slices.Concat([]string{"withdraw", "--backend", s.locks, "--postgres", s.postgres,
		"--account", account, "--amount", strconv.Itoa(amount),
		"--as", lane, "--history", s.file(lane)}, s.flags, extra)
	return &worker{tb: t, lane: lane, p: testbed.Command(t, s.worker, args...)}
}

func (s *story) finalBalance(t *testing.T) (balance int64) {
	query(t, s.postgres, "SELECT balance FROM bank_account WHERE name = '"+account+"'", &balance)
	return balance
}
