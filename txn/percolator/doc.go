// Package percolator runs snapshot-isolated transactions over keys of stores that have no
// more than a compare-and-set of one key. It does not make a store more durable than it
// is, and it is not faster than the transactions of one database.
//
// So far it has the steps on one record; DESIGN.md says how they make a transaction.
//
// The algorithm is that of Peng and Dabek, "Large-scale incremental processing using
// distributed transactions and notifications" (2010), with the corrections that TiKV and
// TiDB made to it since.
package percolator
