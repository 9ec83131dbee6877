// Package failover kills and stops coordinators of transactions, as processes on real
// servers. It does not test every crash point, as the packages of the protocols do.
// Instead, several processes work at once, for longer.
//
// It contains only tests; INTERLOCK_KILLS sets the number of killed processes.
package failover
