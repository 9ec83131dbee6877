package etcd

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
)

// bank holds accounts on two shards, and decisions that are made once.
type bank struct {
	client *clientv3.Client
	prefix string
	shards []*Shard
}

func newBank(client *clientv3.Client, prefix string) *bank {
	return &bank{client, prefix, []*Shard{NewShard(client, prefix+"a/"), NewShard(client, prefix+"b/")}}
}

// branchOf returns the XID of a transaction at a shard.
func branchOf(transaction string, shard int) driver.XID {
	return xid(transaction, string(rune('a'+shard)))
}

// transfer moves an amount from an account of one shard to one of the other. With
// vanish it stops before the decision, like a coordinator that dies.
func (b *bank) transfer(ctx context.Context, transaction string, from, to int, account string, amount int64, vanish bool) error {
	var prepares []driver.Preparing
	for shard, n := range map[int]int64{from: -amount, to: amount} {
		branch, p, err := b.shards[shard].Begin(ctx, branchOf(transaction, shard))
		if err == nil {
			err = branch.Add(ctx, account, n)
		}
		if err != nil {
			return err
		}
		prepares = append(prepares, p)
	}
	for _, p := range prepares {
		if vote, err := p.Prepare(ctx); vote != driver.VoteYes {
			return errors.Join(err, b.finish(ctx, transaction, false))
		}
	}
	if vanish {
		return nil
	}
	return b.finish(ctx, transaction, true)
}

// decide writes a decision unless there is one, and returns the stored one.
func (b *bank) decide(ctx context.Context, transaction string, commit bool) (bool, error) {
	key := "decided/" + b.prefix + transaction
	reply, err := b.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, fmt.Sprint(commit))).Else(clientv3.OpGet(key)).Commit()
	if err != nil || reply.Succeeded {
		return commit, err
	}
	return string(reply.Responses[0].GetResponseRange().Kvs[0].Value) == "true", nil
}

// finish reports the decision to every shard.
func (b *bank) finish(ctx context.Context, transaction string, commit bool) error {
	commit, err := b.decide(ctx, transaction, commit)
	for shard, s := range b.shards {
		end := s.Rollback
		if commit {
			end = s.Commit
		}
		err = errors.Join(err, end(ctx, branchOf(transaction, shard)))
	}
	return err
}

