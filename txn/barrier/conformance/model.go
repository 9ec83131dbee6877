package conformance

import (
	"maps"
	"slices"

	"github.com/interlock-dev/interlock/txn/branch"
)

// A key is a branch of a play: most have one, which is the zero key.
type key struct{ branch, step string }

// A variation is a deviation of a message.
type variation int

const (
	plain      variation = iota
	otherInput           // the amount of a first is another than the first time
	late                 // its deadline has passed
	headless             // a header is missing
)

// A message is one message of a play.
type message struct {
	to   key
	kind kind
	as   variation
}

// A model is the expected state of an account. It is immutable: with returns another one.
type model struct {
	protocol Protocol
	capacity int64
	branches map[key]state
}

func newModel(p Protocol, capacity int64) model { return model{p, capacity, map[key]state{}} }

// with returns the answer to a message, and the model after it.
func (m model) with(msg message) (answer, model) {
	switch msg.as {
	case late, headless:
		return unheard, m
	case otherInput:
		return not, m
	}
	e := table[m.branches[msg.to]][msg.kind]
	if m.branches[msg.to] == unknown && msg.kind == first && m.units()+1 > m.capacity {
		e = expected{no, refused}
	}
	m.branches = maps.Clone(m.branches)
	m.branches[msg.to] = e.next
	return e.answer, m
}

// effects returns the sum over all branches.
func (m model) effects() (sum Effects) {
	for _, s := range m.branches {
		e := m.protocol.of(s)
		sum.Held += e.Held
		sum.Confirmed += e.Confirmed
	}
	return sum
}

func (m model) units() int64 {
	e := m.effects()
	return e.Held + e.Confirmed
}

// A Protocol is a protocol whose messages are played.
type Protocol string

// The protocols.
const (
	Saga  Protocol = "saga" // do and undo
	TCC   Protocol = "tcc"  // try, confirm and cancel
	TwoPC Protocol = "2pc"  // prepare, commit and rollback: as TCC by other names
)

// Protocols returns all protocols.
func Protocols() []Protocol { return []Protocol{Saga, TCC, TwoPC} }

// A kind is the role of an operation, the same in all protocols.
type kind int

const (
	first   kind = iota // does the work that can be undone
	confirm             // makes it final
	undo                // reverses it
)

// operations are the operations of the kinds; a saga has no confirm.
var operations = map[Protocol][3]branch.Operation{
	Saga:  {branch.Do, "", branch.Undo},
	TCC:   {branch.Try, branch.Confirm, branch.Cancel},
	TwoPC: {branch.Prepare, branch.Commit, branch.Rollback},
}

// An answer is the meaning of a participant's answer.
type answer string

const (
	ok      answer = "done"     // 2xx
	no      answer = "refused"  // 409: it has not happened and never will
	not     answer = "not done" // anything but 2xx: a correct coordinator never sends it
	unheard answer = "unheard"  // neither 2xx nor 409: it may come again without its fault
)

// A state is the state of a branch at its participant.
type state int

const (
	unknown   state = iota // no message had an effect
	held                   // the first was done
	confirmed              // and made final
	undone                 // reversed, or prevented
	refused                // the business has refused the first
	states
)

func (s state) String() string {
	return [states]string{"unknown", "done", "confirmed", "undone", "refused"}[s]
}

// expected is the answer and the next state.
type expected struct {
	answer answer
	next   state
}

// table has the expected answers. In addition, the business refuses a first in state
// unknown if there is no room. It is not derived from any barrier.
var table = [states][3]expected{
	unknown:   {first: {ok, held}, confirm: {not, unknown}, undo: {ok, undone}},
	held:      {first: {ok, held}, confirm: {ok, confirmed}, undo: {ok, undone}},
	confirmed: {first: {ok, confirmed}, confirm: {ok, confirmed}, undo: {not, confirmed}},
	undone:    {first: {no, undone}, confirm: {not, undone}, undo: {ok, undone}},
	refused:   {first: {no, refused}, confirm: {not, refused}, undo: {ok, undone}},
}

// Effects are the units of an account.
type Effects struct {
	Held      int64 `json:"held"`      // by branches that are tried or prepared
	Confirmed int64 `json:"confirmed"` // by branches that are confirmed, committed or done
}

// of returns the effects of a branch of one unit in a state.
func (p Protocol) of(s state) Effects {
	switch {
	case s == confirmed, s == held && p == Saga:
		return Effects{Confirmed: 1}
	case s == held:
		return Effects{Held: 1}
	}
	return Effects{}
}

