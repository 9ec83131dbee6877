package choreography

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// State is the state of a saga, computed from its events.
type State string

// The states. [Completed] and [Compensated] are final, except that a cancellation undoes a
// completed saga.
const (
	Running       State = "running"
	Completed     State = "completed"     // every step is done
	Compensating  State = "compensating"  // a step failed, or the saga was cancelled
	Compensated   State = "compensated"   // every step has failed or is undone, and no step will be done
	Contradictory State = "contradictory" // events exclude each other: see [Saga].Reason
)

// facts are the arrived events of one saga. They only grow, and do not depend on the order and
// repetition of the events: a join semilattice.
type facts struct {
	Sums    map[string]string `json:"sums"`              // by event: the hash of its payload, the least of several; empty: only an event that it caused has arrived
	Differs string            `json:"differs,omitempty"` // the first by name of events with different payloads
	Unknown string            `json:"unknown,omitempty"` // the first by name of events that the definition does not have
}

// note adds an event, and the one that caused it, which has happened too. It reports whether the
// event itself is new, and whether the facts changed.
func (f *facts) note(d *Definition, e Event) (fresh, changed bool) {
	if f.Sums == nil {
		f.Sums = map[string]string{}
	}
	all := d.events()
	if cause, ok := strings.CutPrefix(e.Cause, d.transaction(e)+"/"); ok && slices.Contains(all, cause) && !f.has(cause) {
		f.Sums[cause], changed = "", true
	}
	if !slices.Contains(all, e.Name) {
		return false, first(&f.Unknown, e.Name) || changed
	}
	if e.Name == d.Cancelled {
		e.Payload = nil // several processes may cancel, with different reasons
	}
	hash := sha256.Sum256(e.Payload)
	sum := hex.EncodeToString(hash[:])
	switch known := f.Sums[e.Name]; {
	case known == "":
		f.Sums[e.Name] = sum
		return true, true
	case known != sum:
		f.Sums[e.Name] = min(known, sum)
		return false, first(&f.Differs, e.Name) || sum < known || changed
	}
	return false, changed
}

// first keeps the first of two names in order, and reports whether it changed kept.
func first(kept *string, name string) bool {
	if *kept != "" && *kept <= name {
		return false
	}
	*kept = name
	return true
}

// has reports whether an event has happened; arrived reports whether its message has arrived.
func (f *facts) has(event string) bool {
	_, ok := f.Sums[event]
	return ok
}

func (f *facts) arrived(event string) bool { return f.Sums[event] != "" }

// pivot returns a step that is done and cannot be undone, or "".
func (f *facts) pivot(d *Definition) (done string) {
	for _, s := range d.Steps {
		if s.Pivot && f.has(s.Done) {
			return s.Done
		}
	}
	return ""
}

// judge returns the state, and the reason of a contradiction. An undone step counts as a failure:
// the event that caused the undo may be lost or late.
func (f *facts) judge(d *Definition) (state State, reason string) {
	complete, settled, failing := true, true, slices.ContainsFunc(d.events(), func(e string) bool { return d.Undoes(e) && f.has(e) })
	for _, s := range d.Steps {
		done, undone, failed := f.has(s.Done), f.has(s.Undone), f.has(s.Failed)
		complete = complete && done
		settled = settled && (undone || failed && !done)
		failing = failing || undone
		if done && failed && !undone {
			reason = fmt.Sprintf("%q and %q both happened", s.Done, s.Failed)
		}
	}
	pivot := f.pivot(d)
	switch {
	case failing && pivot != "":
		return Contradictory, fmt.Sprintf("the saga is being undone, but %q happened and cannot be undone", pivot)
	case failing && settled:
		return Compensated, ""
	case reason != "":
		return Contradictory, reason
	case f.Differs != "":
		return Contradictory, fmt.Sprintf("%q has different payloads", f.Differs)
	case f.Unknown != "":
		return Contradictory, fmt.Sprintf("the definition has no event %q", f.Unknown)
	case failing:
		return Compensating, ""
	case complete:
		return Completed, ""
	}
	return Running, ""
}

// Action is an action of [Tracker.Reconcile] on a saga.
type Action string

// The actions.
const (
	Repeated  Action = "repeated"  // it emitted events of the saga again
	Cancelled Action = "cancelled" // it emitted [Definition].Cancelled
	Reported  Action = "reported"  // it gave up: an operator must decide
)

// decide returns the action for a stalled or contradictory saga, after this number of attempts
// since its last new event.
func decide(d *Definition, f *facts, state State, attempts int, p Policy) Action {
	again := Repeated
	if !slices.ContainsFunc(d.events(), func(e string) bool { return d.Undoes(e) && f.arrived(e) }) {
		again = Cancelled // no other event makes the services undo the saga
	}
	repeats := p.repeats()
	cancels := max(1, repeats)
	switch {
	case state == Running && attempts < repeats:
		return Repeated
	case state == Running && p.Cancel && f.pivot(d) == "" && attempts < repeats+cancels:
		return Cancelled
	case state == Compensating && attempts < repeats:
		return again
	case state == Contradictory && p.Cancel && f.pivot(d) == "" && attempts < cancels:
		return again
	}
	return Reported
}

// emitted returns the names of the events of an action, in the order of the definition: for a
// running saga those that report steps, for any other those that undo.
func (f *facts) emitted(d *Definition, state State, a Action) (names []string) {
	if a == Cancelled {
		return []string{d.Cancelled}
	}
	for _, name := range d.events() {
		if a == Repeated && f.arrived(name) && (state == Running || d.Undoes(name)) {
			names = append(names, name)
		}
	}
	return names
}
