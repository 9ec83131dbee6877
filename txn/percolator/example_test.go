package percolator_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/txn/percolator"
	"github.com/interlock-dev/interlock/txn/timestamp"
)

func Example() {
	ctx := context.Background()
	eu, us := memory.NewKeyValues(), memory.NewKeyValues() // of any driver
	oracle, err := timestamp.NewOracle(eu, "oracle", nil)
	if err != nil {
		panic(err)
	}
	db, err := percolator.Open(ctx, oracle, percolator.Stores{"eu/": eu, "us/": us}, nil)
	if err != nil {
		panic(err)
	}
	defer db.Close(ctx)

	err = db.Update(ctx, func(tx *percolator.Tx) error {
		return errors.Join(tx.Put("eu/alice", []byte("70")), tx.Put("us/bob", []byte("30")))
	})
	fmt.Println("moved:", err)
	err = db.View(ctx, func(tx *percolator.Tx) error {
		pairs, err := tx.Scan(ctx, "", "", 10)
		for _, p := range pairs {
			fmt.Printf("%s has %s\n", p.Key, p.Value)
		}
		return err
	})
	fmt.Println(err)
	// Output:
	// moved: <nil>
	// eu/alice has 70
	// us/bob has 30
	// <nil>
}
