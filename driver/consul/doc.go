// Package consul keeps locks in Consul, as sessions that hold keys. It uses the layout of
// "consul lock" and of the Lock of Consul's Go client, so that all of them exclude each other.
//
// A process that is stopped for longer than its session can still write when it continues:
// only a guard that compares tokens rejects that, see package guard/fence.
//
//	d, err := consul.Open(ctx, &consul.Options{Address: "127.0.0.1:8500"})
//	locks, err := lock.NewFenced(d, nil)
//	err = locks.Do(ctx, "nightly-report", func(ctx context.Context, c interlock.Claim) error {
//		return nil // hand c to a guard
//	})
//
// # Guarantees
//
// Claims exclude each other through crashes of servers and of a leader, a partition, and steps
// of any wall clock.
//
// Exclusion does not survive an operator who deletes the key or the session, nor lost data.
// Then the next contender is served at once, and the former holder notices within
// Guarantees.Blind. Nor does it survive an agent that leaves the cluster or is removed from
// it, because Consul ends its sessions at once. Use the agent of a server, or
// Options.LockDelay. An agent that crashes ends no session.
//
// # Token
//
// The counter is base + (index − index of the base), where the index is that of the Raft entry
// which took the lock. The base is a key of the namespace. It is set to the microseconds since
// 2020 when it is missing and when a session opens. A grant also sets it, in its own
// transaction, if the counter is nine seconds below the clock. Every grant fails if the base
// has changed since it was read. So tokens rise over a deleted base, a new cluster and a
// restored snapshot, given correct clocks. This includes sessions in the snapshot, if the
// restore took more than ten seconds. A process whose clock is far ahead of its agent's is
// refused, and raises no base. A base more than a day in the future is refused; Options.Seed
// repairs it with a record.
//
// # Liveness
//
// A driver has one session for all of its locks. It is renewed every third of the TTL, and
// after a failure every tenth, at most a second apart. The deadline is the TTL after the last
// successful renewal was sent, which is what Consul documents. Its servers end a session after
// twice that, and after an election they count again. So the locks of a killed process are
// free two TTLs after its last renewal; no setting of Consul changes that. A session that runs
// out while its process lives is destroyed as soon as Consul answers. With each renewal one
// consistent read for sixty locks checks that they are still held. When the session ends
// every claim ends with it, its keys are deleted, and the next Acquire opens a new one.
//
// # Waiting
//
// The first request when the key is free gets it; Consul has no queue. A name that a process
// waits for costs one blocking query, of half a TTL (10 s at most), and at most twenty a
// second. A driver has at most 128 of them at once, and polls further names in turn. If
// several processes of a machine wait for many names, raise the agent's
// http_max_conns_per_client (200). If a session with a lock-delay ends without a release,
// waiters try every tenth of the TTL (a second at most) until the delay ends.
//
// # Interoperation
//
// The key of a lock is PREFIX + NAME + "/.lock", with the flags of Consul's own locks: what
// "consul lock PREFIX+NAME" takes, and the Go client's LockKey(d.Key(name)). Letters, digits
// and "_.-/" of a name are unchanged; other bytes are escaped as "%XX". A dot at the beginning
// of a segment, and a slash that would make an empty one, are escaped too. A free key that
// holds anything else, such as a semaphore of Consul's clients, is refused with a
// [*ConflictError], and they refuse ours. A release deletes the key, as "consul lock" does.
//
// # Escape hatch
//
// [Driver.Key] returns the key of a lock, for other clients; its Session is the driver's.
package consul
