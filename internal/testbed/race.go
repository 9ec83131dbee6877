//go:build race

package testbed

// Race reports whether the race detector is on: it slows down the computation of one goroutine
// about tenfold.
const Race = true
