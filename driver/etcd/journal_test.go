package etcd

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/paths"
	"github.com/interlock-dev/interlock/txn/journal"
)

func TestJournal(t *testing.T) {
	t.Parallel()
	drivertest.RunJournal(t, drivertest.JournalHarness{
		Start: func(t *testing.T, exclusive bool) drivertest.JournalBackend {
			return paths.At(serverOr(t, exclusive), func(t *testing.T, addr string) (driver.Journal, error) {
				return NewJournal(dial(t, addr), "suite/"), nil
			})
		},
	})
}

// TestAppendCostsOneRequest, and so does a group of them.
func TestAppendCostsOneRequest(t *testing.T) {
	t.Parallel()
	var count counter
	j := NewJournal(dial(t, serverFor(t).Addr(), count.on), "")
	due := time.Now()
	for after := range int64(3) {
		var group []driver.Append
		for i := range maxAppends {
			group = append(group, driver.Append{Transaction: fmt.Sprint("t", i), After: 2 * after, Records: []driver.Record{{Kind: "x"}, {Kind: "y"}}, Due: due})
		}
		before := count.n.Load()
		testbed.OK(t, errors.Join(j.Append(bounded(t), group)...))
		if got := count.n.Load() - before; got != 1 {
			t.Fatalf("%d requests for %d appends", got, len(group))
		}
	}
}

// TestDueShardsCostsOneRequest for as many shards as a journal has by default, and one more for
// each 128 beyond.
func TestDueShardsCostsOneRequest(t *testing.T) {
	t.Parallel()
	var count counter
	j := NewJournal(dial(t, serverFor(t).Addr(), count.on), "")
	for shards, want := range map[int]int64{0: 0, 1: 1, 64: 1, 128: 1, 129: 2, 300: 3} {
		all := make([]int, shards)
		for i := range all {
			all[i] = i
		}
		before := count.n.Load()
		due, err := j.DueShards(bounded(t), all, time.Now())
		if got := count.n.Load() - before; got != want || err != nil || len(due) > 0 {
			t.Errorf("%d requests for %d shards: %v, %v", got, shards, due, err)
		}
	}
}

// TestClaimOfLargeAppends: Claim writes last appends again, in several requests if they have more
// bytes than etcd allows in one.
func TestClaimOfLargeAppends(t *testing.T) {
	t.Parallel()
	j := NewJournal(dial(t, serverFor(t).Addr()), "large/")
	testbed.OK(t, j.Enter(bounded(t), 0, tok(t, 5, 0)))
	now := time.Now().Truncate(time.Second)
	var records []driver.Record
	for i := range driver.MaxRecords {
		records = append(records, driver.Record{Kind: "x", Step: fmt.Sprint(i), Sum: []byte{byte(i)}, Data: bytes.Repeat([]byte{'\n', byte(i)}, driver.MaxRecord/2)})
	}
	const many = 5
	for i := range many {
		testbed.OK(t, j.Append(bounded(t), []driver.Append{{Transaction: fmt.Sprint("t", i), Records: records, Due: now}})[0])
	}
	heads, err := j.Claim(bounded(t), 0, tok(t, 5, 0), now, now.Add(time.Hour), 10)
	if err != nil || len(heads) != many {
		t.Fatalf("claimed %d transactions, %v", len(heads), err)
	}
	for _, h := range heads {
		stored, read, err := j.Read(bounded(t), h.Transaction, 1)
		if err != nil || !reflect.DeepEqual(stored, h) || !h.Claimed || len(read) != len(records)-1 {
			t.Fatalf("claimed %+v; stored %+v with %d records, %v", h, stored, len(read), err)
		}
		for i, r := range read {
			if w := records[i+1]; r.Position != int64(i+2) || r.Step != w.Step || !bytes.Equal(r.Data, w.Data) || !bytes.Equal(r.Sum, w.Sum) {
				t.Fatalf("record %d of %q has changed", r.Position, h.Transaction)
			}
		}
	}
}

