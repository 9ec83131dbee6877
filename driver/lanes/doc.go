// Package lanes is the code that drivers of partitioned queues share. It does no I/O: a driver joins
// the group, reads the log and stores positions.
//
// A [Partition] tracks which messages are completed and which may be delivered. Its caller adds
// messages in the order of the log, and stores the result of Snapshot before it acknowledges an
// outcome. A [Consumer] delivers and settles the messages of its partitions, each under an
// [Assignment]. [Commits] combines requests to store their state.
//
//	p := lanes.Restore(offset, lanes.Decode(offset, stored), interlock.CounterAt(time.Now()), 1000)
//	if m := p.Arrive(r.offset, r.key, len(r.payload)); m != nil {
//		m.ID, m.Payload, … = …
//	}
//	messages, wait := p.Take(nil, &limit, time.Now())
//	…
//	p.Complete(r.offset)
//	p.Sweep()
//	text, _ := p.Snapshot(true).Encode(4096)
package lanes
