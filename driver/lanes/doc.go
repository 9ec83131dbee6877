// Package lanes is the part of a queue's driver that knows which messages of a partition are
// completed, which may be delivered, and what to store of that. It does no I/O and keeps no
// order by itself: its caller brings messages in the order of the log, and stores what Snapshot
// returns before it answers for it. Drivers of partitioned queues use it; others do not need it.
//
//	p := lanes.Restore(offset, lanes.Decode(offset, stored), interlock.CounterAt(time.Now()), 1000)
//	p.Arrive(message)
//	some, _ := p.Take(&limit, true, time.Now())
//	…
//	p.Complete(some[0].Place)
//	text, _ := p.Snapshot(true).Encode(4096)
package lanes
