// Package threepc compares two-phase commit, three-phase commit and two-phase commit
// with a decision register, in a simulated world. It commits no real transactions: it
// explains the design of package twopc.
//
//	fmt.Println(threepc.Compare()) // what each costs, which block or split, and how
//
// Two-phase commit (Gray 1978; Lampson and Sturgis 1976) can block, and three-phase
// commit (Skeen 1981) decides both ways under a partition. To avoid both faults, a
// majority stores the decision as a record (Gray and Lamport 2006): twopc does that
// with its journal on etcd.
//
// The protocols are pure functions from a site and an event to the next state of the
// site and its messages. [Simulate] adds time, delays, losses, crashes and partitions
// from a seed; [Explore] visits every schedule of a small model. Both use the same
// functions.
package threepc
