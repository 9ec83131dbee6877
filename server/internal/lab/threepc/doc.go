// Package threepc compares two-phase commit, three-phase commit and two-phase commit
// with a decision register, in a simulated world. It commits no real transactions: it
// explains the design of package twopc. Its results do not make three-phase commit safe
// on a real network.
//
//	fmt.Println(threepc.Compare()) // what each costs, which block or split, and how
//
// Two-phase commit (Gray 1978; Lampson and Sturgis 1976) never lets two sites decide
// differently, but sites that voted yes wait for a crashed coordinator. Three-phase
// commit (Skeen 1981) adds a phase in which all sites learn that all voted yes. The
// remaining sites can then decide, as long as a site that does not answer in time has
// crashed. A partition breaks that, and both decisions occur. To avoid both faults, a
// majority stores the decision as a record (Gray and Lamport 2006): twopc does that
// with its journal on etcd.
//
// The protocols are pure functions from a site and an event to the next state of the
// site and its messages. [Simulate] adds time, delays, losses, crashes and partitions
// from a seed; [Explore] visits every schedule of a small model. Both use the same
// functions.
package threepc
