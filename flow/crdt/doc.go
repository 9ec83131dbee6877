// Package crdt has conflict-free replicated data types: several processes change them without
// coordination, and replicas that have merged the same changes are equal. Reads may be stale, changes
// have no order, and of two concurrent writes of a register one is lost.
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
// Deltas may be repeated, reordered and delayed. A whole state is a delta too: any later one, as from
// [Store.Load], replaces lost deltas.
//
// # Replicas
//
// A replica is one writer with an id, such as a region. Two writers must never use one id at the same
// time, and a writer must not continue from a state that lacks its own operations. Hold a claim for
// the id (claim/lock), and Load before the first operation. A [Share] fences the former writer by the
// token of the claim. Each id uses memory for ever, so do not create one for each process.
//
// # Stores
//
// A [Store] keeps states in Redis or in memory. A merge is one request and one atomic step.
// Values are not safe for concurrent use; Store and Share are. An assigned value shares its state with
// the original; to copy a value, Merge it into a new one.
package crdt
