// Package lanes is what drivers of partitioned queues share; others do not need it. It does not read,
// store or join a group: a driver does that.
//
// A [Partition] knows which messages of a partition are completed, which may be delivered, and what
// to store of that. It does no I/O and keeps no order by itself: its caller brings messages in the
// order of the log, and stores what Snapshot returns before it answers for it. A [Consumer]
// delivers and settles the messages of its partitions, each under an [Assignment], and [Commits]
// stores what is asked for together.
//
//	p := lanes.Restore[*record](offset, lanes.Decode(offset, stored), interlock.CounterAt(time.Now()), 1000)
//	p.Arrive(r.offset, r.key, len(r.payload), r)
//	p.Take(&limit, true, time.Now(), func(r *record, key string, attempt int) { … })
//	…
//	p.Complete(r.offset)
//	p.Sweep()
//	text, _ := p.Snapshot(true).Encode(4096)
package lanes
