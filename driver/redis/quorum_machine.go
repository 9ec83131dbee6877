package redis

import (
	"time"

	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/backoff"
)

// This file decides what the answers of independent nodes mean: Redlock (Redis
// documentation, "Distributed Locks with Redis"), with its delayed restarts. It
// sends nothing, and reads no clock: instants are arguments.

// majorityOf is how many of n nodes a lock needs.
func majorityOf(n int) int { return n/2 + 1 }

// vote is one node's part in an attempt at a lock.
type vote int

const (
	voteSilent  vote = iota // no answer: it may have granted, but nobody may count that
	voteYoung               // it names the owner who asks, but may have forgotten another
	voteGranted             // it names the owner who asks
	voteRefused             // it names somebody else
)

// votes that a node may give who has been up for so long. Servers tell whole
// seconds, counted from a start that is rounded down.
func votes(up, delay time.Duration) vote {
	if delay > 0 && up < delay+time.Second {
		return voteYoung
	}
	return voteGranted
}

// ballot counts the votes of one attempt.
type ballot struct {
	nodes int
	of    [voteRefused + 1]int
}

func (b *ballot) count(v vote) { b.of[v]++ }

// standing is how an attempt stands.
type standing int

const (
	standsOpen    standing = iota // more votes may decide it
	standsWon                     // a majority granted it
	standsRefused                 // no majority is left, and an answer said so
	standsSilent                  // no majority is left, because too many nodes do not answer
)

func (b *ballot) standing() standing {
	need := majorityOf(b.nodes)
	failed := b.of[voteSilent] + b.of[voteYoung] + b.of[voteRefused]
	switch {
	case b.of[voteGranted] >= need:
		return standsWon
	case b.nodes-failed >= need:
		return standsOpen
	case b.of[voteSilent] > b.nodes-need:
		return standsSilent
	}
	return standsRefused
}

// What a node answers to a renewal, as in quorum_renew.lua.
const (
	answerOther    = 0 // somebody else holds the lock there
	answerExtended = 1 // it was the owner's, and lives on
	answerRelocked = 2 // it was nobody's, and is the owner's again
)

// renewal counts the answers to one round of renewing one lock.
type renewal struct{ nodes, extended, gone int }

// count takes the answer of a node that has been up long enough to vote, or is
// young. A young one that names the owner may have voted for another before it was
// restarted, who still counts on that, and has then been locked again.
func (r *renewal) count(answer int64, v vote) {
	switch {
	case answer != answerExtended:
		r.gone++
	case v == voteGranted:
		r.extended++
	}
}

// verdict is the result of a round of renewal.
type verdict int

const (
	verdictUnknown verdict = iota // too few answers: the lease is neither extended nor lost
	verdictKept
	verdictLost
)

// verdict asks for a majority that has been the owner's all the time. A node that
// is locked again counts from the next round on, if it is not young: while a
// majority was missing, somebody else may have held the lock and left.
func (r *renewal) verdict() verdict {
	need := majorityOf(r.nodes)
	switch {
	case r.extended >= need:
		return verdictKept
	case r.gone > r.nodes-need:
		return verdictLost
	}
	return verdictUnknown
}

// tolerated is how many failures in a row a node may have before it is left out,
// and probes how long it then is before one request tries it again.
const tolerated = 2

var probes = backoff.Policy{First: 200 * time.Millisecond, Max: 2 * time.Second}

// health is a circuit breaker for one node.
type health struct {
	failures int
	probe    boottime.Instant // when a node that is left out may be asked again
}

// ask tells whether the node may be asked now. The one request that tries a node
// again puts the next such try off, so that others do not wait for it meanwhile.
func (h *health) ask(now boottime.Instant, random float64) bool {
	if h.failures < tolerated {
		return true
	}
	if now < h.probe {
		return false
	}
	h.putOff(now, random)
	return true
}

// answered notes the outcome of a request.
func (h *health) answered(now boottime.Instant, ok bool, random float64) {
	if ok {
		*h = health{}
		return
	}
	h.failures++
	h.putOff(now, random)
}

func (h *health) putOff(now boottime.Instant, random float64) {
	h.probe = now.Add(probes.Delay(max(1, h.failures-tolerated+1), random))
}

// up reports whether requests are sent to the node as to any other.
func (h *health) up() bool { return h.failures < tolerated }
