package drivertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// Branches is a participant and the suite's access to its branches. See [PreparerOf].
type Branches interface {
	driver.Participant
	// Begin opens a branch and returns write, which sets a key to a value in it.
	Begin(ctx context.Context, x driver.XID) (write func(ctx context.Context, key string, value int) error, b driver.Preparing, err error)
	// Read returns the committed value of a key, 0 if there is none. It does not block.
	Read(ctx context.Context, key string) (int, error)
}

// PreparerOf returns Branches of a participant. write runs in the value of its Begin and
// locks a key until the branch ends. read runs outside every branch.
func PreparerOf[T any](p driver.Preparer[T], write func(ctx context.Context, in T, key string, value int) error,
	read func(ctx context.Context, key string) (int, error)) Branches {
	return &branches[T]{p, p, write, read}
}

type branches[T any] struct {
	driver.Participant
	preparer driver.Preparer[T]
	write    func(ctx context.Context, in T, key string, value int) error
	read     func(ctx context.Context, key string) (int, error)
}

func (b *branches[T]) Begin(ctx context.Context, x driver.XID) (func(context.Context, string, int) error, driver.Preparing, error) {
	in, p, err := b.preparer.Begin(ctx, x)
	return func(ctx context.Context, key string, value int) error { return b.write(ctx, in, key, value) }, p, err
}

func (b *branches[T]) Read(ctx context.Context, key string) (int, error) { return b.read(ctx, key) }

// ParticipantHarness gives the suite access to a participant and its store. All openings
// of one Start have one namespace.
type ParticipantHarness = StoreHarness[Branches]

// ParticipantBackend is one running store of a participant.
type ParticipantBackend = StoreBackend[Branches]

// RunParticipant runs the conformance suites of driver.Preparer and of
// driver.Participant.
func RunParticipant(t *testing.T, h ParticipantHarness) {
	runStore(t, h, func(s *storeScene[Branches]) *branchScene { return &branchScene{storeScene: s} }, []suiteTest[*branchScene]{
		// Atomic branches.
		{"PreparedIsCommitted", 0, testPreparedIsCommitted},
		{"PreparedIsRolledBack", 0, testPreparedIsRolledBack},
		{"NothingChanged", 0, testNothingChanged},
		{"InDoubtIsListed", 0, testInDoubtIsListed},
		{"LatePrepareVotesNo", 0, testLatePrepareVotesNo},
		{"NamesAreUsedOnce", 0, testNamesAreUsedOnce},
		{"BranchMisuse", 0, testBranchMisuse},
		{"BranchContextAlreadyEnded", 0, testBranchContextAlreadyEnded},
		// Several processes.
		{"CommittersRace", 0, testCommittersRace},
		{"CommitAgainstRollback", 0, testCommitAgainstRollback},
		// Faults.
		{"PreparedOverAKill", Servers | Durable, testPreparedOverAKill},
		{"KilledWhileWorking", Servers | Durable, testKilledWhileWorking},
		{"LostReplyToPrepare", Servers | LostReplies | onPaths, testLostReplyToPrepare},
		{"LostReplyToCommit", Servers | LostReplies | onPaths, testLostReplyToCommit},
		{"LostReplyToRollback", Servers | LostReplies | onPaths, testLostReplyToRollback},
		{"LostReplyToOnePhase", Servers | LostReplies | onPaths, testLostReplyToOnePhase},
		{"CutBeforePrepare", Servers | onPaths, testCutBeforePrepare},
	})
}

// branchScene is one test with its participant.
type branchScene struct {
	*storeScene[Branches]
	probes int
}

// branchOf returns the XID of the n-th transaction's branch.
func branchOf(n int) driver.XID { return driver.XID{Transaction: fmt.Sprint("t", n), Branch: "bank"} }

// work begins a branch and writes in it.
func (s *branchScene) work(in Branches, x driver.XID, key string, value int) driver.Preparing {
	s.Helper()
	write, b, err := in.Begin(s.Context(), x)
	if err != nil {
		s.Fatalf("begin %v: %v", x, err)
	}
	s.Cleanup(func() { _ = b.Abandon(context.Background()) })
	if err := write(s.Context(), key, value); err != nil {
		s.Fatalf("write in %v: %v", x, err)
	}
	return b
}

func (s *branchScene) vote(b driver.Preparing, want driver.Vote) {
	s.Helper()
	if vote, err := b.Prepare(s.Context()); vote != want || err != nil {
		s.Fatalf("the vote is %v, %v; want %v", vote, err, want)
	}
}

// prepared creates a branch that has written and voted yes.
func (s *branchScene) prepared(x driver.XID, key string, value int) {
	s.Helper()
	b := s.work(s.store, x, key, value)
	s.vote(b, driver.VoteYes)
	if err := b.Abandon(s.Context()); err != nil { // has no effect after prepare
		s.Fatal(err)
	}
}

// commit repeats Commit until there is an outcome; rollback repeats Rollback.
func (s *branchScene) commit(p driver.Participant, x driver.XID) {
	s.Helper()
	s.persist("commit", func(ctx context.Context) error { return p.Commit(ctx, x) })
}

func (s *branchScene) rollback(p driver.Participant, x driver.XID) {
	s.Helper()
	s.persist("roll back", func(ctx context.Context) error { return p.Rollback(ctx, x) })
}

