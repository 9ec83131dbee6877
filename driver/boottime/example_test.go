package boottime_test

import (
	"fmt"
	"time"

	"github.com/interlock-dev/interlock/driver/boottime"
)

// A driver counts from when its request left, and stops a hundredth early.
func ExampleLease() {
	const ttl = 10 * time.Second
	sent := boottime.Sent() // just before the request leaves
	lease := boottime.NewLease(sent, ttl)
	fmt.Println("remains of it:", lease.RemainingAt(sent))

	again := boottime.Sent()
	fmt.Println("renewed:", lease.Renew(again, ttl))

	lease.End() // the backend names another holder
	fmt.Println("has ended:", lease.Remaining() <= 0)
	fmt.Println("revived by a late answer:", lease.Renew(again, ttl))
	// Output:
	// remains of it: 9.9s
	// renewed: true
	// has ended: true
	// revived by a late answer: false
}

// An answer that took longer than the lease lasts grants nothing.
func ExampleNewLease() {
	const ttl = 10 * time.Second
	sent := boottime.Now().Add(-11 * time.Second)
	lease := boottime.NewLease(sent, ttl) // now that the answer has come
	fmt.Println("has ended:", lease.Remaining() <= 0)
	// Output: has ended: true
}

func ExampleDeadline() {
	sent := boottime.Now()
	fmt.Println(boottime.Deadline(sent, time.Minute).Sub(sent))
	// Output: 59.4s
}
