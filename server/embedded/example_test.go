package embedded_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver/etcd"
	"github.com/interlock-dev/interlock/server/embedded"
)

func ExampleStart() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "embedded-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	node, err := embedded.Start(ctx, embedded.Options{DataDir: dir, Listen: "127.0.0.1:0"})
	if err != nil {
		log.Fatal(err)
	}
	defer node.Close()

	d, err := etcd.Open(ctx, node.Client(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close(ctx)
	locks, err := lock.NewFenced(d, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(ctx)
	err = locks.Do(ctx, "nightly", func(_ context.Context, c interlock.Claim) error {
		fmt.Printf("%s is held, with a token: %v\n", c.Name(), c.Token() > 0)
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: nightly is held, with a token: true
}
