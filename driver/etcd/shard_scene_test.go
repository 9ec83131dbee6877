package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func xid(transaction, branch string) driver.XID {
	return driver.XID{Transaction: transaction, Branch: branch}
}

// begun opens a branch and runs do in it.
func begun(t testing.TB, s *Shard, transaction string, do func(b *ShardBranch)) driver.Preparing {
	t.Helper()
	b, p, err := s.Begin(bounded(t), xid(transaction, "shard"))
	testbed.OK(t, err)
	do(b)
	return p
}

// add returns work that adds to accounts.
func add(t testing.TB, amount int64, accounts ...string) func(*ShardBranch) {
	return func(b *ShardBranch) {
		t.Helper()
		for _, account := range accounts {
			testbed.OK(t, b.Add(bounded(t), account, amount))
		}
	}
}

// look returns work that reads accounts.
func look(t testing.TB, accounts ...string) func(*ShardBranch) {
	return func(b *ShardBranch) {
		t.Helper()
		for _, account := range accounts {
			_, err := b.Balance(bounded(t), account)
			testbed.OK(t, err)
		}
	}
}

func mustDo(t testing.TB, s *Shard, transaction string, do func(*ShardBranch)) {
	t.Helper()
	testbed.OK(t, begun(t, s, transaction, do).CommitOne(bounded(t)))
}

func mustPrepare(t testing.TB, p driver.Preparing) {
	t.Helper()
	if vote, err := p.Prepare(bounded(t)); vote != driver.VoteYes || err != nil {
		t.Fatalf("voted %v: %v", vote, err)
	}
}

// mustRefuse expects a vote of no, with an error that leaves nothing.
func mustRefuse(t testing.TB, p driver.Preparing) error {
	t.Helper()
	vote, err := p.Prepare(bounded(t))
	want := interlock.Definite
	var changed *ChangedError
	if errors.Is(err, interlock.ErrHeld) || errors.As(err, &changed) {
		want = interlock.Retryable // by another branch
	}
	if vote != driver.VoteNo || err == nil || interlock.Kind(err) != want {
		t.Fatalf("voted %v: %v", vote, err)
	}
	return err
}

func mustEnd(t testing.TB, end func(context.Context, driver.XID) error, transaction string) {
	t.Helper()
	testbed.OK(t, end(bounded(t), xid(transaction, "shard")))
}

func wantBalance(t testing.TB, s *Shard, account string, posted, held, pending int64) {
	t.Helper()
	got, err := s.Balance(bounded(t), account)
	if err != nil || got.Posted != posted || got.Held != held || got.Pending != pending {
		t.Fatalf("%s: %+v, %v; want %d, held %d, pending %d", account, got, err, posted, held, pending)
	}
}

// books is the content of the keys of shards at one instant, read without the code of
// Shard.
type books struct {
	posted  map[string]int64 // by prefix and account
	doubts  map[string]int64 // by transaction: the sum of its prepared branches
	ended   map[string]map[bool]bool
	unowned []string // reservations without a prepared branch
}

// readBooks reads all shards below the prefix.
func readBooks(t testing.TB, client *clientv3.Client, prefix string) books {
	t.Helper()
	b, err := openBooks(bounded(t), client, prefix)
	testbed.OK(t, err)
	return b
}

func openBooks(ctx context.Context, client *clientv3.Client, prefix string) (books, error) {
	b := books{posted: map[string]int64{}, doubts: map[string]int64{}, ended: map[string]map[bool]bool{}}
	reply, err := client.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return b, err
	}
	prepared, reservations := map[string]bool{}, map[string]string{}
	for _, kv := range reply.Kvs {
		shard, key, _ := strings.Cut(string(kv.Key), reserved+"shard:")
		part, rest, _ := strings.Cut(key, "/")
		_, transaction, _ := strings.Cut(rest, "/")
		var record struct {
			Writes      []struct{ Amount int64 }
			Committed   bool
			Transaction string
			Branch      string
		}
		if part != "posted" && part != "low" {
			err = json.Unmarshal(kv.Value, &record)
		}
		switch part {
		case "posted":
			if account, ok := strings.CutPrefix(rest, "balance/"); ok {
				b.posted[shard+account], err = strconv.ParseInt(string(kv.Value), 10, 64)
			}
		case "held", "read":
			reservations[shard+key] = shard + record.Branch + "/" + record.Transaction
		case "doubt":
			prepared[shard+rest] = true
			for _, w := range record.Writes {
				b.doubts[transaction] += w.Amount
			}
		case "ended":
			if b.ended[transaction] == nil {
				b.ended[transaction] = map[bool]bool{}
			}
			b.ended[transaction][record.Committed] = true
		}
		if err != nil {
			return b, fmt.Errorf("%s: %w", kv.Key, err)
		}
	}
	for key, branch := range reservations {
		if !prepared[branch] {
			b.unowned = append(b.unowned, key+" of "+branch)
		}
	}
	return b, nil
}

// money returns the total once every commit is complete on all shards.
func (b books) money() (sum int64) {
	for _, n := range b.posted {
		sum += n
	}
	for transaction, amount := range b.doubts {
		if b.ended[transaction][true] {
			sum += amount
		}
	}
	return sum
}

// sound returns an error for created or lost money, transactions with both outcomes, and
// reservations without a branch.
func (b books) sound(money int64) error {
	if got := b.money(); got != money {
		return fmt.Errorf("there are %d, want %d: %+v", got, money, b)
	}
	for account, n := range b.posted {
		if n < 0 {
			return fmt.Errorf("account %s holds %d", account, n)
		}
	}
	for transaction, ends := range b.ended {
		if len(ends) > 1 {
			return fmt.Errorf("transaction %s was committed and rolled back", transaction)
		}
	}
	if len(b.unowned) > 0 {
		return fmt.Errorf("no branch frees %v", b.unowned)
	}
	return nil
}
