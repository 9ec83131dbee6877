package etcd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestShardReservesAndPosts: before its commit only the reservations of a branch
// are visible, and a rollback leaves nothing.
func TestShardReservesAndPosts(t *testing.T) {
	t.Parallel()
	s := NewShard(dial(t, serverFor(t).Addr()), "p/")
	mustDo(t, s, "seed", add(t, 100, "alice", "bob"))
	for transaction, end := range map[string]func(context.Context, driver.XID) error{"back": s.Rollback, "on": s.Commit} {
		wantBalance(t, s, "alice", 100, 0, 0)
		p := begun(t, s, transaction, func(b *ShardBranch) {
			add(t, -50, "alice")(b)
			add(t, 30, "bob")(b)
			add(t, 20, "bob")(b)
			testbed.OK(t, b.Put(bounded(t), "note", []byte(transaction)))
			if n, err := b.Balance(bounded(t), "bob"); n != 150 || err != nil {
				t.Fatalf("the branch sees %d, %v", n, err)
			}
			if note, err := b.Get(bounded(t), "note"); string(note) != transaction || err != nil {
				t.Fatalf("the branch sees %q, %v", note, err)
			}
		})
		wantBalance(t, s, "alice", 100, 0, 0)
		before := time.Now().Add(-time.Second)
		mustPrepare(t, p)
		wantBalance(t, s, "alice", 100, 50, 0)
		wantBalance(t, s, "bob", 100, 0, 50)
		if b, _ := s.Balance(bounded(t), "alice"); b.Available() != 50 || b.Branch != xid(transaction, "shard") || b.Since.Before(before) {
			t.Fatalf("%+v", b)
		}
		if v, err := s.Value(bounded(t), "note"); v.Data != nil || v.Version != 0 || v.Branch != xid(transaction, "shard") || err != nil {
			t.Fatalf("%+v, %v", v, err)
		}
		doubts, err := s.InDoubt(bounded(t))
		if err != nil || len(doubts) != 1 || doubts[0].XID != xid(transaction, "shard") || doubts[0].Since.Before(before) {
			t.Fatalf("in doubt are %+v, %v", doubts, err)
		}
		mustEnd(t, end, transaction)
		if doubts, err := s.InDoubt(bounded(t)); err != nil || len(doubts) != 0 {
			t.Fatalf("in doubt are %+v, %v", doubts, err)
		}
		if transaction == "on" {
			break
		}
		wantBalance(t, s, "alice", 100, 0, 0)
		mustDo(t, s, "again", add(t, 0, "alice")) // nothing conflicts
	}
	wantBalance(t, s, "alice", 50, 0, 0)
	wantBalance(t, s, "bob", 150, 0, 0)
	if v, err := s.Value(bounded(t), "note"); string(v.Data) != "on" || v.Version == 0 || v.Branch != (driver.XID{}) || err != nil {
		t.Fatalf("%+v, %v", v, err)
	}
	mustDo(t, s, "gone", func(b *ShardBranch) {
		testbed.OK(t, errors.Join(b.Delete(bounded(t), "note"), b.Delete(bounded(t), "never"), b.Put(bounded(t), "empty", nil)))
	})
	note, err := s.Value(bounded(t), "note")
	empty, err2 := s.Value(bounded(t), "empty")
	if note.Version != 0 || empty.Version == 0 || err != nil || err2 != nil {
		t.Fatalf("%+v, %+v, %v, %v", note, empty, err, err2)
	}
}

