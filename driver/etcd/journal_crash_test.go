package etcd

import (
	"bytes"
	"context"
	"crypto/rand"
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/txn/journal"
)

// crashing has a point before each transaction of etcd, and one after it.
type crashing struct {
	clientv3.KV
	at *crash.Points
}

func (c crashing) Txn(ctx context.Context) clientv3.Txn { return crashingTxn{c.KV.Txn(ctx), c.at} }

type crashingTxn struct {
	clientv3.Txn
	at *crash.Points
}

func (t crashingTxn) If(cs ...clientv3.Cmp) clientv3.Txn { return crashingTxn{t.Txn.If(cs...), t.at} }
func (t crashingTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	return crashingTxn{t.Txn.Then(ops...), t.at}
}
func (t crashingTxn) Else(ops ...clientv3.Op) clientv3.Txn {
	return crashingTxn{t.Txn.Else(ops...), t.at}
}

func (t crashingTxn) Commit() (*clientv3.TxnResponse, error) {
	t.at.Pass()
	reply, err := t.Txn.Commit()
	t.at.Pass()
	return reply, err
}

// drive completes a transaction from any state: the role of the process that is
// killed.
func drive(ctx context.Context, at *crash.Points, args []string) error {
	client, err := clientv3.New(clientv3.Config{Endpoints: args[:1], Context: ctx})
	if err != nil {
		return err
	}
	defer client.Close()
	client.KV = crashing{client.KV, at}
	j, err := journal.New(NewJournal(client, args[1]), &journal.Options{Inline: 50})
	if err != nil {
		return err
	}
	defer j.Close()
	due := time.UnixMilli(1_800_000_000_000)
	log, entries, err := j.Open(ctx, "t")
	if err == nil && log == nil {
		entries = []journal.Entry{{Kind: "begin"}, {Kind: "sent"}}
		log, err = j.Begin(ctx, "t", "order", due, entries...)
	}
	if err == nil && len(entries) == 2 {
		more := []journal.Entry{{Kind: "done", Data: bytes.Repeat([]byte("result"), 100)}, {Kind: "decide"}}
		entries, err = append(entries, more...), log.Append(ctx, due.Add(time.Hour), more...)
	}
	if err == nil && len(entries) == 4 {
		err = log.End(ctx, journal.Entry{Kind: "end"})
	}
	return err
}

// TestJournalCrashes: a process is killed between any two writes, or at two of them. The
// next one completes the transaction, with every record once.
func TestJournalCrashes(t *testing.T) {
	t.Parallel()
	addr := serverFor(t).Addr()
	client := dial(t, addr)
	scene := func(tb testing.TB) crash.Scene {
		prefix := rand.Text() + "/"
		return crash.Scene{Args: []string{addr, prefix}, Want: func(tb testing.TB) {
			tb.Helper()
			j, err := journal.New(NewJournal(client, prefix), nil)
			testbed.OK(tb, err)
			defer j.Close()
			log, entries, err := j.Open(tb.Context(), "t")
			var kinds []string
			for _, e := range entries {
				kinds = append(kinds, e.Kind)
			}
			if err != nil || !slices.Equal(kinds, []string{"begin", "sent", "done", "decide", "end"}) || log.Head().Ended.IsZero() || len(entries[2].Data) != 600 {
				tb.Errorf("left %v, %v", kinds, err)
			}
			if n, err := j.Unscheduled(tb.Context()); n != 0 || err != nil {
				tb.Errorf("%d unscheduled, %v", n, err)
			}
		}}
	}
	crash.Once(t, "driver", scene)
	crash.Pairs(t, "driver", 6, scene)
}
