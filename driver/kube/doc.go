// Package kube keeps locks in Kubernetes, each in a Lease object of its own, by the
// protocol of client-go's leaderelection, so that both exclude each other.
//
// It does not make a lock safe by itself: a process that is stopped for longer
// than its lease wakes up believing that it holds. Only a guard that compares
// tokens refuses its writes, see package guard/fence. It suits elections and jobs,
// a few hundred locks at most: every held lock costs the API server a write every
// third of a TTL, and every process learns of all of them.
//
//	config, err := rest.InClusterConfig()
//	d, err := kube.Open(ctx, config, &kube.Options{Namespace: "jobs"})
//	locks, err := lock.NewFenced(d, nil)
//	err = locks.Do(ctx, "nightly-report", func(ctx context.Context, c interlock.Claim) error {
//		return nil // hand c to a guard
//	})
//
// The process needs the rights to get, list, watch, create and update Leases in
// the namespace, and to delete them if Leases that nobody uses are to be removed.
// With the right to get ConfigMaps and Endpoints it also finds
// locks of the kinds before Leases.
//
// # Guarantees
//
// Claims exclude each other through crashes of the API server and of etcd, a
// partition, and steps of anybody's wall clock: every write is on the condition
// that the Lease is as it was seen, and a holder gives up before its lease can be
// over for an observer, as long as their clocks run equally fast but for one part
// in a hundred. Two holders can believe in their claims after an operator deleted
// the Lease, changed its holder, or broke the lock; the former holder learns of it
// within Guarantees.Blind, and mostly at once.
//
// # Token
//
// The counter is the base, an annotation of the Lease, + the first resource version
// that the driver reads while the Lease names the owner, who is unique to the
// attempt; it stays the same for the term. Resource versions rise with every
// write to the cluster and are documented to be comparable from Kubernetes 1.35
// on; [Open] refuses older servers. The base is set and raised in the update that
// takes the Lease, so that the counter is at least the microseconds since 2020 at
// the time when the driver connected. It is taken from a clock that was read before
// the revision to which it belongs, and so never overtakes the clock: a Lease that
// was deleted, or whose annotation was removed, gets a base from the clock of that
// moment, above all that was issued for it before. For that the clocks of the
// processes must not differ by more than passes between the last grant before and
// the first grant after; while a process watches, it also knows the highest base of
// its namespace, and needs no clock.
//
// A process whose clock is far ahead of the API server's is refused, and raises no
// base. A base that lies more than a day in the future by the API server's clock is
// refused when a driver opens, if it is there then, and when the lock is taken;
// Options.Seed repairs it on record. The server's clock is the Date of its answers.
// A base for all names, which a move, a repair or a sweep sets, is kept in the
// Lease interlock.base.
//
// [OpenAdvisory] works with every Kubernetes that has Leases, and has no tokens: each
// write is on the condition that the revision is the one that was seen, which needs
// no order of revisions. It orders them, as numbers, only to know what is news.
//
// # Liveness
//
// An observed lease: others take the lock when its record did not change for
// leaseDurationSeconds by their own clock, which counts suspended time. A holder
// writes its record every third of the TTL, and after a failure every tenth, at
// most a second apart; its deadline runs from the moment before the last good
// renewal was sent. A thousand locks with a TTL of 30 s cost the API server a
// hundred writes a second. leaseDurationSeconds has whole seconds. Client-go
// compares the seconds of renewTime only, so ours is always in a later second than
// before, if need be ahead of the clock, and the shortest TTL is 3 s. Old versions
// of client-go wait for their own duration and not for the one in the Lease: give
// such peers the same.
//
// # Waiting
//
// The first to come when the Lease is free; Kubernetes has no queue. One watch
// over the namespace tells every process of a release, and each that waits tries
// once. A waiter that hears nothing of the Lease for half a TTL (10 s at most)
// reads it, and reopens the watch if it had fallen silent. A holder that
// crashed is followed when its lease is over for the first observer.
//
// # Interoperation
//
// A name that can name an object is that of the Lease, after Options.Prefix; any
// other is escaped, beginning with "esc-", and has at most 253 bytes then. Client-go
// peers that use the same Lease exclude us and are excluded. They carry our
// annotations along, and have no token. A Lease that is assigned by coordinated
// leader election, one with a strategy, is refused. So is a name under which a
// ConfigMap or Endpoints carries a lock of the kind before Leases, or a MultiLock,
// with a [*LegacyLockError] that says how to migrate. That is looked for once for
// each name and process, and not where the right to read them is lacking.
//
// A released Lease stays for ten minutes. Then each process removes, once a minute,
// a thousand at most of those that it has seen without a holder and unchanged for
// that time, each on the condition that it is as it was seen. A Lease stays if it
// carries labels, owners, finalizers, annotations of others or records of forced
// releases, or if no driver of this package ever held it. Do not delete one that
// is held, and not interlock.base.
//
// # Escape hatch
//
// [Driver.Object] names the Lease of a lock, for kubectl and other clients, and
// [TokenOf] reads the token of its holder. The config that was passed to Open
// stays yours.
package kube