// TestClaimOfLongNames: what Claim writes again includes the names of steps, in the form of JSON.
func TestClaimOfLongNames(t *testing.T) {
	t.Parallel()
	j := NewJournal(dial(t, serverFor(t).Addr()), "names/")
	testbed.OK(t, j.Enter(bounded(t), 0, tok(t, 5, 0)))
	now := time.Now().Truncate(time.Second)
	for i := range duePage {
		a := longNames(fmt.Sprint("t", i), now)
		testbed.OK(t, j.Append(bounded(t), []driver.Append{a})[0])
	}
	heads, err := j.Claim(bounded(t), 0, tok(t, 5, 0), now, now.Add(time.Hour), duePage)
	if err != nil || len(heads) != duePage {
		t.Fatalf("claimed %d transactions, %v", len(heads), err)
	}
}

// TestAppendsOfLongNames: as many as one request has.
func TestAppendsOfLongNames(t *testing.T) {
	t.Parallel()
	j := NewJournal(dial(t, serverFor(t).Addr()), "names/")
	var group []driver.Append
	for i := range maxAppends {
		group = append(group, longNames(fmt.Sprint("t", i), time.Now()))
	}
	testbed.OK(t, errors.Join(j.Append(bounded(t), group)...))
}

// longNames returns an append whose steps are six times as long in JSON.
func longNames(transaction string, due time.Time) driver.Append {
	a := driver.Append{Transaction: transaction, Due: due}
	for range driver.MaxRecords {
		a.Records = append(a.Records, driver.Record{Kind: "x", Step: strings.Repeat("<", 255)})
	}
	return a
}

// TestFormerKeys: a journal with the keys of a former version is refused when it is opened.
func TestFormerKeys(t *testing.T) {
	t.Parallel()
	client := dial(t, serverFor(t).Addr())
	_, err := client.Put(bounded(t), "former/interlock.journal:head/t", "")
	testbed.OK(t, err)
	j := NewJournal(client, "former/")
	for from, to := range []int{0, 8, 16} {
		if n, err := j.Shards(bounded(t), 8*from, to); n != 0 || interlock.Kind(err) != interlock.Definite || !strings.Contains(err.Error(), "former version") {
			t.Errorf("Shards returned %d, %v", n, err)
		}
	}
}

