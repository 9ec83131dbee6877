package testbed

import "testing"

// Brief reports whether tests of machines with one goroutine leave out large worlds: with
// the race detector, which slows them down tenfold, and under -short.
func Brief() bool { return Race || testing.Short() }
