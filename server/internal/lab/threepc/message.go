package threepc

import (
	"fmt"
	"math/bits"
)

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
