package threepc

import (
	"errors"
	"fmt"
)

// A Model is a small world of which every schedule is gone through: every order of
// deliveries, every vote, every fault that it allows at every moment. A site may crash
// in the middle of what it sends, so that any part of it arrives.
type Model struct {
	Protocol     Protocol `json:"protocol"`
	Participants int      `json:"participants"` // 1 to 3
	Crashes      int      `json:"crashes"`      // at most so many sites crash, for good; if Asynchronous, they restart at once
	Partition    bool     `json:"partition"`    // the network may fall apart in two, once, for good
	// Asynchronous lets messages be delayed for any time, lost, repeated and overtaken,
	// and a site be taken for crashed at any moment. Otherwise a site is only suspected
	// if it has crashed, or is cut off, and nothing of it is on its way any more: delays
	// are bounded, and everybody waits for longer. Partition must be false then, because
	// the loss of any messages is a partition too, and nothing is said of who blocks.
	Asynchronous bool `json:"asynchronous"`
}

// Exploration is what every schedule of a model comes to.
type Exploration struct {
	Model  Model `json:"model"`
	Worlds int   `json:"worlds"` // that were seen
	// Split is the shortest schedule at whose end two sites have decided otherwise, a
	// line for each step; nil if there is none.
	Split []string `json:"split,omitempty"`
	// Blocked is the shortest schedule at whose end nothing can happen any more, short
	// of a repair, and a site that lives has not decided; nil if there is none.
	Blocked []string `json:"blocked,omitempty"`
	// Waiting is who has not decided there: "P1, P2".
	Waiting string `json:"waiting,omitempty"`
}

// maxWorlds bounds what an exploration may keep in memory.
const maxWorlds = 4_000_000

// Explore goes through a model, breadth first, so that what it finds is the shortest.
// It is an error if the model is too large, or not one.
func Explore(m Model) (*Exploration, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	x := &search{Model: m, seen: map[world]int32{}}
	split, blocked := int32(-1), int32(-1)
	err := x.walk(func(at int32, w *world, rests bool) {
		if split < 0 && w.split(m.shape().sites()) {
			split = at
		}
		if blocked < 0 && rests && !m.Asynchronous && w.undecided(m.shape()) != 0 {
			blocked = at
		}
	})
	if err != nil {
		return nil, err
	}
	result := &Exploration{Model: m, Worlds: len(x.nodes), Split: x.path(split), Blocked: x.path(blocked)}
	if blocked >= 0 {
		result.Waiting = m.shape().names(x.nodes[blocked].world.undecided(m.shape()))
	}
	return result, nil
}

func (m Model) shape() shape { return shape{m.Protocol, m.Participants} }

func (m Model) check() error {
	switch {
	case m.Protocol < TwoPhase || m.Protocol > Register:
		return fmt.Errorf("threepc: there is no %v", m.Protocol)
	case m.Participants < 1 || m.Participants > 3:
		return fmt.Errorf("threepc: a model has 1 to 3 participants, not %d", m.Participants)
	case m.Crashes < 0 || m.Crashes > m.Participants+1:
		return fmt.Errorf("threepc: %d crashes of %d sites", m.Crashes, m.Participants+1)
	case m.Asynchronous && m.Partition:
		return errors.New("threepc: an asynchronous network is as good as cut")
	case m.Asynchronous && m.Protocol == ThreePhase && m.Crashes > 0:
		return errors.New("threepc: sites of three-phase commit do not restart")
	}
	return nil
}

// search is an exploration under way.
type search struct {
	Model
	seen  map[world]int32
	nodes []node
}

// node is a world, and how it was come to.
type node struct {
	world  world
	parent int32
	choice choice
}

// walk visits every world once; in one that rests, nothing happens but further faults.
func (x *search) walk(visit func(at int32, w *world, rests bool)) error {
	x.visit(x.begin(), -1, choice{kind: begins})
	for at := int32(0); int(at) < len(x.nodes); at++ {
		if len(x.nodes) > maxWorlds {
			return fmt.Errorf("threepc: the model has more than %d worlds", maxWorlds)
		}
		moves := x.expand(at)
		visit(at, &x.nodes[at].world, moves == 0)
	}
	return nil
}

func (x *search) visit(w world, parent int32, c choice) {
	if _, known := x.seen[w]; known {
		return
	}
	x.seen[w] = int32(len(x.nodes))
	x.nodes = append(x.nodes, node{w, parent, c})
}

// expand goes on from a world, and says in how many ways it does so by itself, without
// a fault.
func (x *search) expand(at int32) (moves int) {
	w := x.nodes[at].world
	x.own(&w, func(c choice) {
		moves++
		next, sent := x.after(w, c)
		x.visit(next, at, c)
		if x.Asynchronous || int(w.crashes) >= x.Crashes || int(c.actor()) > x.Participants {
			return
		}
		// It crashes in the middle of what it sends: any part of it but all arrives.
		var to set
		for _, a := range sent {
			to |= only(a.to)
		}
		for told := to; told != 0; {
			told = (told - 1) & to
			half := c
			half.crashes, half.told = true, told
			next, _ := x.after(w, half)
			x.visit(next, at, half)
		}
	})
	x.faults(&w, func(c choice) {
		next, _ := x.after(w, c)
		x.visit(next, at, c)
	})
	return moves
}

// own is what happens without a fault.
func (x *search) own(w *world, do func(choice)) {
	w.each(func(a message) {
		do(choice{kind: delivers, message: a, yes: true})
		if a.kind == prepare && w.sites[a.to].phase == working {
			do(choice{kind: delivers, message: a})
		}
	})
	sh := x.shape()
	for s := range Site(sh.sites()) {
		if w.crashed.has(s) {
			continue
		}
		(sh.awaits(s, w.sites[s]) &^ w.sites[s].suspects).each(func(of Site) {
			if x.Asynchronous || w.apart(s, of) || w.crashed.has(of) && w.silent(of) {
				do(choice{kind: suspects, at: s, of: of})
			}
		})
	}
}

func (x *search) faults(w *world, do func(choice)) {
	sh := x.shape()
	if x.Partition && w.cut == 0 {
		all := set(1<<sh.sites()-1) &^ only(Coordinator)
		for side := all; side != 0; side = (side - 1) & all {
			do(choice{kind: cuts, side: side})
		}
	}
	if int(w.crashes) >= x.Crashes {
		return
	}
	for s := range Site(sh.participants + 1) {
		switch {
		case w.crashed.has(s):
		case x.Asynchronous:
			do(choice{kind: restarts, at: s})
		default:
			do(choice{kind: crashes, at: s})
		}
	}
}
