// Package zookeeper keeps locks in ZooKeeper, in the layout that Curator and the
// Go client's own lock use, so that all of them exclude each other.
//
// It does not make a lock safe by itself: a process that is stopped for longer
// than its session wakes up believing that it holds. Only a guard that compares
// tokens refuses its writes, see package guard/fence.
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
// one transaction with a check that the base is still the one it relies on, and
// not one that was deleted and created again, which a child of it shows; that is
// done by the clock of the moment. A counter that is out of range is refused. A
// base is good for 2^24 transactions and not beyond an election, which moves
// czxids by 2^32; who comes then raises it first, by at most 17 seconds more
// than the clock asks for. [Driver.Token] and [Driver.Zxid] convert for writers
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
// only for less time than was granted. When the session is gone every claim is
// gone with it, and the next Acquire opens a new one under which nothing old is
// adopted: a node is believed only if its ephemeral owner is the present
// session.
//
// # Waiting
//
// First come, first served. A waiter watches its own node and the one before
// it, so that a release wakes one waiter. A holder's node is watched from
// the first second on. It looks once per heartbeat, a sixth
// of the TTL, whether the one before is still there. A waiter whose process died
// keeps its place until its session ends, a TTL and a tick of the server later. It cannot be
// sooner: a node belongs to the session that created it, and a session has one length. Where
// that matters, choose a TTL of a few seconds.
//
// # Interoperation
//
// A contender is ROOT/NAME/_c_UUID-lock-NUMBER, as Curator's InterProcessMutex
// and the Go client's Lock write it: the path that they lock is ROOT/NAME. Names
// are escaped, "/" as %2F, so that each is one node; a name of plain ASCII
// without "/", "%" and spaces stands for itself. [Options].RawNames passes names
// as paths. Other nodes below a lock's are ignored. kazoo does not see such
// contenders unless its locks are made with extra_lock_patterns=["lock-"], so
// where its nodes are found Acquire refuses with a [*FamilyError], unless
// [Options].TolerateKazoo says that they are. Should kazoo come later, nothing
// here can stop it. The nodes of locks are containers, which ZooKeeper removes
// some time after their last child; a server before 3.5 keeps them. Numbers that
// wrapped after 2^31 contenders are in order here, but not for other clients.
//
// # Escape hatch
//
// [Driver.Contender] gives the node of a claim, for transactions of your own
// that check it. The driver owns its client, since a session must not be shared
// with code that could close it; open another beside it.
package zookeeper