// recover ends branches in doubt, and aborts those without a decision.
func (b *bank) recover(ctx context.Context) error {
	for _, s := range b.shards {
		doubts, err := s.InDoubt(ctx)
		for _, d := range doubts {
			err = errors.Join(err, b.finish(ctx, d.XID.Transaction, false))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// TestShardRace runs transfers over two shards, by coordinators that die before the decision,
// during a scan that aborts all branches in doubt. At every revision no money is missing, and in
// the end nothing is reserved.
func TestShardRace(t *testing.T) {
	t.Parallel()
	client := dial(t, serverFor(t).Addr())
	b := newBank(client, "bank/")
	accounts := []string{"x", "y", "z"}
	const money = 2 * 3 * 100
	for _, s := range b.shards {
		mustDo(t, s, "seed", add(t, 100, accounts...))
	}
	var workers, watchers sync.WaitGroup
	done := make(chan struct{})
	watch := func(do func() error) {
		watchers.Go(func() {
			for {
				if err := do(); err != nil {
					t.Error(err)
					return
				}
				select {
				case <-done:
					return
				case <-time.After(5 * time.Millisecond):
				}
			}
		})
	}
	watch(func() error {
		books, err := openBooks(bounded(t), client, "bank/")
		return errors.Join(err, books.sound(money))
	})
	watch(func() error { return b.recover(bounded(t)) })
	var mu sync.Mutex
	committed := 0
	for w := range 4 {
		workers.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 11))
			for i := range 60 {
				from := random.IntN(2)
				err := b.transfer(bounded(t), fmt.Sprintf("t%d-%d", w, i), from, 1-from, accounts[random.IntN(3)], random.Int64N(60), random.IntN(5) == 0)
				mu.Lock()
				if err == nil {
					committed++
				} else if kind := interlock.Kind(err); kind == interlock.Uncertain || kind == interlock.Bug {
					t.Error(err)
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	close(done)
	watchers.Wait()
	testbed.OK(t, b.recover(bounded(t)))
	end := readBooks(t, client, "bank/")
	if err := end.sound(money); err != nil || len(end.doubts) > 0 {
		t.Fatal(err, end.doubts)
	}
	if committed < 20 {
		t.Errorf("only %d of 240 transfers were committed", committed)
	}
	t.Logf("%d of 240 were committed", committed)
}

// TestShardEndRace: of many concurrent commits of a branch one is effective. A branch that is
// concurrently prepared and rolled back is prepared first or not at all.
func TestShardEndRace(t *testing.T) {
	t.Parallel()
	client := dial(t, serverFor(t).Addr())
	s := NewShard(client, "")
	for i := range 40 {
		id := fmt.Sprint("t", i)
		p := begun(t, s, id, add(t, 1, "x"))
		var all sync.WaitGroup
		if i%2 == 0 {
			mustPrepare(t, p)
			for range 4 {
				all.Go(func() {
					if err := s.Commit(bounded(t), xid(id, "shard")); err != nil {
						t.Error(err)
					}
				})
			}
		} else {
			all.Go(func() { _, _ = p.Prepare(bounded(t)) })
			all.Go(func() {
				if err := s.Rollback(bounded(t), xid(id, "shard")); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		wantBalance(t, s, "x", int64(i/2+1), 0, 0)
	}
	if b := readBooks(t, client, ""); len(b.doubts)+len(b.unowned) > 0 {
		t.Errorf("%+v", b)
	}
}

// pay moves 30 from one shard to another, once: it ends branches in doubt, and begins
// a transaction unless one was committed. It is the role of the process that is
// killed.
func pay(ctx context.Context, at *crash.Points, args []string) error {
	client, err := clientv3.New(clientv3.Config{Endpoints: args[:1], Context: ctx})
	if err != nil {
		return err
	}
	defer client.Close()
	client.KV = crashing{client.KV, at}
	b := newBank(client, args[1])
	if err := b.recover(ctx); err != nil {
		return err
	}
	for n := range 10 { // no process dies more than twice
		id := fmt.Sprint("t", n)
		committed, err := b.decided(ctx, id)
		if committed {
			return b.finish(ctx, id, true) // the process that decided may not have reported it
		}
		if err != nil {
			return err
		}
		if reply, err := client.Get(ctx, "decided/"+b.prefix+id); err != nil {
			return err
		} else if len(reply.Kvs) == 0 {
			return b.transfer(ctx, id, 0, 1, "x", 30, false)
		}
	}
	return fmt.Errorf("ten transactions were rolled back")
}

// decided reports whether a transaction was committed.
func (b *bank) decided(ctx context.Context, transaction string) (bool, error) {
	reply, err := b.client.Get(ctx, "decided/"+b.prefix+transaction)
	return err == nil && len(reply.Kvs) > 0 && string(reply.Kvs[0].Value) == "true", err
}

// payment returns a scene of pay, which requires in the end that it was paid once.
func payment(tb testing.TB, addr string, client *clientv3.Client) crash.Scene {
	prefix := crand.Text() + "/"
	b := newBank(client, prefix)
	for _, s := range b.shards {
		mustDo(tb, s, "seed", add(tb, 100, "x"))
	}
	return crash.Scene{Args: []string{addr, prefix}, Want: func(tb testing.TB) {
		tb.Helper()
		books := readBooks(tb, client, prefix)
		if err := books.sound(200); err != nil || len(books.doubts) > 0 || books.posted[prefix+"a/x"] != 70 || books.posted[prefix+"b/x"] != 130 {
			tb.Errorf("left %+v, %v", books, err)
		}
	}}
}

// TestShardCrashes: a process is killed between any two requests of a transfer. The
// next one pays once; some of those are killed too.
func TestShardCrashes(t *testing.T) {
	t.Parallel()
	addr := serverFor(t).Addr()
	client := dial(t, addr)
	points := crash.Once(t, "shard", func(tb testing.TB) crash.Scene { return payment(tb, addr, client) })
	if points < 20 {
		t.Errorf("only %d points", points)
	}
	random := rand.New(rand.NewPCG(5, 8))
	for range 20 {
		first, second := 1+random.IntN(points), 1+random.IntN(points)
		t.Run(fmt.Sprintf("killed at %d, then at %d", first, second), func(t *testing.T) {
			t.Parallel()
			s := payment(t, addr, client)
			for _, point := range []int{first, second, 0} {
				crash.Run(t, "shard", point, s.Args...) // the second run may have fewer points
			}
			s.Want(t)
		})
	}
}

func TestShardParticipant(t *testing.T) {
	t.Parallel()
	drivertest.RunParticipant(t, drivertest.ParticipantHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.ParticipantBackend {
			server := serverOr(t, exclusive)
			return &shardBackend{writeFaults: writeFaults[drivertest.Branches]{Server: paths.New[drivertest.Branches](server)},
				operator: NewShard(dial(t, server.Addr()), "suite/")}
		},
	})
}

type shardBackend struct {
	writeFaults[drivertest.Branches]
	operator *Shard // bypasses the faults of the paths
}

func (b *shardBackend) Open(t *testing.T) (drivertest.Branches, error) {
	return b.Lead(t, func(path *testbed.Proxy) (drivertest.Branches, error) {
		return branchesOf(NewShard(dial(t, path.Addr(), b.beforeWrites(path)), "suite/"), b.operator), nil
	})
}

func (b *shardBackend) Beside(*testing.T) (drivertest.Branches, error) {
	return branchesOf(b.operator, b.operator), nil
}

func (b *shardBackend) Faults() drivertest.Faults { return b }

// branchesOf a shard reserve nothing before they are prepared, so a write first reads whether a
// prepared branch holds its items. operator bypasses the faults of the paths.
func branchesOf(s, operator *Shard) drivertest.Branches {
	write := func(ctx context.Context, b *ShardBranch, key string, value int) error {
		found, err := operator.Value(ctx, key)
		if err == nil && found.Branch != (driver.XID{}) {
			err = fmt.Errorf("%s is held by %v", key, found.Branch)
		}
		if err != nil {
			return err
		}
		return b.Put(ctx, key, []byte(strconv.Itoa(value)))
	}
	read := func(ctx context.Context, key string) (int, error) {
		value, err := operator.Value(ctx, key)
		if err != nil || value.Version == 0 {
			return 0, err
		}
		return strconv.Atoi(string(value.Data))
	}
	return drivertest.PreparerOf(s, write, read)
}
