// Package crdt has data that several processes change without coordination, and that is the same
// everywhere once all have seen all changes. It does not make a read current, does not order
// changes, and does not end conflicts that matter: two concurrent writes of a register keep one.
// Use it where operations commute: counts, sets of tags, settings, stock in several regions.
//
//	var tags crdt.ORSet // or load it
//	delta, err := tags.Add("eu", "gold")
//	…
//	message, err := crdt.Encode(&delta) // to the others, by an outbox, a queue or a store
//	…
//	var delta crdt.ORSet // at another replica
//	if err := crdt.Decode(message, &delta); err == nil {
//		tags.Merge(delta) // in any order, any number of times
//	}
//
// # Types
//
// [GCounter] counts up, [PNCounter] up and down. [ORSet] is a set in which a concurrent addition
// wins over a removal; it keeps no tombstones. [Register] and [Map] keep the last write, by the
// stamps of a version.Clock. [Bounded] is a counter that is never below zero: each replica has a
// share, and takes units of its own share only.
//
// Each operation changes the value and returns a delta, which is a small value of the same type.
// Merge is commutative, associative and idempotent. So deltas may be repeated, reordered and
// delayed. What is lost is made up for by any later whole state, as [Decode] and [Store.Load]
// return it: a whole state is a delta, too.
//
// # Replicas
//
// A replica is one writer with an id, such as a region. It numbers its operations, so two
// writers must never use one id at the same time, and a writer must not go on from a state that
// lacks operations of its own. Take the id's claim (claim/lock), and Load before the first
// operation. A [Share] fences the former writer by the claim's token. Each id costs memory for
// ever, so do not draw a new one for each process.
//
// # Stores
//
// A [Store] keeps states in Redis or in memory. A merge is one request and one atomic step.
// Values are not safe for concurrent use; Store and Share are. A value that is assigned shares its
// state with the first one; Merge it into a new one to copy it.
package crdt
