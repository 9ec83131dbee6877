package testbed

import "testing"

// Brief reports whether tests of machines with one goroutine skip large worlds: under
// -short, and with the race detector, which makes them ten times slower.
func Brief() bool { return Race || testing.Short() }
