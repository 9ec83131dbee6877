// Package threepc plays two-phase commit, three-phase commit and two-phase commit with
// a decision register against each other, in a world that it makes up. It commits
// nothing of anybody's: it is there to show why package twopc is as it is. Nothing of
// what it finds about three-phase commit makes that safe on a network of yours.
//
//	report, err := threepc.Compare(nil)
//	if err != nil {
//		return err
//	}
//	fmt.Println(report) // what each costs, who blocks, who splits, and how
//
// Two-phase commit (Gray 1978; Lampson and Sturgis 1976) never lets two sites decide
// otherwise, and lets those who voted yes wait for a coordinator that is gone.
// Three-phase commit (Skeen 1981) adds a phase in which everybody learns that everybody
// has voted yes, so that those who are left can decide, as long as a site that does not
// answer in time has crashed. A partition breaks that, and then it decides both ways.
// Who wants neither lets the decision be a record that a majority keeps (Gray and
// Lamport 2006): that is what twopc does with its journal on etcd.
//
// The protocols are pure functions from a site, and what happens to it, to the site
// afterwards and the messages it sends. [Simulate] gives them time, delays, losses,
// crashes and partitions from a seed; [Explore] goes through every schedule of a small
// model. Both use the same functions.
package threepc
