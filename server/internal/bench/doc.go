// Package bench measures Interlock against the store it works on, in one run: ratios
// hold on another machine, absolute figures are hints. It measures on one machine
// without a network between, and nothing of a store that is replicated.
//
// It has nothing but tests: `make bench-sagas`.
package bench
