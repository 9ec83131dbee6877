//go:build race

package testbed

// Race reports whether the race detector is on: it slows down what one goroutine computes
// about tenfold.
const Race = true
