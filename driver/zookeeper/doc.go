// Package zookeeper keeps locks in ZooKeeper, in the layout that Curator and the
// Go client's own lock use, so that all of them exclude each other.
//
// It does not make a lock safe by itself: a process that is stopped for longer
// than its session wakes up believing that it holds. Only a guard that compares
// tokens rejects its writes, see package guard/fence.
//
//	d, err := zookeeper.Open(ctx, &zookeeper.Options{Servers: []string{"127.0.0.1:2181"}})
//	locks, err := lock.NewFenced(d, nil)
//	err = locks.Do(ctx, "nightly-report", func(ctx context.Context, c interlock.Claim) error {
//		return nil // hand c to a guard
//	})
//
// # Guarantees
//
// Claims exclude each other through a crash of the servers, a partition and a
// step of their wall clocks, because a claim ends here before its session can
// end there. They do not survive an operator who deletes a contender's node, nor
// lost data: the next one is served at once, and the former holder learns of it
// by a watch, or by Guarantees.Blind, which is the TTL, if the connection broke
// meanwhile and stays so. Two faults at once are more than is promised: the
// server that a holder is connected to tells the leader of its sessions every
// half tick, so if it dies and the holder reaches no other server either, the
// leader may end the session up to half a tick before the holder's deadline.
//
// # Token
//
// The counter is base + (czxid − anchor), where czxid is the transaction that
// created the contender's node. Waiters are served in the order of these, so it
// rises with every grant; the number at the end of the node's name starts again
// when the lock's node is removed, and is never used. Base and anchor are in
// the node ROOT/interlock.base. Every session raises them so that the counter
// is at least the microseconds since 2020, and therefore tokens rise over an
// empty data directory too, given sane clocks. A contender's node is created in
// one transaction with a check that the base is still the one it relies on. A child
// of the base shows that it was not deleted and created again; a new base starts at
// the present time. A counter that is out of range is refused. A
// base covers 2^24 transactions and ends with an election, which moves czxids by
// 2^32. The next contender raises it first, at most 17 seconds beyond the clock.
// [Driver.Token] and [Driver.Zxid] convert for writers
// that know only czxids.
//
// # Liveness
//
// A driver has one session, over one connection at a time. It is renewed every
// third of the TTL, and after a failure every tenth of it, by a transaction
// that changes nothing, to which a majority of the servers has to agree: a
// leader that the others have left cannot renew it. The deadline runs from the
// moment before the last good one was sent. A broken connection is replaced,
// and claims go on within their session, unless the next server lets it go on
// only for less time than was granted. When the session ends, every claim ends,
// and the next Acquire opens a new session. It adopts nothing of the old one: a
// node is accepted only if its ephemeral owner is the present session.
//
// # Waiting
//
// First come, first served. A waiter watches its own node and the one before
// it, so that a release wakes one waiter. Once per heartbeat, a sixth of the TTL,
// it checks that the one before still exists. A holder's node is watched from the
// first second on. A waiter whose process died keeps its place until its session
// ends, a TTL and a tick of the server later: a node belongs to the session that
// created it, and a session has one length. If that is too long, choose a TTL of
// a few seconds.
//
// # Interoperation
//
// A contender is ROOT/NAME/_c_UUID-lock-NUMBER, as Curator's InterProcessMutex
// and the Go client's Lock write it: the path that they lock is ROOT/NAME. Names
// are escaped, "/" as %2F, so that each is one node; a name of plain ASCII
// without "/", "%" and spaces stands for itself. [Options].RawNames passes names
// as paths. Other nodes below a lock's are ignored. kazoo does not see such
// contenders unless its locks are made with extra_lock_patterns=["lock-"], so
// if it finds such nodes Acquire fails with a [*FamilyError], unless
// [Options].TolerateKazoo is set. A kazoo client that comes later is not stopped.
// The nodes of locks are containers, which ZooKeeper removes
// some time after their last child; a server before 3.5 keeps them. Numbers that
// wrapped after 2^31 contenders are in order here, but not for other clients.
//
// # Escape hatch
//
// [Driver.Contender] gives the node of a claim, for transactions of your own
// that check it. The driver owns its client, since a session must not be shared
// with code that could close it; open another beside it.
package zookeeper
