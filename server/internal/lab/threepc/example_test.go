package threepc_test

import (
	"fmt"

	"github.com/interlock-dev/interlock/server/internal/lab/threepc"
)

// ExampleExplore visits every schedule with at most one partition, and prints the
// shortest one in which a transaction ends both ways.
func ExampleExplore() {
	for _, p := range threepc.Protocols {
		x, err := threepc.Explore(threepc.Model{Protocol: p, Participants: 2, Partition: true})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%v: splits %v, blocks %v\n", p, x.Split != nil, x.Blocked != nil)
		for _, line := range x.Split {
			fmt.Println("  " + line)
		}
	}
	// Output:
	// 2PC: splits false, blocks true
	// 3PC: splits true, blocks false
	//   C begins, sends prepare to P1, P2
	//   P1 receives prepare from C, is prepared, sends yes to C
	//   P2 receives prepare from C, is prepared, sends yes to C
	//   C receives yes from P1
	//   C receives yes from P2, is pre-committed, sends pre-commit to P1, P2
	//   P1 receives pre-commit from C, is pre-committed, sends ack to C
	//   C receives ack from P1
	//   the network falls apart: C, P1 | P2
	//   C hears nothing from P2, is committed, sends commit to P1, P2
	//   P2 hears nothing from C, sends ask to P1
	//   P2 hears nothing from P1, is aborted, sends abort to P1
	// 2PC + register: splits false, blocks true
}

// The coordinator has all votes, and crashes before it sends the decision.
func ExampleSimulate() {
	for _, p := range threepc.Protocols {
		run, err := threepc.Simulate(threepc.Scenario{Protocol: p, Participants: 3, Steady: true,
			Crashes: []threepc.Crash{{Site: threepc.Coordinator, Action: 7}}})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%v: waiting %v, P1 is %s\n", p, run.Blocked(), run.Fates[1].Phase)
	}
	// Output:
	// 2PC: waiting [P1 P2 P3], P1 is prepared
	// 3PC: waiting [], P1 is aborted
	// 2PC + register: waiting [], P1 is aborted
}

// ExampleCompare runs the comparison of docs/explanation/three-phase.md.
func ExampleCompare() {
	report, err := threepc.Compare(&threepc.Options{Runs: 10})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, c := range report.Costs[:3] {
		fmt.Printf("%v, %d participants: %d messages\n", c.Protocol, c.Participants, c.Messages)
	}
	// Output:
	// 2PC, 1 participants: 4 messages
	// 2PC, 2 participants: 8 messages
	// 2PC, 3 participants: 12 messages
}
