package history

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
)

// A judge receives the calls of a history that it knows, and all States. N is its
// note about a call until its end.
type judge[N any] interface {
	began(call Event) N
	// ended receives OK, Reject, Fail, or Info; after the last event also for
	// calls without an end.
	ended(call, end Event, note N)
	// stated receives each State, and each Grant and HandOver that ends no call.
	stated(e Event)
	finished()
}

// callID identifies a call of a history.
type callID struct {
	writer int
	seq    int64
}

// openCall is an open call; known means that the judge receives it.
type openCall[N any] struct {
	start Event
	known bool
	note  N
}

// walk passes a history to a judge once. v is the Verdict to which the judge adds
// its findings.
func walk[N any](events iter.Seq2[Event, error], v *Verdict, j judge[N], ops ...string) (Verdict, error) {
	open := map[callID]openCall[N]{}
	for e, err := range events {
		if err != nil {
			return *v, err
		}
		v.Events++
		id := callID{e.Writer, e.Cause}
		c, under := open[id]
		switch {
		case e.Kind == Invoke:
			c = openCall[N]{start: e, known: slices.Contains(ops, e.Op)}
			if c.known {
				c.note = j.began(e)
			}
			open[callID{e.Writer, e.Seq}] = c
		case e.Kind == State, !under && (e.Kind == Grant || e.Kind == HandOver):
			j.stated(e)
		case !e.ends():
		case !under:
			return *v, notOpen(e)
		case c.known && c.start.Op != OpAcquire && (e.Kind == Grant || e.Kind == HandOver):
			return *v, fmt.Errorf("check history: seq %d by %s ends %s %d as an acquire, by %s", e.Seq, e.Lane, c.start.Op, e.Cause, e.Kind)
		default:
			delete(open, id)
			conclude(v, j, c, e)
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(open), callID.compare) {
		conclude(v, j, open[id], Event{Kind: Info})
	}
	j.finished()
	return *v, nil
}

func conclude[N any](v *Verdict, j judge[N], c openCall[N], end Event) {
	if !c.known {
		return
	}
	switch end.Kind {
	case OK:
		v.Done++
	case Reject:
		v.Refused++
	case Info:
		v.Unknown++
	}
	j.ended(c.start, end, c.note)
}

// ends reports whether e is of a kind that ends a call.
func (e Event) ends() bool {
	switch e.Kind {
	case OK, Fail, Info, Reject, Grant, HandOver:
		return true
	}
	return false
}

func (id callID) compare(other callID) int {
	return cmp.Or(cmp.Compare(id.writer, other.writer), cmp.Compare(id.seq, other.seq))
}

// entry returns the value of a key, and creates it if there is none.
func entry[K comparable, V any](of map[K]*V, key K) *V {
	v := of[key]
	if v == nil {
		v = new(V)
		of[key] = v
	}
	return v
}

func notOpen(e Event) error {
	return fmt.Errorf("check history: seq %d by %s ends call %d, which is not open", e.Seq, e.Lane, e.Cause)
}
