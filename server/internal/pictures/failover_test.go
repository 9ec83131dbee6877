package pictures

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/picture"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
	"github.com/interlock-dev/interlock/txn"
	"github.com/interlock-dev/interlock/txn/saga"
)

// The lanes of the failover.
const (
	nodeA = iota
	log
	nodeB
	payee
)

// node is a coordinator of the failover. The film records its epochs and reads.
type node struct {
	recorder
	locks *memory.Driver
	order saga.Definition[string]
	*saga.Engine

	mu    sync.Mutex
	pause func()        // called once, before the append of a result; nil for no pause
	awake chan struct{} // closed while the process runs
	ended chan struct{} // closed after the append of the end
}

func (n *node) Enter(ctx context.Context, shard int, epoch interlock.Token) error {
	n.add(picture.Cell{Lane: n.lane, To: n.store, Text: fmt.Sprintf("acquired the lease of the shard: enter epoch %d", n.epoch(epoch))})
	return n.Journal.Enter(ctx, shard, epoch)
}

func (n *node) Read(ctx context.Context, transaction string, after int64) (driver.Head, []driver.Record, error) {
	n.mu.Lock()
	awake := n.awake
	n.mu.Unlock()
	<-awake
	head, records, err := n.Journal.Read(ctx, transaction, after)
	if len(records) > 0 {
		n.add(picture.Cell{Lane: n.store, To: n.lane, Text: "read " + transaction + ": " + kinds(records), Tone: picture.Dim})
	}
	return head, records, err
}

// Append pauses the process when the request has passed its checks. Then only the journal
// can reject it.
func (n *node) Append(ctx context.Context, appends []driver.Append) []error {
	written := kinds(appends[0].Records)
	n.mu.Lock()
	stops := n.pause != nil && strings.Contains(written, "done")
	if stops {
		n.awake = make(chan struct{})
	}
	n.mu.Unlock()
	if stops {
		n.pause()
		defer close(n.awake) // after this append, so that the picture has one order
		ctx = context.WithoutCancel(ctx)
	}
	errs := n.recorder.Append(ctx, appends)
	if errs[0] == nil && strings.Contains(written, "end") {
		close(n.ended)
	}
	return errs
}

// open starts a coordinator whose step charges the bank under the call's key.
func (n *node) open(t *testing.T, charged map[string]bool) {
	n.order = saga.Define("order", saga.Step("charge", func(ctx context.Context, _ string) (string, error) {
		key := saga.From(ctx).Key()
		n.add(picture.Cell{Lane: n.lane, To: payee, Text: "call charge, key " + key})
		time.Sleep(100 * time.Millisecond)
		answer := picture.Cell{Lane: payee, To: n.lane, Text: "charges, and stores the answer under the key", Tone: picture.Good}
		if charged[key] {
			answer.Text = "returns the stored answer; no second charge"
		}
		charged[key] = true
		n.add(answer)
		return "", nil
	}).Pivot())
	rt, err := txn.New(t.Context(), n, n.locks, nil, &txn.Options{Shards: 1})
	testbed.OK(t, err)
	t.Cleanup(func() { _ = rt.Close(context.Background()) }) // the locks of the paused one are closed
	if n.Engine, err = saga.New(rt.Coordinator(), nil, n.order); err == nil {
		err = rt.Start(t.Context())
	}
	testbed.OK(t, err)
	synctest.Wait()
}

// TestFailover draws a coordinator that is paused for longer than its lease during an append,
// and its successor.
func TestFailover(t *testing.T) {
	f := &film{}
	virtual.Test(t, func(t *testing.T) {
		f.began = time.Now()
		awake := make(chan struct{})
		close(awake)
		space, journal, charged := memory.NewSpace(), memory.NewJournal(), map[string]bool{}
		join := func(lane int) *node {
			return &node{recorder: recorder{Journal: journal, film: f, lane: lane, store: log, epochs: true},
				locks: space.Open(&memory.Options{TTL: 5 * time.Second}), ended: make(chan struct{}), awake: awake}
		}
		a, b := join(nodeA), join(nodeB)
		a.pause = func() {
			_ = a.locks.Close(t.Context()) // a paused process does not renew
			f.add(picture.Cell{Lane: nodeA, To: nodeA, Text: "is paused for longer than its lease of 5 s", Tone: picture.Bad})
			f.pause(nodeA)
			<-b.ended
			time.Sleep(time.Second)
			f.pause()
			f.add(picture.Cell{Lane: nodeA, To: nodeA, Text: "resumes", Tone: picture.Bad})
		}
		a.open(t, charged)
		b.open(t, charged)
		outcome, err := a.order.Do(t.Context(), a.Engine, "order-3", "lamp")
		if outcome.State != saga.Succeeded || len(charged) != 1 {
			t.Errorf("it ended as %v, %v, with %d charges", outcome.State, err, len(charged))
		}
		synctest.Wait() // the owner of the shard at A also reads the transaction
		f.add(picture.Cell{Lane: nodeA, To: nodeA, Text: "answer: " + string(outcome.State)})
	})
	compare(t, "failover", picture.Sequence{Title: "A coordinator is paused, and another one takes over its shard",
		Lanes: []string{"coordinator A", "journal", "coordinator B", "bank"}, Rows: f.rows}.SVG())
}
