// Package rehearsal runs users' transactions in their tests, for the kits sagatest and tcctest. It
// injects faults into calls, crashes coordinators at each point, runs in virtual time, and compares the
// world as lines of text. It does not judge results, and does not know sagas or TCC: a kit defines the
// scenarios and the findings.
package rehearsal
