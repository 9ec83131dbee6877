package journal_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/txn/journal"
)

// A transaction is begun once, and read by a process that begins it again.
func Example() {
	ctx := context.Background()
	j, err := journal.New(memory.NewJournal(), nil)
	if err != nil {
		panic(err)
	}
	defer j.Close()
	due := time.Now().Add(time.Minute)
	log, err := j.Begin(ctx, "order/42", "order", due, journal.Entry{Kind: "begin", Data: []byte("seat 12A")})
	if err != nil {
		panic(err)
	}
	if err := log.Append(ctx, due, journal.Entry{Kind: "sent", Step: "charge"}); err != nil {
		panic(err)
	}

	_, err = j.Begin(ctx, "order/42", "order", due, journal.Entry{Kind: "begin"})
	fmt.Println(errors.Is(err, journal.ErrExists))
	_, entries, err := j.Open(ctx, "order/42")
	for _, e := range entries {
		fmt.Printf("%d %s: %s%s\n", e.Position, e.Kind, e.Step, e.Data)
	}
	fmt.Println(err)
	// Output:
	// true
	// 1 begin: seat 12A
	// 2 sent: charge
	// <nil>
}

// Only the owner of a shard can claim its due transactions.
func ExampleJournal_Own() {
	ctx := context.Background()
	j, err := journal.New(memory.NewJournal(), &journal.Options{Shards: 1})
	if err != nil {
		panic(err)
	}
	defer j.Close()
	now := time.Now()
	if _, err := j.Begin(ctx, "order/42", "order", now, journal.Entry{Kind: "begin"}); err != nil {
		panic(err)
	}
	shard, err := j.Own(ctx, grant(1), 0) // the claim of a lock, or of claim/partition
	if err != nil {
		panic(err)
	}
	heads, err := shard.Claim(ctx, now, now.Add(time.Minute), 100)
	for _, h := range heads {
		log, entries, err := shard.Open(ctx, h.Transaction)
		if err != nil {
			panic(err)
		}
		fmt.Println(h.Transaction, "begins at", entries[0].Kind)
		if err := log.End(ctx, journal.Entry{Kind: "end"}); err != nil {
			panic(err)
		}
	}
	fmt.Println(err)
	// Output:
	// order/42 begins at begin
	// <nil>
}
