package threepc

import (
	"fmt"
	"math/bits"
	"slices"
)

// phase is the state of a site. Every phase but working survives a crash.
type phase uint8

const (
	working phase = iota // has not voted; a coordinator has not decided
	prepared
	preCommitted
	committed
	aborted
)

var phaseNames = [...]string{"working", "prepared", "pre-committed", "committed", "aborted"}

func (p phase) String() string { return phaseNames[p] }

func (p phase) decided() bool { return p == committed || p == aborted }

// round is the question whose answers a site collects, as the coordinator or in its place.
type round uint8

const (
	noRound round = iota
	votes
	acks
	states  // of the remaining sites
	offered // the answer of the register
)

// site is the state of a site. It is comparable.
type site struct {
	phase    phase
	round    round
	suspects set  // of a crash
	answered set  // in this round
	ready    bool // a site is pre-committed; or the offer is to commit
}

// event is an event at a site.
type event struct {
	kind    eventKind
	message message
	yes     bool // its vote, if it is asked to vote
	of      Site // that does not answer
}

type eventKind uint8

const (
	started eventKind = iota
	received
	suspected
	restarted // after a crash, which loses what is not durable
)

// step returns the state of a site after an event, and the messages that it sends. Its state is
// durable before anything is sent.
func (sh shape) step(me Site, s site, e event) (site, []message) {
	t := &turn{shape: sh, me: me, site: s}
	switch e.kind {
	case started:
		t.open(votes, prepare)
	case received:
		t.receive(e.message, e.yes)
	case suspected:
		t.suspect(e.of)
	case restarted:
		t.restart()
	}
	return t.site, t.sent
}

// awaits returns the sites that a site waits for, none once it has decided.
func (sh shape) awaits(me Site, s site) set {
	switch {
	case s.phase.decided() || sh.protocol == Register && me == sh.register():
		return 0
	case s.round == offered:
		return only(sh.register())
	case s.round != noRound:
		return sh.audience(me, s) &^ s.answered
	case me == Coordinator:
		return 0
	case sh.protocol == Register && s.suspects.has(Coordinator):
		return only(sh.register())
	case sh.protocol == ThreePhase:
		return only(sh.leader(s))
	}
	return only(Coordinator)
}

// audience returns the sites that a site asks when it coordinates.
func (sh shape) audience(me Site, s site) set { return sh.everybody() &^ only(me) &^ s.suspects }

// leader returns the first unsuspected site: the coordinator or its replacement.
func (sh shape) leader(s site) Site {
	for l := Coordinator; ; l++ {
		if !s.suspects.has(l) {
			return l
		}
	}
}

// turn is one step of one site.
type turn struct {
	shape
	site
	me   Site
	sent []message
}

func (t *turn) send(k kind, to set) {
	to.each(func(s Site) { t.sent = append(t.sent, message{k, t.me, s}) })
}

// open begins a round.
func (t *turn) open(r round, question kind) {
	t.round, t.answered, t.ready = r, 0, false
	t.send(question, t.audience(t.me, t.site))
	t.conclude()
}

// answer records an answer of a round.
func (t *turn) answer(r round, from Site) {
	if t.round != r || t.phase.decided() {
		return
	}
	t.answered |= only(from)
	t.conclude()
}

// conclude ends a round if each site has answered or is suspected.
func (t *turn) conclude() {
	if t.audience(t.me, t.site)&^t.answered != 0 {
		return
	}
	switch {
	case t.round == votes && t.protocol == Register:
		t.offer(true)
	case t.round == votes && t.protocol == TwoPhase, t.round == acks:
		t.decide(committed)
	case t.round == votes, t.round == states && (t.ready || t.phase == preCommitted):
		t.phase = preCommitted
		t.open(acks, preCommit)
	case t.round == states:
		t.decide(aborted)
	}
}

// decide writes the decision and sends it.
func (t *turn) decide(p phase) {
	t.phase, t.round, t.answered, t.ready = p, noRound, 0, false
	t.send(decisionOf(p), t.everybody()&^only(t.me))
}

func decisionOf(p phase) kind {
	if p == committed {
		return commit
	}
	return abort
}

func (t *turn) offer(toCommit bool) {
	t.round, t.answered, t.ready = offered, 0, toCommit
	k := offerAbort
	if toCommit {
		k = offerCommit
	}
	t.send(k, only(t.register()))
}

