// Package failover kills and stops coordinators of transactions, as processes on real
// servers. It does not look for every point at which one can die, which the packages of
// the protocols do: it has several of them at work at once, for longer.
//
// It has nothing but tests; INTERLOCK_KILLS sets how many processes are killed.
package failover
