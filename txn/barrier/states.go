package barrier

import "slices"

// state is the state of a branch in its row.
type state string

const (
	absent     state = "absent"     // there is no row
	started    state = "started"    // an outside call was about to be made; its outcome is unknown
	tried      state = "tried"      // done, prepared or tried
	refused    state = "refused"    // not done, and never will be
	doubted    state = "doubted"    // refused, after a call that may have done it
	confirming state = "confirming" // an outside call confirms it
	confirmed  state = "confirmed"
	cancelling state = "cancelling" // an outside call undoes it
	cancelled  state = "cancelled"
	blocked    state = "blocked" // an undo came first
)

// event is a kind of call, or the result of one.
type event int

const (
	forward event = iota // do, try, prepare
	refusal              // the function of a forward call refused
	finish               // confirm, commit
	back                 // undo, cancel, rollback
	events
)

// verdict is the answer to an event.
type verdict int

const (
	run       verdict = iota // call the function
	again                    // return the stored output
	refuse                   // return the stored refusal
	late                     // return ErrCancelled
	nothing                  // succeed without a call
	violation                // return a ViolationError: there were two decisions
)

// move is the effect of an event on a branch.
type move struct {
	to state // committed with the work of the function
	// via is committed before a function that makes an outside call; empty means to.
	via     state
	verdict verdict
}

// moves is the state machine of a branch: the effect of each event in each state.
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

// after returns the state that the first transaction of a call commits.
func (m move) after(outside bool) state {
	if outside && m.via != "" {
		return m.via
	}
	return m.to
}

// changes returns the new state of each state that e changes or runs in. The statements of
// the databases are generated from it.
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

// sorted returns the states of m, in the order of allStates.
func sorted(m map[state]state) []state {
	return slices.DeleteFunc(slices.Clone(allStates), func(s state) bool { _, ok := m[s]; return !ok })
}

// among returns a list of states in SQL.
func among(states []state) string {
	list := ""
	for _, s := range states {
		list += ",'" + string(s) + "'"
	}
	return "(" + list[1:] + ")"
}