// TestShardConflicts: a branch that changes an item that another one reads or changes votes no,
// and names the other.
func TestShardConflicts(t *testing.T) {
	t.Parallel()
	s := NewShard(dial(t, serverFor(t).Addr()), "")
	mustDo(t, s, "seed", add(t, 100, "x", "y"))
	writes, reads := add(t, 1, "x"), look(t, "x")
	for i, c := range []struct {
		first, second func(*ShardBranch)
		refused       bool
	}{{writes, writes, true}, {writes, reads, true}, {reads, writes, true}, {reads, reads, false}, {writes, add(t, 1, "y"), false}} {
		one, two := fmt.Sprint("one", i), fmt.Sprint("two", i)
		first, second := begun(t, s, one, c.first), begun(t, s, two, c.second)
		mustPrepare(t, first)
		if !c.refused {
			mustPrepare(t, second)
			mustEnd(t, s.Commit, two)
		} else {
			var held *interlock.HeldError
			if err := mustRefuse(t, second); !errors.As(err, &held) || held.Name != "x" || held.Owner != "shard/"+one || held.Since.IsZero() {
				t.Fatalf("case %d: %v", i, err)
			}
		}
		// The branch's reads are outdated once the other one is committed.
		third := begun(t, s, fmt.Sprint("three", i), c.second)
		mustEnd(t, s.Commit, one)
		vote, err := third.Prepare(bounded(t))
		var changed *ChangedError
		if was := errors.As(err, &changed); was != (i < 2) || (vote == driver.VoteYes) == was || was && (changed.Name != "x" || changed.Found <= changed.Read) {
			t.Fatalf("case %d: voted %v: %v", i, vote, err)
		}
		if vote == driver.VoteYes {
			mustEnd(t, s.Rollback, fmt.Sprint("three", i))
		}
	}
}

// TestShardSeesOneInstant: a branch reads all of the shard as it was at its first read.
func TestShardSeesOneInstant(t *testing.T) {
	t.Parallel()
	s := NewShard(dial(t, serverFor(t).Addr()), "")
	mustDo(t, s, "seed", add(t, 100, "x", "y"))
	p := begun(t, s, "t", func(b *ShardBranch) {
		look(t, "x")(b)
		mustDo(t, s, "other", func(b *ShardBranch) { add(t, -10, "x")(b); add(t, 10, "y")(b) })
		if n, err := b.Balance(bounded(t), "y"); n != 100 || err != nil {
			t.Fatalf("the branch sees %d, %v", n, err)
		}
	})
	if err := p.CommitOne(bounded(t)); err != nil {
		t.Fatalf("it has seen one instant: %v", err)
	}
}

// TestShardWriteSkew: of two transactions over two shards, each of which reads on one
// what the other changes, one is refused in any order.
func TestShardWriteSkew(t *testing.T) {
	t.Parallel()
	client := dial(t, serverFor(t).Addr())
	// The order in which 0 and 1 prepare; each prepares first where it reads, then where it
	// writes.
	for n, order := range [][]int{{0, 0, 1, 1}, {0, 1, 0, 1}, {0, 1, 1, 0}, {1, 0, 0, 1}, {1, 0, 1, 0}, {1, 1, 0, 0}} {
		shards := []*Shard{NewShard(client, fmt.Sprint(n, "/a/")), NewShard(client, fmt.Sprint(n, "/b/"))}
		for i := range shards {
			mustDo(t, shards[i], "seed", add(t, 1, "on call"))
		}
		var branches [2][]driver.Preparing
		for i := range branches {
			id := fmt.Sprint("t", i)
			branches[i] = append(branches[i], begun(t, shards[i], id, look(t, "on call")), begun(t, shards[1-i], id, add(t, -1, "on call")))
		}
		yes := [2]int{}
		for _, i := range order {
			if vote, err := branches[i][0].Prepare(bounded(t)); vote == driver.VoteYes {
				yes[i]++
			} else if !errors.Is(err, interlock.ErrHeld) {
				t.Fatal(err)
			}
			branches[i] = branches[i][1:]
		}
		if yes[0] == 2 && yes[1] == 2 {
			t.Errorf("order %v: both are prepared", order)
		}
	}
}