// TestLocksAreNotAmongStores: a lock whose contenders would be keys of a journal or another store is
// refused.
func TestLocksAreNotAmongStores(t *testing.T) {
	t.Parallel()
	client := dial(t, serverFor(t).Addr())
	d, j := open(t, client, nil), NewJournal(client, "")
	for _, name := range []string{"interlock.journal:due", "interlock.journal:about", "x/interlock.journal:log", "interlock.shard:doubt", "interlock.kv:a"} {
		r := ask(name, "me")
		r.NoWait = true
		if _, err := d.Acquire(bounded(t), r.Request); interlock.Kind(err) != interlock.Bug || !errors.Is(err, interlock.ErrName) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := j.Heads(bounded(t), "", 1); err != nil {
		t.Error(err)
	}
	if _, err := j.Forget(bounded(t), time.Now(), 1); err != nil {
		t.Error(err)
	}
}

// TestAppendCostsFewWrites: one key for the records of an append and the state of the transaction,
// and one for its due time; a begin has one more, and an end removes the due time.
func TestAppendCostsFewWrites(t *testing.T) {
	t.Parallel()
	client := dial(t, serverFor(t).Addr())
	j := NewJournal(client, "writes/")
	due := time.Now().Truncate(time.Second)
	three := []driver.Record{{Kind: "x"}, {Kind: "y"}, {Kind: "z"}}
	for i, want := range []int{3, 2, 3} {
		a := driver.Append{Transaction: "t", After: int64(3 * i), Records: three, Due: due}
		if i > 0 {
			a.Was = due
		}
		if i == 2 {
			a.Due = time.Time{}
		}
		before, err := client.Get(bounded(t), "writes/")
		testbed.OK(t, err)
		testbed.OK(t, j.Append(bounded(t), []driver.Append{a})[0])
		ctx, cancel := context.WithCancel(bounded(t))
		reply := <-client.Watch(ctx, "writes/", clientv3.WithPrefix(), clientv3.WithRev(before.Header.Revision+1))
		cancel()
		if len(reply.Events) != want {
			t.Errorf("append %d writes %d keys, want %d", i, len(reply.Events), want)
		}
	}
}

// TestEntriesThatWereLeft: former due times of a transaction have no effect, and
// are removed when they have passed.
func TestEntriesThatWereLeft(t *testing.T) {
	t.Parallel()
	client := dial(t, serverFor(t).Addr())
	j := NewJournal(client, "p/")
	now := time.Now().Truncate(time.Second)
	testbed.OK(t, j.Enter(bounded(t), 0, tok(t, 5, 0)))
	var after int64
	add := func(due time.Time) {
		t.Helper()
		testbed.OK(t, j.Append(bounded(t), []driver.Append{{Transaction: "t", After: after, Records: []driver.Record{{Kind: "x"}}, Due: due}})[0])
		after++
	}
	entries := func() int64 {
		t.Helper()
		reply, err := client.Get(bounded(t), "p/interlock.journal:due/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		testbed.OK(t, err)
		return reply.Count
	}
	for i := range 3 * duePage {
		add(now.Add(time.Duration(i) * time.Second))
	}
	heads, err := j.Due(bounded(t), 0, driver.Head{}, 10)
	if err != nil || len(heads) != 1 || !heads[0].Due.Equal(now.Add((3*duePage-1)*time.Second)) || entries() != 3*duePage {
		t.Fatalf("due: %+v, %v, %d entries", heads, err, entries())
	}
	heads, err = j.Claim(bounded(t), 0, tok(t, 5, 0), now.Add(2*duePage*time.Second), now.Add(time.Hour), 10)
	if err != nil || len(heads) != 0 || entries() != duePage-1 {
		t.Fatalf("claimed %+v, %v, %d entries", heads, err, entries())
	}
	add(time.Time{})
	if _, err = j.Claim(bounded(t), 0, tok(t, 5, 0), now.Add(time.Hour), now.Add(2*time.Hour), 10); err != nil || entries() != 0 {
		t.Fatalf("%v, %d entries", err, entries())
	}
}

// TestLeftEntriesCostAPageEach: an owner that starts reads each due time without a transaction
// once, fifty in two requests, claims nothing, and removes them.
func TestLeftEntriesCostAPageEach(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	var count counter
	j := NewJournal(dial(t, server.Addr(), count.on), "left/")
	testbed.OK(t, j.Enter(bounded(t), 0, tok(t, 5, 0)))
	now := time.Now().Truncate(time.Second)
	const many = 1000
	client := dial(t, server.Addr())
	for i := 0; i < many; {
		var ops []clientv3.Op
		for ; len(ops) < 100; i++ {
			h := driver.Head{Transaction: fmt.Sprint("gone", i), Due: now.Add(-time.Duration(i) * time.Second)}
			ops = append(ops, clientv3.OpPut(j.dueKey(h), ""))
		}
		_, err := client.Txn(bounded(t)).Then(ops...).Commit()
		testbed.OK(t, err)
	}
	costs := func(what string, most int64, do func() ([]driver.Head, error)) {
		t.Helper()
		before, began := count.n.Load(), time.Now()
		heads, err := do()
		if got := count.n.Load() - before; got > most || err != nil || len(heads) > 0 {
			t.Errorf("%s: %d requests, want %d; %d heads, %v", what, got, most, len(heads), err)
		}
		t.Logf("%s took %v", what, time.Since(began))
	}
	take := func() ([]driver.Head, error) { return j.Due(bounded(t), 0, driver.Head{}, 200) }
	costs("taking over", 2*many/duePage+1, take)
	costs("the first claim", 3*many/duePage+2, func() ([]driver.Head, error) {
		return j.Claim(bounded(t), 0, tok(t, 5, 0), now, now.Add(time.Minute), 100)
	})
	costs("taking over again", 1, take)
}

// TestForgetLeavesNothing of ended transactions, also in the due index; it removes entries
// without a transaction there, a page a call.
func TestForgetLeavesNothing(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	client := dial(t, server.Addr())
	var count counter
	j := NewJournal(dial(t, server.Addr(), count.on), "p/")
	now := time.Now().Truncate(time.Second)
	const all = 3 * maxAppends
	for i, due := range []time.Time{now, now.Add(time.Hour), now.Add(2 * time.Hour), {}} {
		for from := 0; from < all; from += maxAppends {
			var group []driver.Append
			for n := from; n < from+maxAppends; n++ {
				a := driver.Append{Transaction: fmt.Sprint("t", n), After: int64(i), Records: []driver.Record{{Kind: "x"}}, Due: due}
				if i > 0 {
					a.Was = now.Add(time.Duration(i-1) * time.Hour)
				}
				group = append(group, a)
			}
			testbed.OK(t, errors.Join(j.Append(bounded(t), group)...))
		}
	}
	keys := func(prefix string) int64 {
		t.Helper()
		reply, err := client.Get(bounded(t), "p/interlock.journal:"+prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		testbed.OK(t, err)
		return reply.Count
	}
	if n := keys("due/"); n != 0 {
		t.Errorf("ended transactions left %d entries of the due index", n)
	}
	var left []clientv3.Op
	for n := range 2 * duePage {
		h := driver.Head{Transaction: fmt.Sprint("gone", n), Shard: n % 3, Due: now.Add(time.Duration(n) * time.Hour)}
		left = append(left, clientv3.OpPut(j.dueKey(h), ""))
	}
	_, err := client.Txn(bounded(t)).Then(left...).Commit()
	testbed.OK(t, err)
	before := count.n.Load()
	if n, err := j.Forget(bounded(t), now.Add(-time.Hour), 10); n != 0 || err != nil {
		t.Fatalf("%d forgotten, %v", n, err)
	}
	if got := count.n.Load() - before; got > 7 {
		t.Errorf("%d requests to forget nothing", got)
	}
	for range 4 {
		_, err := j.Forget(bounded(t), now.Add(time.Hour), all)
		testbed.OK(t, err)
	}
	if n := keys(""); n != 0 {
		t.Errorf("%d keys are left", n)
	}
}

// TestForgetLooksAtAPageOfPayloads: the cost of finding payloads without a transaction
// does not depend on the number of payloads; the next call continues.
func TestForgetLooksAtAPageOfPayloads(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	client := dial(t, server.Addr())
	var count counter
	j := NewJournal(dial(t, server.Addr(), count.on), "payloads/")
	due := time.Now().Truncate(time.Second)
	testbed.OK(t, j.Append(bounded(t), []driver.Append{{Transaction: "t", Records: []driver.Record{{Kind: "x"}}, Due: due}})[0])
	for i := 0; i <= payloadPages*payloadPage; {
		var ops []clientv3.Op
		for range 100 {
			ops = append(ops, clientv3.OpPut(j.payloadKey("t", fmt.Append(nil, i)), "1\npayload"))
			i++
		}
		_, err := client.Txn(bounded(t)).Then(ops...).Commit()
		testbed.OK(t, err)
	}
	testbed.OK(t, j.PutPayload(bounded(t), "z", []byte("sum"), []byte("payload")))
	for _, kept := range []bool{true, false} {
		before := count.n.Load()
		_, err := j.Forget(bounded(t), time.Now().Add(time.Hour), 10)
		testbed.OK(t, err)
		if n := count.n.Load() - before; n > 2*payloadPages+10 {
			t.Errorf("%d requests", n)
		}
		if p, err := j.Payload(bounded(t), "z", []byte("sum")); err != nil || (p != nil) != kept {
			t.Errorf("the payload of nothing is %q, %v; want it kept: %v", p, err, kept)
		}
	}
}

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
