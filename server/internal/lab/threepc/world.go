package threepc

// world is the state of all sites and the messages in flight at one instant. It is comparable. A
// schedule of a model is a path through worlds.
type world struct {
	sites   [modelSites]site
	net     [kinds][modelSites]set // to whom, by kind and sender
	crashed set
	cut     set // one side of a partition; empty if there is none
	crashes uint8
}

// modelSites is the most sites of a model: a coordinator, three participants and a register.
const modelSites = 5

// choice is a possible next event.
type choice struct {
	kind    choiceKind
	message message
	yes     bool
	at      Site // that crashes, restarts or suspects
	of      Site // that is suspected
	side    set  // of a cut
	crashes bool // the acting site crashes after its write, and
	told    set  // only these receive its messages; it sends one to each
}

// actor returns the site that takes the step.
func (c choice) actor() Site {
	if c.kind == delivers {
		return c.message.to
	}
	return c.at
}

type choiceKind uint8

const (
	begins choiceKind = iota
	delivers
	suspects
	crashes
	restarts
	cuts
)

// begin returns the world in which the coordinator has sent its first messages.
func (m Model) begin() world {
	w, _ := m.after(world{}, choice{kind: begins})
	return w
}

// after returns the world after a choice, and the messages sent.
func (m Model) after(w world, c choice) (world, []message) {
	sh := m.shape()
	me, e := c.actor(), event{kind: started}
	switch c.kind {
	case delivers:
		e = event{kind: received, message: c.message, yes: c.yes}
		if !m.Asynchronous {
			w.net[c.message.kind][c.message.from] &^= only(me)
		}
	case suspects:
		e = event{kind: suspected, of: c.of}
	case restarts:
		w.crashes++
		e.kind = restarted
	case crashes:
		w.crash(c.at)
		return w, nil
	case cuts:
		w.cut = c.side
		w.drop(func(a message) bool { return w.apart(a.from, a.to) })
		return w, nil
	}
	var sent []message
	w.sites[me], sent = sh.step(me, w.sites[me], e)
	for _, a := range sent {
		if (!c.crashes || c.told.has(a.to)) && !w.lost(a) && a.kind != done { // no site reacts to done
			w.net[a.kind][a.from] |= only(a.to)
		}
	}
	if c.crashes {
		w.crash(me)
	}
	return w, sent
}

func (w *world) crash(s Site) {
	w.crashed |= only(s)
	w.crashes++
	w.drop(func(a message) bool { return a.to == s })
}

// apart reports whether a partition separates two sites.
func (w *world) apart(a, b Site) bool { return w.cut.has(a) != w.cut.has(b) }

func (w *world) lost(a message) bool { return w.crashed.has(a.to) || w.apart(a.from, a.to) }

// drop removes messages in flight.
func (w *world) drop(which func(message) bool) {
	w.each(func(a message) {
		if which(a) {
			w.net[a.kind][a.from] &^= only(a.to)
		}
	})
}

func (w *world) each(do func(message)) {
	for k := range w.net {
		for from := range w.net[k] {
			w.net[k][from].each(func(to Site) { do(message{kind(k), Site(from), to}) })
		}
	}
}

// silent reports whether no message of a site is in flight.
func (w *world) silent(s Site) bool {
	for k := range w.net {
		if w.net[k][s] != 0 {
			return false
		}
	}
	return true
}

// split reports whether two sites have decided differently. The decision of a crashed site counts:
// its user may have acted on it.
func (w *world) split(sites int) bool {
	var both [2]bool
	for _, s := range w.sites[:sites] {
		both[0] = both[0] || s.phase == committed
		both[1] = both[1] || s.phase == aborted
	}
	return both[0] && both[1]
}

// undecided returns the live sites that have not decided.
func (w *world) undecided(sh shape) (waiting set) {
	for s := range Site(sh.participants + 1) {
		if !w.crashed.has(s) && !w.sites[s].phase.decided() {
			waiting |= only(s)
		}
	}
	return waiting
}