// mustBeHeuristic requires that an operation, repeated until there is an outcome, reports
// that the branch was finished otherwise.
func (s *branchScene) mustBeHeuristic(what string, x driver.XID, do func(context.Context, driver.XID) error) {
	s.Helper()
	s.persist(what, func(ctx context.Context) error {
		err := do(ctx, x)
		if errors.Is(err, driver.ErrHeuristic) && interlock.Kind(err) == interlock.Definite {
			return nil
		}
		if err == nil {
			s.Fatalf("%s %v: it is done, and was finished otherwise", what, x)
		}
		return err
	})
}

func (s *branchScene) mustRead(in Branches, key string, want int) {
	s.Helper()
	if got, err := in.Read(s.Context(), key); err != nil || got != want {
		s.Fatalf("%s is %d, %v; want %d", key, got, err, want)
	}
}

// mustBeInDoubt requires exactly those branches, in any order.
func (s *branchScene) mustBeInDoubt(in Branches, want ...driver.XID) []driver.InDoubt {
	s.Helper()
	all, err := in.InDoubt(s.Context())
	found := map[driver.XID]bool{}
	for _, d := range all {
		found[d.XID] = true
	}
	ok := err == nil && len(all) == len(want)
	for _, x := range want {
		ok = ok && found[x]
	}
	if !ok {
		s.Fatalf("in doubt: %v, %v; want %v", all, err, want)
	}
	return all
}

// mustBeFree requires that key is not locked, or soon not.
func (s *branchScene) mustBeFree(in Branches, key string) {
	s.Helper()
	s.persist("write "+key, func(ctx context.Context) error {
		s.probes++
		write, b, err := in.Begin(ctx, driver.XID{Transaction: fmt.Sprint("probe", s.probes), Branch: "bank"})
		if err != nil {
			return err
		}
		defer func() { _ = b.Abandon(ctx) }()
		if err := write(ctx, key, 99); err != nil {
			return &interlock.Error{Op: "write", Kind: interlock.Retryable, Err: err}
		}
		return nil
	})
}

// soon returns a context for calls that a fault blocks.
func (s *branchScene) soon(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(s.Context(), d)
	s.Cleanup(cancel)
	return ctx
}

func testBranchMisuse(s *branchScene) {
	long := strings.Repeat("x", 31)
	for _, x := range []driver.XID{{}, {Transaction: "t"}, {Branch: "b"}, {Transaction: "t", Branch: long}, {Transaction: long + long, Branch: "b"},
		{Transaction: "a'b", Branch: "b"}, {Transaction: "t\x00", Branch: "b"}, {Transaction: "t", Branch: "b/c"}, {Transaction: "ä", Branch: "b"}} {
		_, _, err := s.store.Begin(s.Context(), x)
		for _, err := range []error{err, s.store.Commit(s.Context(), x), s.store.Rollback(s.Context(), x)} {
			s.mustFail(err, interlock.Bug, nil)
		}
	}
	for i, end := range []func(driver.Preparing) error{
		func(b driver.Preparing) error { _, err := b.Prepare(s.Context()); return err },
		func(b driver.Preparing) error { return b.CommitOne(s.Context()) },
		func(b driver.Preparing) error { return b.Abandon(s.Context()) },
	} {
		b := s.work(s.store, branchOf(i), fmt.Sprint("k", i), 1)
		testbed.OK(s, end(b))
		_, err := b.Prepare(s.Context())
		for _, err := range []error{err, b.CommitOne(s.Context())} {
			if kind := interlock.Kind(err); err == nil || kind != interlock.Bug && kind != interlock.Definite {
				s.Fatalf("a branch that has ended: %v (%v)", err, kind)
			}
		}
		testbed.OK(s, b.Abandon(s.Context()))
	}
	s.mustBeInDoubt(s.store, branchOf(0))
	s.rollback(s.store, branchOf(0))
}

func testBranchContextAlreadyEnded(s *branchScene) {
	ended, cancel := context.WithCancel(s.Context())
	cancel()
	s.prepared(branchOf(1), "a", 1)
	_, _, err := s.store.Begin(ended, branchOf(2))
	_, listing := s.store.InDoubt(ended)
	for _, err := range []error{err, listing, s.store.Commit(ended, branchOf(1)), s.store.Rollback(ended, branchOf(1))} {
		s.mustFail(err, interlock.Definite, context.Canceled)
	}
	b := s.work(s.store, branchOf(3), "b", 1)
	if vote, err := b.Prepare(ended); vote != driver.VoteNo || err == nil {
		s.Fatalf("the vote is %v, %v", vote, err)
	}
	one := s.work(s.store, branchOf(4), "c", 1)
	if err := one.CommitOne(ended); err == nil {
		s.Fatal("it is committed")
	}
	left := s.work(s.store, branchOf(5), "d", 1)
	for _, b := range []driver.Preparing{b, one, left} {
		testbed.OK(s, b.Abandon(ended))
	}
	s.mustBeInDoubt(s.store, branchOf(1))
	s.rollback(s.store, branchOf(1))
	for _, key := range []string{"a", "b", "c", "d"} {
		s.mustBeFree(s.store, key)
		s.mustRead(s.store, key, 0)
	}
}
