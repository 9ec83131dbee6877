package conformance

import "github.com/interlock-dev/interlock/txn/branch"

// A Protocol is one whose messages are played.
type Protocol string

// The protocols.
const (
	Saga  Protocol = "saga" // do and undo
	TCC   Protocol = "tcc"  // try, confirm and cancel
	TwoPC Protocol = "2pc"  // prepare, commit and rollback, which are the same by other names
)

// Protocols are all that there are.
func Protocols() []Protocol { return []Protocol{Saga, TCC, TwoPC} }

// A kind is what the operations of all protocols have in common.
type kind int

const (
	first   kind = iota // does the work, or all of it that can be undone
	confirm             // makes it final
	undo                // takes it back
)

// operations are those of the kinds; a saga confirms nothing.
var operations = map[Protocol][3]branch.Operation{
	Saga:  {branch.Do, "", branch.Undo},
	TCC:   {branch.Try, branch.Confirm, branch.Cancel},
	TwoPC: {branch.Prepare, branch.Commit, branch.Rollback},
}

// An answer is what a participant says.
type answer string

const (
	ok      answer = "done"     // 2xx
	no      answer = "refused"  // 409: it has not happened and never will
	not     answer = "not done" // anything but 2xx: the message should never have come
	unheard answer = "unheard"  // neither 2xx nor 409: it may come again as it should be
)

// A state is that of a branch at its participant.
type state int

const (
	unknown   state = iota // nothing came that was done
	held                   // the first was done
	confirmed              // and made final
	undone                 // taken back, or kept from happening
	refused                // the business has refused the first
	states
)

func (s state) String() string {
	return [states]string{"unknown", "done", "confirmed", "undone", "refused"}[s]
}

// expected is what a participant has to answer, and to become.
type expected struct {
	answer answer
	next   state
}

// table is all that is expected of a participant, but that the business refuses a
// first in state unknown if there is no room. It was not made from any barrier's.
var table = [states][3]expected{
	unknown:   {first: {ok, held}, confirm: {not, unknown}, undo: {ok, undone}},
	held:      {first: {ok, held}, confirm: {ok, confirmed}, undo: {ok, undone}},
	confirmed: {first: {ok, confirmed}, confirm: {ok, confirmed}, undo: {not, confirmed}},
	undone:    {first: {no, undone}, confirm: {not, undone}, undo: {ok, undone}},
	refused:   {first: {no, refused}, confirm: {not, refused}, undo: {ok, undone}},
}

// Effects are what an account has.
type Effects struct {
	Held      int64 `json:"held"`      // by branches that are tried or prepared
	Confirmed int64 `json:"confirmed"` // by branches that are confirmed, committed or done
}

// of are the effects of a branch in a state, of one unit.
func (p Protocol) of(s state) Effects {
	switch {
	case s == confirmed, s == held && p == Saga:
		return Effects{Confirmed: 1}
	case s == held:
		return Effects{Held: 1}
	}
	return Effects{}
}
