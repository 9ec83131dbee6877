// Package kube keeps each lock in a Lease object of Kubernetes. It follows the protocol of
// client-go's leaderelection, so that both exclude each other.
//
// A process that is stopped for longer than its lease can still write when it continues: only
// a guard that compares tokens rejects that, see package guard/fence. The package suits
// elections and jobs, with a few hundred locks at most. Every held lock costs the API server a
// write every third of a TTL, and every process receives all of them.
//
//	config, err := rest.InClusterConfig()
//	d, err := kube.Open(ctx, config, &kube.Options{Namespace: "jobs"})
//	locks, err := lock.NewFenced(d, nil)
//	err = locks.Do(ctx, "nightly-report", func(ctx context.Context, c interlock.Claim) error {
//		return nil // hand c to a guard
//	})
//
// The process needs the rights to get, list, watch, create and update Leases in the namespace.
// To remove unused Leases, it needs the right to delete. With the right to get ConfigMaps and
// Endpoints it also finds locks of the kinds that client-go used before Leases.
//
// # Guarantees
//
// Claims exclude each other through crashes of the API server and of etcd, a
// partition, and steps of any wall clock. Every write requires that the Lease is
// unchanged. A holder gives up before its lease can end for an observer, if their
// clocks run equally fast to one part in a hundred. Two holders can believe in
// their claims after an operator deleted the Lease, changed its holder, or broke
// the lock; the former holder notices within Guarantees.Blind, and mostly at once.
//
// # Token
//
// The counter is the base, an annotation of the Lease, plus a resource version: the
// first that the driver reads while the Lease names the owner. The owner is unique
// to the attempt, and the token stays the same for the term. Resource versions rise
// with every write to the cluster and are documented to be comparable from
// Kubernetes 1.35 on; [Open] refuses older servers.
//
// The update that takes the Lease sets and raises the base. So the counter is at least the
// microseconds since 2020 at the time when the driver connected. If a Lease was deleted, or
// its annotation removed, the present clock gives a base above all that was issued for it
// before. This requires that the clocks of the processes differ by less than the time between
// the last grant before and the first grant after.
//
// A process whose clock is more than 12 hours ahead of the API server's is refused, and raises
// no base. A base more than a day ahead of that clock is refused too: by Open, if it exists
// then, and by Acquire. Options.Seed repairs such a base, and records that. The server's clock
// is the Date of its answers. A base for all names, which a migration, a repair or a sweep sets,
// is kept in the Lease interlock.base.
//
// [OpenAdvisory] works with every Kubernetes that has Leases, and has no tokens: each write
// requires the observed revision, which needs no order of revisions.
//
// # Liveness
//
// Others observe the lease: they take the lock when its record has not changed for
// leaseDurationSeconds by their own clock, which counts suspended time. A holder writes its
// record every third of the TTL, and after a failure every tenth, at most a second apart; its
// deadline counts from just before the last successful renewal was sent.
//
// leaseDurationSeconds has whole seconds. Client-go compares only the seconds of
// renewTime. So ours is always in a later second than before, if need be ahead of the
// clock, and the shortest TTL is 3 s. Old versions of client-go wait for their own
// duration instead of the one in the Lease: use the same for such peers.
//
// # Waiting
//
// The first to write a free Lease gets it; Kubernetes has no queue. One watch over
// the namespace reports releases to every process, and each waiter tries once. Without an event
// of the Lease for half a TTL (10 s at most), a waiter reads it, and reopens a silent watch. A
// crashed holder is replaced when its lease ends for the first observer.
//
// # Interoperation
//
// A name that is a valid object name is that of the Lease, after Options.Prefix; any
// other is escaped, beginning with "esc-", to at most 253 bytes. Client-go peers that
// use the same Lease exclude us and are excluded. They keep our annotations, and have
// no token. A Lease assigned by coordinated leader election, one with a strategy, is
// refused.
//
// A name is also refused if a ConfigMap or Endpoints has a lock of such an older kind, or a
// MultiLock. The error is a [*LegacyLockError] that explains how to migrate. That is checked
// once for each name and process, if the process may read them.
//
// A released Lease stays for ten minutes. Then each process removes, once a minute, at most a
// thousand of those that it has seen unchanged and without a holder for that time. A Lease
// stays if no driver of this package ever held it, or if it has labels, owners, finalizers,
// annotations of others or records of forced releases. Do not delete a held Lease, or
// interlock.base.
//
// # Escape hatch
//
// [Driver.Object] returns the Lease of a lock, for kubectl and other clients, and
// [TokenOf] reads the token of its holder. The caller of Open still owns the
// config.
package kube
