package kube_test

import (
	"context"
	"log"

	"k8s.io/client-go/rest"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver/kube"
)

// A job that one pod runs at a time. The Lease is released after the function has
// returned, so that the next pod never works at the same time.
func Example() {
	ctx := context.Background()
	config, err := rest.InClusterConfig()
	if err != nil {
		log.Fatal(err)
	}
	d, err := kube.Open(ctx, config, &kube.Options{Namespace: "jobs"})
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close(ctx)
	locks, err := lock.NewFenced(d, nil)
	if err != nil {
		log.Fatal(err)
	}
	err = locks.Do(ctx, "nightly-report", func(ctx context.Context, c interlock.Claim) error {
		log.Printf("on my own, with token %v", c.Token())
		return nil // hand c to a guard before the first read
	})
	if err != nil {
		log.Fatal(err)
	}
	// no Output: it needs a cluster
}
