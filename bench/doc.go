// Package bench compares Interlock with other libraries that do the same work, in one run
// and on the same servers. It proves no promises: its checkers detect faults during the
// measurement, and the tests of the packages prove the rest.
//
// The benchmarks are tests, because they need real servers: `make bench`. README.md
// describes their comparisons. Package compare is the part that is independent of servers.
package bench