// A play is a list of messages about one account, sent one after the other, and then,
// optionally, two at once.
type play struct {
	protocol Protocol
	name     string // empty for a sequence that is one of all
	capacity int64
	script   []message
	twice    bool      // each message of the script is sent two times
	pair     []message // sent at once in the end; none, or two
}

// plays returns all plays of a protocol, with each pair rounds times.
func (p Protocol) plays(rounds int) (all []play) {
	for _, twice := range []bool{false, true} {
		for _, kinds := range p.sequences() {
			all = append(all, play{protocol: p, capacity: 1, script: messages(kinds), twice: twice})
		}
	}
	all = append(all, p.scenes()...)
	for _, c := range p.pairs() {
		all = append(all, slices.Repeat([]play{c}, rounds)...)
	}
	return all
}

// sequences returns all distinct sequences, from one message to all, of two firsts, one
// confirm and two undos, the shorter ones first. Sagas have no confirm.
func (p Protocol) sequences() (all [][]kind) {
	left := [3]int{first: 2, confirm: 1, undo: 2}
	if p == Saga {
		left[confirm] = 0
	}
	level := [][]kind{nil}
	for len(level) > 0 {
		var next [][]kind
		for _, sequence := range level {
			for k := range left {
				if count(sequence, kind(k)) < left[k] {
					next = append(next, append(slices.Clip(sequence), kind(k)))
				}
			}
		}
		all, level = append(all, next...), next
	}
	return all
}

func count(kinds []kind, k kind) (n int) {
	for _, other := range kinds {
		if other == k {
			n++
		}
	}
	return n
}

// messages returns plain messages to the only branch.
func messages(kinds []kind) (all []message) {
	for _, k := range kinds {
		all = append(all, message{kind: k})
	}
	return all
}

// pairs returns the pairs of messages that can be concurrent, in each state in which they
// can. Confirm and undo cannot: a coordinator decides for one of them.
func (p Protocol) pairs() (all []play) {
	for _, c := range []struct {
		before []kind
		pair   [2]kind
	}{
		{nil, [2]kind{first, first}},
		{nil, [2]kind{first, undo}},
		{nil, [2]kind{undo, undo}},
		{[]kind{first}, [2]kind{first, first}},
		{[]kind{first}, [2]kind{first, undo}},
		{[]kind{first}, [2]kind{undo, undo}},
		{[]kind{first}, [2]kind{first, confirm}},
		{[]kind{first}, [2]kind{confirm, confirm}},
	} {
		if p != Saga || c.pair[1] != confirm {
			all = append(all, play{protocol: p, name: "at once", capacity: 1, script: messages(c.before), pair: messages(c.pair[:])})
		}
	}
	return all
}

// scenes returns plays with several branches, or with variations of messages.
func (p Protocol) scenes() []play {
	x, y, z := key{branch: "x"}, key{branch: "y"}, key{branch: "z"}
	refusal := []message{{to: x, kind: first}, {to: y, kind: first}, {to: y, kind: first}, // there is no room
		{to: x, kind: undo}, {to: y, kind: first}, // now there is, but the answer remains
		{to: y, kind: undo}, {to: y, kind: undo}, {to: y, kind: first}, {to: z, kind: first}}
	if p != Saga {
		refusal = slices.Insert(refusal, 5, message{to: y, kind: confirm})
	}
	a, b, c := key{"a", "b"}, key{branch: "a"}, key{branch: "a/b"}
	return []play{
		{protocol: p, name: "a refusal is remembered", capacity: 1, script: refusal},
		{protocol: p, name: "branches and steps are apart", capacity: 3, script: []message{
			{to: a, kind: first}, {to: b, kind: first}, {to: c, kind: first}, {to: a, kind: undo},
			{to: b, kind: first}, {to: b, kind: undo}, {to: c, kind: first}, {to: c, kind: undo}}},
		{protocol: p, name: "another input under a key", capacity: 9, script: []message{
			{kind: first}, {kind: first, as: otherInput}, {kind: first}, {kind: undo}}},
		{protocol: p, name: "after its deadline", capacity: 1, script: []message{
			{kind: first, as: late}, {kind: first}, {kind: undo, as: late}, {kind: first}}},
		{protocol: p, name: "no branch", capacity: 1, script: []message{
			{kind: first, as: headless}, {kind: first}, {kind: undo, as: headless}, {kind: first}}},
	}
}
