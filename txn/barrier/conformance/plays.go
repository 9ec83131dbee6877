package conformance

import "slices"

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
