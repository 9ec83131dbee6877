// Package zookeeper keeps locks in ZooKeeper, in the layout of Curator and of the Go client's
// own lock, so that all exclude each other.
//
// A process that is stopped for longer than its session can still write when it continues: only a
// guard that compares tokens rejects that, see package guard/fence.
//
//	d, err := zookeeper.Open(ctx, &zookeeper.Options{Servers: []string{"127.0.0.1:2181"}})
//	locks, err := lock.NewFenced(d, nil)
//	err = locks.Do(ctx, "nightly-report", func(ctx context.Context, c interlock.Claim) error {
//		return nil // hand c to a guard
//	})
//
// # Guarantees
//
// Claims exclude each other through a crash of the servers, a partition and a step of their wall
// clocks. Exclusion does not survive an operator who deletes a contender's node, nor lost data.
// Then the next contender is served at once, and the former holder notices by a watch. If its
// connection is broken, it notices within Guarantees.Blind, which is the TTL. All this needs
// sessions of at least two ticks, the default of minSessionTimeout.
//
// # Token
//
// The counter is base + (czxid − anchor), where czxid is the transaction that created the
// contender's node. Waiters are served by czxid, so it rises with every grant. Base and anchor are
// in the node ROOT/interlock.base. Every session raises them so that the counter is at least the
// microseconds since 2020. So tokens rise over an empty data directory too, given correct clocks.
// A counter that is out of range is refused. A base covers 2^24 transactions and ends with an
// election, which moves czxids by 2^32. The next contender raises it first, at most 17 seconds
// beyond the clock. [Driver.Token] and [Driver.Zxid] convert for writers that know only czxids.
//
// # Liveness
//
// A driver has one session, over one connection at a time. It is renewed every eighth of the TTL,
// and after a failure every tenth of it, by a transaction that changes nothing. A majority of the
// servers must agree to it. The deadline counts from just before a successful renewal was sent
// that was followed by another one, a quarter of the TTL later: see extend in session.go. A broken
// connection is replaced, and claims continue in their session, unless the next server grants a
// shorter session. When the session ends, every claim ends, and the next Acquire opens a new
// session. It adopts nothing of the old one. A session whose time ran out without an answer, as in
// a long election, is closed as soon as a server can be reached, so that its nodes delay nobody.
//
// # Waiting
//
// First come, first served. A waiter watches its own node and the one before it, so that a release
// wakes one waiter. Once per heartbeat, a sixth of the TTL, it checks that the one before still
// exists. A holder's node is watched from the first second on.
//
// A waiter that has had at most eight contenders before it for a heartbeat writes into its node
// that it is unconfirmed. When it is first, it overwrites that, and holds. The next eight waiters
// delete a first node that stays unconfirmed for a heartbeat. So after a holder died, a lock has no
// holder for at most a TTL, a tick of the servers and two heartbeats, and another heartbeat for each
// further dead waiter whose session has not ended. These keep their places until their sessions
// end: a process that died within a heartbeat of its arrival, dead ones with more than eight before
// the first live waiter, and other clients. A live waiter that does not take its turn within a
// heartbeat loses its place: Acquire returns interlock.ErrLost.
//
// # Interoperation
//
// A contender is ROOT/NAME/_c_UUID-lock-NUMBER, as Curator's InterProcessMutex and the Go client's
// Lock write it; they lock the path ROOT/NAME. Names are escaped, "/" as %2F, so that each is one
// node; a name of plain ASCII without "/", "%" and spaces is unchanged. [Options].RawNames passes
// names as paths. Other nodes below a lock's are ignored. kazoo does not see such contenders
// unless its locks have extra_lock_patterns=["lock-"]. So Acquire fails with a [*FamilyError] if
// it finds nodes of kazoo, unless [Options].TolerateKazoo is set. A later kazoo client is not
// detected. The nodes of locks are containers, which ZooKeeper removes some time after their last
// child; a server before 3.5 keeps them.
//
// # Escape hatch
//
// [Driver.Contender] returns the node of a claim, for your own transactions that check it. Open
// another client for your requests.
package zookeeper
