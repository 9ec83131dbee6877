// Package bench measures Interlock beside other libraries that do the same work, in one
// run and on the same servers. It proves no promise: its checkers notice what goes wrong
// while it measures, and the tests of the packages prove the rest.
//
// The benchmarks are tests, because they need real servers: `make bench`. README.md says
// what each of them compares. Package compare is the part that knows no server.
package bench
