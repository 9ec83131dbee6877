package memory_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/guard/fence"
)

// Two drivers on one Space act as two processes. The lock is taken away from A, which has
// not noticed yet and writes after B; the store's guard rejects that write.
func ExampleSpace() {
	ctx := context.Background()
	space := memory.NewSpace()
	store := fence.NewStore(space.Fence())
	write := func(c interlock.Claim, text string) error {
		return store.Enter(ctx, c, "report", driver.Write{Key: "report", Value: []byte(text)})
	}
	acquire := func() (c *lock.Claim, end func()) {
		d := space.Open(nil)
		locks, err := lock.NewFenced(d, nil)
		if err != nil {
			log.Fatal(err)
		}
		c, err = locks.Acquire(ctx, "report")
		if err != nil {
			log.Fatal(err)
		}
		return c, func() { c.Release(ctx); locks.Close(ctx); d.Close(ctx) }
	}

	a, end := acquire()
	defer end()
	space.Revoke("report")
	b, end := acquire()
	defer end()

	fmt.Println("B:", write(b, "written by B"))
	fmt.Println("A believes that it holds the lock:", a.Valid())
	fmt.Println("A is stale:", errors.Is(write(a, "written by A"), interlock.ErrStaleToken))
	text, _ := space.Fence().Get("report")
	fmt.Printf("%s\n", text)
	// Output:
	// B: <nil>
	// A believes that it holds the lock: true
	// A is stale: true
	// written by B
}

// The store alone, with hand-made tokens: a stale holder, and the remedy for a mark
// that is too high.
func ExampleFence() {
	ctx := context.Background()
	store := memory.NewSpace().Fence()
	older, newer := interlock.Token(1<<12), interlock.Token(2<<12)
	enter := func(t interlock.Token, text string) error {
		raise := driver.Raise{Resource: "report", Token: t, Source: "worker"}
		return store.Enter(ctx, raise, driver.Write{Key: "report", Value: []byte(text)})
	}

	fmt.Println(enter(newer, "newer"))
	fmt.Println(enter(older, "older"))
	replaced, err := store.Rebase(ctx, "report", older, "drill", "operator")
	fmt.Println("rebased from", replaced.Token, err)
	fmt.Println(enter(older, "older"))
	for _, r := range store.Rebases("report") {
		fmt.Printf("%s by %s: %d to %d\n", r.Reason, r.By, r.From, r.To)
	}
	// Output:
	// <nil>
	// memory: enter "report": stale token for "report": got 4096, but 8192 has entered
	// rebased from 8192 <nil>
	// <nil>
	// drill by operator: 8192 to 4096
}

// Values alone, with hand-made tokens: that of a stale holder is rejected.
func ExampleValues() {
	ctx := context.Background()
	values := memory.NewSpace().Values()
	older, newer := interlock.Token(1<<12), interlock.Token(2<<12)
	put := func(t interlock.Token, text string) error {
		return values.Put(ctx, "limits", driver.Value{Data: []byte(text), Token: t, Source: "worker"})
	}

	fmt.Println(put(newer, "100 per second"))
	fmt.Println(put(older, "5 per second"))
	v, err := values.Get(ctx, "limits")
	fmt.Printf("%s by %s, %v\n", v.Data, v.Source, err)
	// Output:
	// <nil>
	// memory: put value "limits": stale token for "limits": got 4096, but 8192 has entered
	// 100 per second by worker, <nil>
}

// An operator finds the dead holder of a lock, and breaks it.
func ExampleDriver_Break() {
	ctx := context.Background()
	space := memory.NewSpace()
	gone, operator := space.Open(nil), space.Open(nil)
	if _, err := gone.Acquire(ctx, driver.Request{Name: "report", Owner: "worker-7/1"}); err != nil {
		log.Fatal(err)
	}
	gone.Close(ctx) // like a crash of its machine

	state, err := operator.Lock(ctx, "report")
	if err != nil {
		log.Fatal(err)
	}
	b := driver.Break{Name: "report", Owner: state.Holder.Owner, Reason: "its machine burnt down", By: "ann"}
	_, ok, err := operator.Break(ctx, b)
	fmt.Println("broken:", ok, err)
	_, ok, err = operator.Break(ctx, b)
	fmt.Println("once more:", ok, err)
	records, err := operator.Breaks(ctx, "", 10)
	if err != nil {
		log.Fatal(err)
	}
	for _, r := range records {
		fmt.Printf("%s, held by %s, broken by %s: %s\n", r.Name, r.Owner, r.By, r.Reason)
	}
	operator.Close(ctx)
	// Output:
	// broken: true <nil>
	// once more: false <nil>
	// report, held by worker-7/1, broken by ann: its machine burnt down
}

// A lock that only saves work. It has no token, so no guard accepts its claims.
func ExamplePlain() {
	ctx := context.Background()
	d := memory.NewSpace().OpenPlain(nil)
	defer d.Close(ctx)
	locks, err := lock.NewAdvisory(d, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(ctx)

	err = locks.Do(ctx, "warm the cache", func(ctx context.Context, _ *lock.AdvisoryClaim) error {
		_, err := locks.TryAcquire(context.Background(), "warm the cache") // a second caller
		fmt.Println("somebody is at it:", errors.Is(err, interlock.ErrHeld))
		return nil
	})
	fmt.Println(err)
	// Output:
	// somebody is at it: true
	// <nil>
}

// After a failure, later messages of its topic and key are not accepted.
func ExampleSink() {
	var sink memory.Sink
	sink.Refuse(func(m driver.Message) error {
		if m.ID == "2" {
			return errors.New("not now")
		}
		return nil
	})
	answers := sink.Publish(context.Background(), []driver.Message{
		{ID: "1", Topic: "t", Key: "a"}, {ID: "2", Topic: "t", Key: "a"}, {ID: "3", Topic: "t", Key: "a"}, {ID: "4", Topic: "t", Key: "b"}})
	fmt.Println(answers[1], "and", errors.Is(answers[2], driver.ErrNotSent))
	for _, m := range sink.Messages() {
		fmt.Println(m.ID)
	}
	// Output:
	// not now and true
	// 1
	// 4
}

func ExampleNotifier() {
	var notifier memory.Notifier
	stop := notifier.Listen(func(string) { fmt.Println("something was committed") })
	notifier.Notify()
	stop()
	notifier.Notify()
	// Output: something was committed
}

// The answers of a driver. Users write against guard/stock.
func ExampleStock() {
	ctx, stock := context.Background(), memory.NewStock()
	_, _ = stock.Supply(ctx, "seat/12A", 1)
	for _, buyer := range []string{"alice", "bob"} {
		a, err := stock.Hold(ctx, driver.StockHold{Item: "seat/12A", Reservation: buyer, N: 1, TTL: time.Minute})
		fmt.Println(buyer, a.Outcome == driver.StockDone, err)
	}
	// Output:
	// alice true <nil>
	// bob false <nil>
}
