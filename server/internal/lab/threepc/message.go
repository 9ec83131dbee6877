package threepc

import (
	"fmt"
	"math/bits"
)

// Protocol is one of those that are compared.
type Protocol int

const (
	// TwoPhase is two-phase commit with presumed abort, whose participants also ask
	// each other.
	TwoPhase Protocol = iota
	// ThreePhase is three-phase commit with the termination protocol: the first
	// participant that is left asks the others, and decides.
	ThreePhase
	// Register is two-phase commit whose decision is the first one that is offered to
	// a register, by whomever. The register is kept by a majority of something, and
	// here it is one site that does not crash.
	Register
)

// Protocols are all of them, in the order in which they are shown.
var Protocols = []Protocol{TwoPhase, ThreePhase, Register}

// String is the protocol's name, as reports have it.
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

// MarshalText is the name as well: JSON has it instead of a number.
func (p Protocol) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// Site is one of those that take part: 0 is the coordinator, 1 to n are participants,
// n+1 is the register if there is one.
type Site uint8

// Coordinator is the site that begins.
const Coordinator Site = 0

// shape is what all sites of a run have in common.
type shape struct {
	protocol     Protocol
	participants int
}

// maxSites is how many sites a set has room for.
const maxSites = 8

func (sh shape) sites() int {
	if sh.protocol == Register {
		return sh.participants + 2
	}
	return sh.participants + 1
}

func (sh shape) register() Site { return Site(sh.participants + 1) }

// name is how a site is shown: C, P1, P2, … and R.
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

// everybody is the participants.
func (sh shape) everybody() set { return set(1<<(sh.participants+1)-1) &^ only(Coordinator) }

// set is some of the sites.
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
	ask       // what do you know?
	uncertain // that I voted yes
	ready     // that everybody did
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
