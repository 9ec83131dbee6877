package etcd

import (
	"context"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/saga"
)

// lasting is a claim on all shards that lasts until its context ends.
type lasting struct {
	interlock.Claim
	token interlock.Token
	ctx   context.Context
}

func (l lasting) Name() string             { return "coordinator" }
func (l lasting) Owner() string            { return "test" }
func (l lasting) Token() interlock.Token   { return l.token }
func (l lasting) Context() context.Context { return l.ctx }
func (l lasting) Valid() bool              { return l.ctx.Err() == nil }
func (l lasting) Remaining() time.Duration { return time.Minute }

// TestCoordinatorStartsOnWhatIsLeft: the number of requests from a coordinator's start to
// the end of a saga does not depend on how many transactions have ended before. Due times
// without a transaction, which earlier versions left by the thousand, cost three requests
// for each page of them, once, and cause no failure.
func TestCoordinatorStartsOnWhatIsLeft(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	const shards, most, seldom = 2, 200, 5 * time.Second
	epoch := int64(0)
	// start returns the cost of a coordinator that starts, drives a saga and stops. A
	// polling one polls until no due time is left.
	start := func(poll time.Duration) int64 {
		t.Helper()
		epoch++
		var count counter
		j, err := journal.New(NewJournal(dial(t, server.Addr(), count.on), "s/"), &journal.Options{Shards: shards})
		testbed.OK(t, err)
		defer j.Close()
		c, err := coordinator.New(j, &coordinator.Options{
			Poll: poll, Retention: coordinator.Retention{Every: 1000 * time.Hour},
			Hooks: &observe.Coordinator{Failed: func(e observe.CoordinatorFailed) { t.Errorf("failed: %+v", e) }},
		})
		testbed.OK(t, err)
		d := saga.Define("short", saga.Step("step", func(context.Context, string) (string, error) { return "", nil }).Uncompensable())
		e, err := saga.New(c, nil, d)
		testbed.OK(t, err)
		ctx, stop := context.WithCancel(t.Context())
		served := make(chan error, 1)
		claim := lasting{token: tok(t, interlock.CounterAt(time.Now())+epoch, 0), ctx: ctx}
		go func() { served <- c.Run(ctx, claim) }()
		if o, err := d.Do(bounded(t), e, fmt.Sprint("saga", epoch), ""); err != nil || o.State != saga.Succeeded {
			t.Errorf("%+v, %v", o, err)
		}
		client := dial(t, server.Addr())
		testbed.Eventually(t, "no due time is left", time.Minute, func() bool {
			n, err := client.Get(bounded(t), "s/interlock.journal:due/", clientv3.WithPrefix(), clientv3.WithCountOnly())
			testbed.OK(t, err)
			return poll >= seldom || n.Count == 0
		})
		stop()
		<-served
		return count.n.Load()
	}
	alone := start(seldom)
	if alone > most {
		t.Errorf("%d requests on an empty journal", alone)
	}

	j := NewJournal(dial(t, server.Addr()), "s/")
	const ended = 5 * maxAppends
	due := time.Now().Truncate(time.Millisecond)
	for from := 0; from < ended; from += maxAppends {
		for position := range int64(2) {
			var group []driver.Append
			for i := range maxAppends {
				a := driver.Append{Transaction: fmt.Sprint("ended", from+i), Shard: i % shards, Type: "saga:short", After: position, Records: []driver.Record{{Kind: "x"}}}
				if position == 0 {
					a.Due = due
				} else {
					a.Was = due
				}
				group = append(group, a)
			}
			for _, err := range j.Append(bounded(t), group) {
				testbed.OK(t, err)
			}
		}
	}
	if n := start(seldom); n > alone+most/10 {
		t.Errorf("%d requests after %d transactions, %d before", n, ended, alone)
	}

	const left = 2000
	client := dial(t, server.Addr())
	for i := 0; i < left; {
		var ops []clientv3.Op
		for ; len(ops) < 100; i++ {
			h := driver.Head{Transaction: fmt.Sprint("gone", i), Shard: i % shards, Due: time.Now().Add(-time.Duration(i) * time.Second).Truncate(time.Millisecond)}
			ops = append(ops, clientv3.OpPut(j.dueKey(h), ""))
		}
		_, err := client.Txn(bounded(t)).Then(ops...).Commit()
		testbed.OK(t, err)
	}
	if n := start(seldom); n > alone+5*left/duePage+most/10 {
		t.Errorf("%d requests on %d left due times, %d without", n, left, alone)
	}
	start(10 * time.Millisecond)
	if n := start(seldom); n > alone+most/10 {
		t.Errorf("%d requests at the next start, %d on an empty journal", n, alone)
	}
}
