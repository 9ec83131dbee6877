// Package redis is a lock on one Redis server. It does not guarantee mutual
// exclusion: a paused holder continues when it wakes, a failover to a replica can lose the
// latest grants, and anyone can delete a key. Guard what the lock protects with its token
// (package guard/fence, or [Fence] for data in the same Redis). [Barrier] is for participants in
// distributed transactions with data in Redis, and needs no lock.
//
//	client, err := redis.Dial("redis://localhost:6379")
//	d, err := redis.Open(ctx, client, nil)
//	defer d.Close(ctx)
//	locks, err := lock.NewFenced(d, nil)
//
// Users of go-redis pass their client to package driver/redis/goredis.
//
// # Guarantees
//
// [Open] computes them from what the server reports. Exclusion survives a crash of the server
// only with appendonly yes, and appendfsync always or [Settings].Fsync; with
// no-appendfsync-on-rewrite yes, only with the latter. It survives a failover to a replica only
// with [Settings].Replicas. It never survives a step of the server's clock (Redis expires keys by
// wall clock) or a manual deletion.
//
// If [Settings].Replicas is the number of all replicas, a failover to one of them loses
// neither grants nor tokens. Otherwise it may lose the last ones.
//
// [Quorum] takes a lock on a majority of several independent servers (Redlock),
// without a token; see docs/adr/013-redis-quorum.md.
//
// # Eviction
//
// A server that evicts a mark would accept a stale write, and one that evicts a lock would
// grant it twice. So maxmemory-policy decides what may be used:
//
//   - noeviction: everything.
//   - volatile-*: stores whose keys have no time to live: [Fence], [Values],
//     [Versions], [Stock], [Barrier], [Lattices], [Queue].
//   - allkeys-*: only [Records], where mark and data are one key.
//
// Everything else returns [ErrEviction]. Locks check the policy when they open, every five
// seconds, and after a reconnection; held locks can still be released. Guards check before the
// first write, before the first after a failed one, and before a write a second or more after
// the last answer. Evictions within a second of an operator's change are not noticed.
//
// The policy is read by INFO, or by CONFIG GET. If the user may run neither,
// declare noeviction ([Settings]); Guarantees.Assumes then says so.
//
// # Cluster
//
// Dial with cluster=true. The guarantees are those of one server. Differences:
//
//   - Renewals, heartbeats and lists are one request for each slot.
//   - Several names at once ([Driver.AcquireAll]) need the same {tag}, and so do a
//     resource and the data that its [Fence] writes, a [Barrier] or an [Inbox] and the
//     keys of its effects. Other combinations are refused. The records of one
//     [Idempotency] are all in one slot.
//   - While a slot moves, requests that change its names are refused as Retryable, and change
//     nothing.
//   - A failover loses the writes that its replica had not received: grants, tokens
//     and guarded writes together with their marks. With [Settings].Replicas equal to
//     the number of replicas of each master it loses none, except after a move: moved
//     keys reach the replicas of their new master with the next write there. If a
//     master has fewer replicas, writes in its slots are Uncertain until it has them
//     again. Each request then takes its own connection, so an abandoned one can
//     arrive after the next one of its owner (see Liveness).
//   - A master in the minority of a partition refuses writes after
//     cluster-node-timeout. Until then it accepts some, which the failover loses, unless
//     [Settings].Replicas is set.
//
// # Rights
//
// A user needs these rights for locks: the keys of the locks and interlock:{*; redisson_lock_*
// to show Redisson's waiters; the channels interlock:push:* and interlock:changes:*; and these
// commands:
//
//	ACL SETUSER app on >password ~jobs/* ~interlock:{* ~redisson_lock_* resetchannels &interlock:push:* &interlock:changes:*
//	  -@all +@read +@write +@scripting +@connection +@pubsub +info +time
//
// In a cluster also +cluster|slots, and +cluster|shards from Redis 8.
//
// Guards need neither channel. [Values] needs the channels of its keys, &interlock:{*.
//
// # Token
//
// The token is the next value of a counter that never expires: one for the database, or one
// for each hash slot of a cluster. The script that grants draws it: the previous value plus
// one, or the microseconds of the server's clock since 2020 if that is more. After a loss of
// data it continues above the issued tokens if the server's clock was not set back. After a
// failover the other machine's clock may be slow, so this is not guaranteed.
//
// # Liveness
//
// A lock is a key with a time to live. It is renewed every third of that time, up to 100 names
// in one request. A failed renewal is repeated within a second, until the time is over. While
// the server answers, a holder learns of a deleted key within a third of the TTL and about a
// second. While the server does not answer, the holder learns of it at the end of its lease.
// Guarantees.Blind is therefore the TTL.
//
// A server that was stopped may read an acquire request after a later request of the same
// owner (a release, or an attempt that was answered "held"). An unused owner then holds the
// name until the TTL ends, or until it is released. The name is never granted twice. If the
// name is held, a late request that would wait gets a place in the queue for 1.5 s, or the
// name for a second.
//
// # Waiting
//
// Waiters form a queue in the order of arrival, with one place for each owner. A release grants
// the name to the first live waiter and publishes that on the channel of its process. If the
// process does not confirm, the grant ends after a second. Waiters send heartbeats every 500 ms,
// up to 100 in one request; these also find lost pushes, and locks that expired or were deleted.
// A waiter without a heartbeat for 1.5 s loses its place. A wait whose heartbeats are not
// answered for that long ends with an Uncertain error; acquiring again with the same owner finds
// the place or the grant, if it still exists. Waiters whose process has no subscription at the
// server, such as killed ones, are passed over and keep their places, except in a cluster.
//
// The order is that of arrival at the server, except for a process without a connection, until it
// has one again. It is not guaranteed while other kinds of clients use the name
// (driver.Contender.Foreign shows them): they barge, and a waiter notices by its heartbeat.
//
// # Seeing and breaking
//
// [Driver.Watch] subscribes to the channels interlock:changes:NAME below its prefix, and reads
// all locks every five seconds to find changes by foreign clients. [Driver.Locks] reads an
// index that the scripts keep. [Driver.Break] takes a lock from its holder and records that in
// the same script.
//
// # Interoperation
//
// The lock is the string key Options.Prefix + name with a time to live: what SET NX
// PX writes. Its value ends with the owner. Clients that do the same, and delete only their own
// value, exclude us and are excluded: redis-py's Lock, redsync with one server, bsm/redislock,
// our own [Plain]. Companion keys start with "interlock:{"; names that would are refused.
//
// [Driver.Lock] shows locks of redis-py, redsync, bsm/redislock, rueidislock and
// Redisson, with the client that probably wrote them. [Driver.Break] can break all, except
// Redisson's read-write locks. A Redisson lock is a hash, so its name is refused here with
// Redis's WRONGTYPE and not waited for.
//
// # Escape hatch
//
// Deleting the lock's key frees the name: its holder loses it, and the next waiter gets it by a
// heartbeat. Everything else expires. Keys of a name: interlock:{0}:waiting:NAME and
// …:heard:NAME. The counter is interlock:{0}:counter, the index interlock:{0}:names. In a
// cluster each slot has its own, with a short text of the slot in place of 0. The record of
// forced releases is interlock:{TAG}:breaks, where TAG is that text, on one server too.
//
// Deleting (or evicting) one of these has only these effects. Without waiting or
// heard, the waiters take new places with their next heartbeats, after later
// arrivals. Without the counter, tokens continue at the server's clock. Do not delete
// the index: held locks are then not listed, so that a writer of claim/rwlock does not
// see its readers, and newcomers can overtake waiters.
package redis
