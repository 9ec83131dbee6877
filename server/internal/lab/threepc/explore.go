package threepc

// A Model is a small world whose schedules are all explored: every order of deliveries,
// every vote, every allowed fault at every moment. A site may crash while it sends, so
// that any part of its messages arrives.
type Model struct {
	Protocol     Protocol `json:"protocol"`
	Participants int      `json:"participants"` // 1 to 3
	Crashes      int      `json:"crashes"`      // most sites that crash, permanently; if Asynchronous, they restart at once
	Partition    bool     `json:"partition"`    // the network may split in two, once, permanently
	// Asynchronous allows any delay, loss, repetition and reordering of messages, and suspicion of
	// any site at any moment. Partition must then be false, because losses include partitions, and
	// blocking is not checked. Crashes of ThreePhase must be 0, because its sites do not restart. Otherwise delays are bounded, and timeouts are longer. A site is
	// only suspected if it has crashed or is cut off, and none of its messages is in flight.
	Asynchronous bool `json:"asynchronous"`
}

// Exploration is the result of exploring every schedule of a model.
type Exploration struct {
	Model  Model `json:"model"`
	Worlds int   `json:"worlds"` // that were visited
	// Split is the shortest schedule after which two sites have decided differently, one
	// line for each step; nil if there is none.
	Split []string `json:"split,omitempty"`
	// Blocked is the shortest schedule after which only a repair can change anything,
	// and a live site has not decided; nil if there is none.
	Blocked []string `json:"blocked,omitempty"`
	// Waiting lists the undecided sites there: "P1, P2".
	Waiting string `json:"waiting,omitempty"`
}

// Explore explores a model, breadth first, so that its schedules are the shortest.
func Explore(m Model) *Exploration {
	x := &search{Model: m, seen: map[world]int32{}}
	split, blocked := int32(-1), int32(-1)
	x.walk(func(at int32, w *world, rests bool) {
		if split < 0 && w.split(m.shape().sites()) {
			split = at
		}
		if blocked < 0 && rests && !m.Asynchronous && w.undecided(m.shape()) != 0 {
			blocked = at
		}
	})
	result := &Exploration{Model: m, Worlds: len(x.nodes), Split: x.path(split), Blocked: x.path(blocked)}
	if blocked >= 0 {
		result.Waiting = m.shape().names(x.nodes[blocked].world.undecided(m.shape()))
	}
	return result
}

func (m Model) shape() shape { return shape{m.Protocol, m.Participants} }

// search is a running exploration.
type search struct {
	Model
	seen  map[world]int32
	nodes []node
}

// node is a world and the step to it.
type node struct {
	world  world
	parent int32
	choice choice
}

// walk visits every world once; rests reports that only further faults can change it.
func (x *search) walk(visit func(at int32, w *world, rests bool)) {
	x.visit(x.begin(), -1, choice{kind: begins})
	for at := int32(0); int(at) < len(x.nodes); at++ {
		moves := x.expand(at)
		visit(at, &x.nodes[at].world, moves == 0)
	}
}

func (x *search) visit(w world, parent int32, c choice) {
	if _, known := x.seen[w]; known {
		return
	}
	x.seen[w] = int32(len(x.nodes))
	x.nodes = append(x.nodes, node{w, parent, c})
}

// expand adds the successors of a world, and returns the number of those without a
// fault.
func (x *search) expand(at int32) (moves int) {
	w := x.nodes[at].world
	x.own(&w, func(c choice) {
		moves++
		next, sent := x.after(w, c)
		x.visit(next, at, c)
		if x.Asynchronous || int(w.crashes) >= x.Crashes || int(c.actor()) > x.Participants {
			return
		}
		// It crashes while it sends: any part but all of its messages arrives.
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

// own calls do with each event that is not a fault.
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
