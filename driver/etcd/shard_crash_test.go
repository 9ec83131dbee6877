package etcd

import (
	"context"
	crand "crypto/rand"
	"fmt"
	"math/rand/v2"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock/internal/testbed/crash"
)

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
