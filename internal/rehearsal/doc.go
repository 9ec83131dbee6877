// Package rehearsal is what the kits have in common that play users' transactions in
// their tests: a coordinator that can crash at each point that it passes, virtual time,
// a world that is looked at as lines of text. It knows nothing of sagas or TCC, and
// judges nothing.
package rehearsal