// TestShardEndsOnce: in every order of Prepare, Commit and Rollback the first end
// decides, and the other one gets an error.
func TestShardEndsOnce(t *testing.T) {
	t.Parallel()
	s := NewShard(dial(t, serverFor(t).Addr()), "")
	const done, heuristic, refused = "done", "heuristic", "refused"
	for i, c := range []struct{ calls, want string }{
		{"PCC", "done done done"},
		{"PRR", "done done done"},
		{"PCR", "done done heuristic"},
		{"PRC", "done done heuristic"},
		{"C", "heuristic"},
		{"RRP", "done done refused"},
		{"RCP", "done heuristic refused"},
		{"OCR", "done done heuristic"},
		{"ROC", "done refused heuristic"},
		{"POC", "done refused done"},
		{"OOP", "done refused refused"},
	} {
		id := fmt.Sprint("t", i)
		var got []string
		money := int64(0)
		for _, call := range c.calls {
			p := begun(t, s, id, add(t, 7, id))
			var err error
			switch call {
			case 'P':
				_, err = p.Prepare(bounded(t))
			case 'O':
				err = p.CommitOne(bounded(t))
			case 'C':
				err = s.Commit(bounded(t), xid(id, "shard"))
			case 'R':
				err = s.Rollback(bounded(t), xid(id, "shard"))
			}
			switch {
			case err == nil:
				got = append(got, done)
				if call == 'C' || call == 'O' {
					money = 7
				}
			case errors.Is(err, driver.ErrHeuristic) && interlock.Kind(err) == interlock.Definite:
				got = append(got, heuristic)
			case call == 'P' || call == 'O':
				got = append(got, refused)
			default:
				t.Fatalf("%s: %v", c.calls, err)
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, want %q", c.calls, got, c.want)
		}
		wantBalance(t, s, id, money, 0, 0)
	}
}

// TestShardOverdraft: no amount makes a balance negative, or larger than an int64.
func TestShardOverdraft(t *testing.T) {
	t.Parallel()
	s := NewShard(dial(t, serverFor(t).Addr()), "")
	p := begun(t, s, "t", func(b *ShardBranch) {
		for _, c := range []struct {
			amount int64
			fits   bool
		}{{-1, false}, {10, true}, {-11, false}, {math.MinInt64, false}, {math.MaxInt64, false}, {math.MaxInt64 - 10, true}, {1, false}, {math.MinInt64 + 1, true}, {10, true}} {
			err := b.Add(bounded(t), "x", c.amount)
			var short *OverdrawnError
			if (err == nil) != c.fits || err != nil && (!errors.As(err, &short) || interlock.Kind(err) != interlock.Definite || short.Amount != c.amount) {
				t.Fatalf("adding %d: %v", c.amount, err)
			}
		}
	})
	mustPrepare(t, p)
	wantBalance(t, s, "x", 0, 0, 10)
	mustEnd(t, s.Commit, "t")
	wantBalance(t, s, "x", 10, 0, 0)
}

// TestShardLimits: etcd accepts the largest branches that Shard accepts, and larger
// ones are refused with nothing lost.
func TestShardLimits(t *testing.T) {
	t.Parallel()
	client := dial(t, serverFor(t).Addr())
	long := strings.Repeat("%/\xff", driver.MaxName/3)
	for name, c := range map[string]struct {
		most int
		do   func(b *ShardBranch, i int) error
	}{
		"changes": {41, func(b *ShardBranch, i int) error { return b.Add(bounded(t), fmt.Sprint(i), 1) }},
		"reads": {62, func(b *ShardBranch, i int) error {
			_, err := b.Get(bounded(t), fmt.Sprint(i))
			return err
		}},
		"long names": {41, func(b *ShardBranch, i int) error {
			return b.Put(bounded(t), fmt.Sprint(string(rune('A'+i)), long), []byte("x"))
		}},
		"large values": {7, func(b *ShardBranch, i int) error {
			return b.Put(bounded(t), fmt.Sprint(i), make([]byte, driver.MaxValue))
		}},
		"large values and long names": {41, func(b *ShardBranch, i int) error {
			return b.Put(bounded(t), fmt.Sprint(string(rune('A'+i)), long), make([]byte, 8000))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := NewShard(client, name+"/")
			p := begun(t, s, "t", func(b *ShardBranch) {
				for i := range c.most {
					testbed.OK(t, c.do(b, i))
				}
				if err := c.do(b, c.most); interlock.Kind(err) != interlock.Bug {
					t.Fatalf("one more: %v", err)
				}
				if err := c.do(b, 0); err != nil {
					t.Fatalf("one of those that are in: %v", err)
				}
			})
			mustPrepare(t, p)
			mustEnd(t, s.Commit, "t")
			if got := len(keys(t, client, name+"/interlock.shard:posted/")); got != c.most && name != "reads" {
				t.Fatalf("%d items", got)
			}
			if err := readBooks(t, client, name+"/").unowned; err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestShardForgets only branches that ended long ago, and refuses branches that it
// might have forgotten.
func TestShardForgets(t *testing.T) {
	t.Parallel()
	client := dial(t, serverFor(t).Addr())
	s := NewShard(client, "")
	clock := time.Now().Add(-time.Hour).Truncate(time.Second)
	s.now = func() time.Time { return clock }
	forget := func(before time.Time, limit, want int) {
		t.Helper()
		if n, err := s.Forget(bounded(t), before, limit); n != want || err != nil {
			t.Fatalf("%d forgotten, %v; want %d", n, err, want)
		}
	}
	late := begun(t, s, "late", add(t, 1, "late"))
	mustEnd(t, s.Rollback, "late")
	mustPrepare(t, begun(t, s, "doubt", add(t, 1, "doubt")))
	for i := range 5 {
		mustDo(t, s, fmt.Sprint("old", i), add(t, 1, fmt.Sprint(i)))
	}
	forget(clock, 100, 0)
	began := begun(t, s, "began", add(t, 1, "x"))
	clock = clock.Add(time.Minute)
	mustDo(t, s, "new", add(t, 1, "x"))
	forget(clock, 0, 0)
	forget(clock, 2, 2)
	forget(clock, 100, 4)
	forget(clock, 100, 0)
	if left := keys(t, client, "interlock.shard:ended/"); !slices.Equal(left, []string{"interlock.shard:ended/shard/new"}) {
		t.Fatalf("left are %q", left)
	}
	for _, p := range []driver.Preparing{late, began} {
		var changed *ChangedError
		if err := mustRefuse(t, p); !errors.As(err, &changed) || !strings.Contains(err.Error(), "forgotten") {
			t.Fatal(err)
		}
	}
	mustEnd(t, s.Commit, "doubt")
	mustDo(t, s, "later", add(t, 1, "late"))
	wantBalance(t, s, "late", 1, 0, 0)
}

// TestShardForgetsInPages: more than one transaction of etcd removes at once.
func TestShardForgetsInPages(t *testing.T) {
	t.Parallel()
	client := dial(t, serverFor(t).Addr())
	s := NewShard(client, "")
	const all = 2*forgetPage + 3
	for i := range all {
		mustEnd(t, s.Rollback, fmt.Sprint("t", i))
	}
	if n, err := s.Forget(bounded(t), time.Now().Add(time.Hour), 2*forgetPage+1); n != 2*forgetPage+1 || err != nil {
		t.Fatal(n, err)
	}
	if n, err := s.Forget(bounded(t), time.Now().Add(time.Hour), all); n != 2 || err != nil {
		t.Fatal(n, err)
	}
}

// TestShardListsAll branches in doubt, over pages, and only its own.
func TestShardListsAll(t *testing.T) {
	t.Parallel()
	client := dial(t, serverFor(t).Addr())
	s, other := NewShard(client, "a/"), NewShard(client, "b/")
	const all = shardPage + 10
	for i := range all {
		mustPrepare(t, begun(t, s, fmt.Sprint("t", i), look(t, "x")))
	}
	if doubts, err := s.InDoubt(bounded(t)); len(doubts) != all || err != nil {
		t.Fatal(len(doubts), err)
	}
	if doubts, err := other.InDoubt(bounded(t)); len(doubts) != 0 || err != nil {
		t.Fatal(doubts, err)
	}
	if err := other.Commit(bounded(t), xid("t1", "shard")); !errors.Is(err, driver.ErrHeuristic) {
		t.Fatal(err)
	}
}

// TestShardCosts the documented number of requests.
func TestShardCosts(t *testing.T) {
	t.Parallel()
	var count counter
	client := dial(t, serverFor(t).Addr(), count.on)
	s := NewShard(client, "")
	mustDo(t, s, "seed", add(t, 10, "x", "y"))
	var p driver.Preparing
	for _, c := range []struct {
		what string
		cost int64
		do   func() error
	}{
		{"two reads and two changes", 2, func() error {
			p = begun(t, s, "t", func(b *ShardBranch) { look(t, "x", "y")(b); add(t, 1, "x", "y")(b) })
			return nil
		}},
		{"prepare", 1, func() error { mustPrepare(t, p); return nil }},
		{"in doubt", 1, func() error { _, err := s.InDoubt(bounded(t)); return err }},
		{"commit", 2, func() error { return s.Commit(bounded(t), xid("t", "shard")) }},
		{"commit again", 1, func() error { return s.Commit(bounded(t), xid("t", "shard")) }},
		{"roll back the unknown", 2, func() error { return s.Rollback(bounded(t), xid("u", "shard")) }},
		{"balance", 1, func() error { _, err := s.Balance(bounded(t), "x"); return err }},
		{"one phase", 2, func() error { mustDo(t, s, "one", add(t, 1, "x")); return nil }},
		{"one phase, reading", 1, func() error { mustDo(t, s, "r", look(t, "x")); return nil }},
		{"nothing", 0, func() error { mustDo(t, s, "n", func(*ShardBranch) {}); return nil }},
		{"abandon", 0, func() error { return begun(t, s, "a", func(*ShardBranch) {}).Abandon(bounded(t)) }},
	} {
		before := count.n.Load()
		testbed.OK(t, c.do())
		if got := count.n.Load() - before; got != c.cost {
			t.Errorf("%s: %d requests, want %d", c.what, got, c.cost)
		}
	}
}

// TestShardCompaction: a branch whose revision etcd has compacted must begin again,
// and one that has all its reads continues.
func TestShardCompaction(t *testing.T) {
	t.Parallel()
	client := dial(t, serverFor(t).Addr())
	s := NewShard(client, "")
	mustDo(t, s, "seed", add(t, 10, "x", "y"))
	p := begun(t, s, "t", func(b *ShardBranch) {
		look(t, "x")(b)
		_, err := client.Compact(bounded(t), mustPut(t, client, "other", ""))
		testbed.OK(t, err)
		if _, err := b.Balance(bounded(t), "y"); interlock.Kind(err) != interlock.Retryable {
			t.Fatal(err)
		}
	})
	mustPrepare(t, p)
	mustEnd(t, s.Commit, "t")
}

// TestShardBadInput: a clear error, and nothing lost.
func TestShardBadInput(t *testing.T) {
	t.Parallel()
	client := dial(t, serverFor(t).Addr())
	s := NewShard(client, "")
	ended, stop := context.WithCancel(t.Context())
	stop()
	b, p, err := s.Begin(bounded(t), xid("t", "shard"))
	testbed.OK(t, err)
	long := strings.Repeat("x", driver.MaxName+1)
	gone, gp, _ := s.Begin(bounded(t), xid("gone", "shard"))
	testbed.OK(t, errors.Join(gone.Add(bounded(t), "x", 1), gp.Abandon(ended), gp.Abandon(ended)))
	for key, value := range map[string]string{"posted/balance/odd": "ten", "posted/balance/low": "-3", "held/balance/mad": "{}", "doubt/shard/torn": "{", "ended/shard/worn": "{}"} {
		mustPut(t, client, "interlock.shard:"+key, value)
	}
	one := func(_ any, err error) error { return err }
	for what, c := range map[string]struct {
		err  error
		kind interlock.ErrorKind
	}{
		"no name":            {b.Add(bounded(t), "", 1), interlock.Bug},
		"long name":          {one(b.Get(bounded(t), long)), interlock.Bug},
		"long value":         {b.Put(bounded(t), "v", make([]byte, driver.MaxValue+1)), interlock.Bug},
		"ended context":      {one(b.Balance(ended, "x")), interlock.Definite},
		"no XID":             {s.Commit(bounded(t), driver.XID{}), interlock.Bug},
		"slash in branch":    {s.Rollback(bounded(t), xid("t", "a/b")), interlock.Bug},
		"begin without name": {func() error { _, _, err := s.Begin(bounded(t), xid("", "b")); return err }(), interlock.Bug},
		"begin too late":     {func() error { _, _, err := s.Begin(ended, xid("t", "b")); return err }(), interlock.Definite},
		"work after the end": {gone.Add(bounded(t), "x", 1), interlock.Bug},
		"prepare after it":   {one(gp.Prepare(bounded(t))), interlock.Bug},
		"commit after it":    {gp.CommitOne(bounded(t)), interlock.Bug},
		"not a number":       {one(s.Balance(bounded(t), "odd")), interlock.Definite},
		"below zero":         {b.Add(bounded(t), "low", 1), interlock.Definite},
		"odd reservation":    {one(s.Balance(bounded(t), "mad")), interlock.Definite},
		"odd branch":         {s.Commit(bounded(t), xid("torn", "shard")), interlock.Definite},
		"odd marker":         {s.Rollback(bounded(t), xid("worn", "shard")), interlock.Definite},
		"odd branches":       {one(s.InDoubt(bounded(t))), interlock.Definite},
		"odd markers":        {one(s.Forget(bounded(t), time.Now(), 9)), interlock.Definite},
	} {
		if c.err == nil || interlock.Kind(c.err) != c.kind {
			t.Errorf("%s: %v", what, c.err)
		}
	}
	testbed.OK(t, b.Add(bounded(t), "x", 1))
	mustPrepare(t, p)
	if err := b.Add(bounded(t), "x", 1); interlock.Kind(err) != interlock.Bug {
		t.Fatalf("work in a branch that is prepared: %v", err)
	}
	mustEnd(t, s.Commit, "t")
	wantBalance(t, s, "x", 1, 0, 0)
}

// TestShardNames: names are bytes, and do not collide.
func TestShardNames(t *testing.T) {
	t.Parallel()
	client := dial(t, serverFor(t).Addr())
	s := NewShard(client, "")
	names := []string{"a", "a/", "a/b", "a%2Fb", "%", "\x00", "a\x00", "\xff\xfe", "é", "shard/t", " "}
	p := begun(t, s, "t", func(b *ShardBranch) {
		for i, name := range names {
			testbed.OK(t, b.Add(bounded(t), name, int64(i+1)))
		}
	})
	mustPrepare(t, p)
	mustRefuse(t, begun(t, s, "u", look(t, "\xff\xfe")))
	mustEnd(t, s.Commit, "t")
	for i, name := range names {
		wantBalance(t, s, name, int64(i+1), 0, 0)
	}
	// A branch that has read "a/b" does not block a change of "a".
	mustPrepare(t, begun(t, s, "r", look(t, "a/b", "\xff\xfe")))
	mustDo(t, s, "w", add(t, 1, "a", "a/", "a\x00"))
	mustRefuse(t, begun(t, s, "x", add(t, 1, "\xff\xfe")))
	mustEnd(t, s.Rollback, "r")
	if reply, err := client.Get(bounded(t), "interlock.shard:read/", clientv3.WithPrefix()); err != nil || reply.Count != 0 {
		t.Fatal(reply, err)
	}
}
