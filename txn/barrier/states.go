package barrier

import "slices"

// state is where a branch is, as its row says.
type state string

const (
	absent     state = "absent"     // there is no row
	started    state = "started"    // a call to the outside was about to be made: nobody knows
	tried      state = "tried"      // it was done, prepared or tried
	refused    state = "refused"    // it was not done, and never will be
	doubted    state = "doubted"    // refused, after a call that may have done it
	confirming state = "confirming" // a call to the outside confirms it
	confirmed  state = "confirmed"
	cancelling state = "cancelling" // a call to the outside undoes it
	cancelled  state = "cancelled"
	blocked    state = "blocked" // an undo came first
)

// event is what comes to a branch.
type event int

const (
	forward event = iota // do, try, prepare
	refusal              // the function of a forward call has refused
	finish               // confirm, commit
	back                 // undo, cancel, rollback
	events
)

// verdict is how an event is answered.
type verdict int

const (
	run       verdict = iota // call the function
	again                    // with the stored output
	refuse                   // with the stored refusal
	late                     // with ErrCancelled
	nothing                  // it is so already, or nothing is to be done
	violation                // somebody has decided twice
)

// move is what an event does to a branch.
type move struct {
	to state // committed with what the function did
	// via is committed before the function is called, if that calls the outside; empty
	// is the same as to.
	via     state
	verdict verdict
}

// moves is the whole of the barrier: what each event does in each state. What is
// left out leaves the state as it is.
var moves = map[state][events]move{
	absent: {
		forward: {tried, started, run},
		refusal: {refused, "", refuse},
		finish:  {absent, "", violation},
		back:    {blocked, "", nothing},
	},
	started: {
		forward: {tried, started, run},
		refusal: {doubted, "", refuse},
		finish:  {started, "", violation},
		back:    {cancelled, cancelling, run},
	},
	tried: {
		forward: {tried, "", again},
		refusal: {tried, "", again},
		finish:  {confirmed, confirming, run},
		back:    {cancelled, cancelling, run},
	},
	refused: {
		forward: {refused, "", refuse},
		refusal: {refused, "", refuse},
		finish:  {refused, "", violation},
		back:    {refused, "", nothing},
	},
	doubted: {
		forward: {doubted, "", refuse},
		refusal: {doubted, "", refuse},
		finish:  {doubted, "", violation},
		back:    {cancelled, cancelling, run},
	},
	confirming: {
		forward: {confirming, "", again},
		refusal: {confirming, "", again},
		finish:  {confirmed, confirming, run},
		back:    {confirming, "", violation},
	},
	confirmed: {
		forward: {confirmed, "", again},
		refusal: {confirmed, "", again},
		finish:  {confirmed, "", nothing},
		back:    {confirmed, "", violation},
	},
	cancelling: {
		forward: {cancelling, "", late},
		refusal: {cancelling, "", late},
		finish:  {cancelling, "", violation},
		back:    {cancelled, cancelling, run},
	},
	cancelled: {
		forward: {cancelled, "", late},
		refusal: {cancelled, "", late},
		finish:  {cancelled, "", violation},
		back:    {cancelled, "", nothing},
	},
	blocked: {
		forward: {blocked, "", late},
		refusal: {blocked, "", late},
		finish:  {blocked, "", violation},
		back:    {blocked, "", nothing},
	},
}

// after is the state that m leaves at once.
func (m move) after(outside bool) state {
	if outside && m.via != "" {
		return m.via
	}
	return m.to
}

// changes is where e moves the rows that it changes or locks for a call. It is what
// the databases' statements are made of.
func changes(e event, outside bool) map[state]state {
	to := map[state]state{}
	for from, all := range moves {
		if m := all[e]; from != absent && (m.verdict == run || m.to != from) {
			to[from] = m.after(outside)
		}
	}
	return to
}

var allStates = []state{started, tried, refused, doubted, confirming, confirmed, cancelling, cancelled, blocked}

// sorted is the states of m, in the order of allStates.
func sorted(m map[state]state) []state {
	return slices.DeleteFunc(slices.Clone(allStates), func(s state) bool { _, ok := m[s]; return !ok })
}

// among lists states as SQL does.
func among(states []state) string {
	list := ""
	for _, s := range states {
		list += ",'" + string(s) + "'"
	}
	return "(" + list[1:] + ")"
}