// models are the models of a report. Each number of crashes includes all sites.
var models = []Model{
	{Protocol: TwoPhase, Participants: 2, Crashes: 1},
	{Protocol: TwoPhase, Participants: 3, Crashes: 4},
	{Protocol: TwoPhase, Participants: 2, Crashes: 1, Partition: true},
	{Protocol: TwoPhase, Participants: 3, Partition: true},
	{Protocol: TwoPhase, Participants: 2, Crashes: 3, Asynchronous: true},
	{Protocol: TwoPhase, Participants: 3, Crashes: 1, Asynchronous: true},
	{Protocol: ThreePhase, Participants: 2, Crashes: 3},
	{Protocol: ThreePhase, Participants: 3, Crashes: 4},
	{Protocol: ThreePhase, Participants: 2, Partition: true},
	{Protocol: ThreePhase, Participants: 3, Partition: true},
	{Protocol: ThreePhase, Participants: 2, Asynchronous: true},
	{Protocol: Register, Participants: 2, Crashes: 3},
	{Protocol: Register, Participants: 3, Crashes: 4},
	{Protocol: Register, Participants: 2, Crashes: 1, Partition: true},
	{Protocol: Register, Participants: 3, Partition: true},
	{Protocol: Register, Participants: 2, Crashes: 2, Asynchronous: true},
}

// logs records one crash of the coordinator, with all votes and before any message, under
// two protocols.
func (r *Report) logs() {
	for p, log := range map[Protocol]*[]string{TwoPhase: &r.Blocking, ThreePhase: &r.Deciding} {
		// It sends a question to each, and has an answer from each.
		crash := Crash{Site: Coordinator, Action: 2*r.Participants + 1}
		*log = Simulate(Scenario{Protocol: p, Participants: r.Participants, Steady: true, Crashes: []Crash{crash}, Log: true}).Log
	}
}

// model returns the exploration of one of [models].
func (r *Report) model(m Model) *Exploration { return r.Models[slices.Index(models, m)] }

// Protocol is a commit protocol.
type Protocol int

const (
	// TwoPhase is two-phase commit with presumed abort, whose participants also ask each other.
	TwoPhase Protocol = iota
	// ThreePhase is three-phase commit with the termination protocol: the first remaining
	// participant asks the others, and decides.
	ThreePhase
	// Register is two-phase commit whose decision is the first one offered to a register, by any
	// site. A majority of servers would keep the register; here it is one site that does not crash.
	Register
)

// Protocols are all protocols, in the order of reports.
var Protocols = []Protocol{TwoPhase, ThreePhase, Register}

// String returns the protocol's name in reports.
func (p Protocol) String() string {
	switch p {
	case TwoPhase:
		return "2PC"
	case ThreePhase:
		return "3PC"
	case Register:
		return "2PC + register"
	}
	return fmt.Sprintf("protocol %d", int(p))
}

// MarshalText returns the name, for JSON.
func (p Protocol) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// Site is a process of a run: 0 is the coordinator, 1 to n are participants, n+1 is the register if
// there is one.
type Site uint8

// Coordinator is the site that begins.
const Coordinator Site = 0

// shape is the protocol and the size of a run.
type shape struct {
	protocol     Protocol
	participants int
}

// maxSites is the capacity of a set.
const maxSites = 8

func (sh shape) sites() int {
	if sh.protocol == Register {
		return sh.participants + 2
	}
	return sh.participants + 1
}

func (sh shape) register() Site { return Site(sh.participants + 1) }

// name returns the name of a site in reports: C, P1, P2, … and R.
func (sh shape) name(s Site) string {
	switch {
	case s == Coordinator:
		return "C"
	case int(s) > sh.participants:
		return "R"
	}
	return fmt.Sprintf("P%d", s)
}

func (sh shape) names(s set) string {
	text := ""
	s.each(func(member Site) {
		if text != "" {
			text += ", "
		}
		text += sh.name(member)
	})
	return text
}

// everybody returns the participants.
func (sh shape) everybody() set { return set(1<<(sh.participants+1)-1) &^ only(Coordinator) }

// set is a set of sites.
type set uint8

func only(s Site) set { return 1 << s }

func (s set) has(member Site) bool { return s&only(member) != 0 }

func (s set) each(do func(Site)) {
	for rest := s; rest != 0; rest &= rest - 1 {
		do(Site(bits.TrailingZeros8(uint8(rest))))
	}
}

// kind of a message.
type kind uint8

const (
	prepare kind = iota
	yes
	no
	preCommit
	acked
	commit
	abort
	done
	ask       // for the state of the receiver
	uncertain // answer to ask: voted yes
	ready     // answer to ask: all voted yes
	offerCommit
	offerAbort
	kinds
)

var kindNames = [kinds]string{"prepare", "yes", "no", "pre-commit", "ack", "commit", "abort", "done", "ask", "prepared", "pre-committed", "offer commit", "offer abort"}

func (k kind) String() string { return kindNames[k] }

// message is on its way from one site to another.
type message struct {
	kind     kind
	from, to Site
}
