package redis

import (
	"time"

	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/backoff"
)

// This file interprets the answers of independent nodes: Redlock (Redis
// documentation, "Distributed Locks with Redis"), with its delayed restarts. It
// performs no I/O and reads no clock: instants are arguments.

// majorityOf returns how many of n nodes a lock needs.
func majorityOf(n int) int { return n/2 + 1 }

// vote is one node's part in an attempt at a lock.
type vote int

const (
	voteSilent  vote = iota // no answer: the node may have granted, but that cannot count
	voteYoung               // it names the requesting owner, but may have forgotten another
	voteGranted             // it names the requesting owner
	voteRefused             // it names another owner
)

// votes returns the vote that counts of a node that has been up for so long.
// Servers report whole seconds since a start that is rounded down.
func votes(up, delay time.Duration) vote {
	if delay > 0 && up < delay+time.Second {
		return voteYoung
	}
	return voteGranted
}

// tally counts the votes of one attempt.
type tally struct {
	nodes int
	of    [voteRefused + 1]int
}

func (b *tally) count(v vote) { b.of[v]++ }

// decision is the state of an attempt.
type decision int

const (
	decisionOpen    decision = iota // more votes may decide it
	decisionWon                     // a majority granted it
	decisionRefused                 // no majority is possible, and an answer was a refusal
	decisionSilent                  // no majority is possible, because too many nodes do not answer
)

func (b *tally) decision() decision {
	need := majorityOf(b.nodes)
	failed := b.of[voteSilent] + b.of[voteYoung] + b.of[voteRefused]
	switch {
	case b.of[voteGranted] >= need:
		return decisionWon
	case b.nodes-failed >= need:
		return decisionOpen
	case b.of[voteSilent] > b.nodes-need:
		return decisionSilent
	}
	return decisionRefused
}

// Answers of a node to a renewal, as in quorum_renew.lua.
const (
	answerOther    = 0 // another owner holds the lock there
	answerExtended = 1 // the owner still held it, and it is extended
	answerRelocked = 2 // it was free, and the owner holds it again
)

// renewal counts the answers to one round of renewing one lock.
type renewalTally struct{ nodes, extended, gone int }

// count counts the answer of a node whose vote is granted or young. A young node that names the
// owner may have voted for another owner before its restart, and been locked again afterwards.
// The other owner still relies on that vote.
func (r *renewalTally) count(answer int64, v vote) {
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

// verdict requires a majority that the owner held all the time. A node that is
// locked again counts from the next round on, if it is not young: without a
// majority, another owner may have held and released the lock.
func (r *renewalTally) verdict() verdict {
	need := majorityOf(r.nodes)
	switch {
	case r.extended >= need:
		return verdictKept
	case r.gone > r.nodes-need:
		return verdictLost
	}
	return verdictUnknown
}

// tolerated is how many failures in a row a node may have before it is skipped. probes is the
// time until one request tries it again.
const tolerated = 2

var probes = backoff.Policy{First: 200 * time.Millisecond, Max: 2 * time.Second}

// health is a circuit breaker for one node.
type health struct {
	failures int
	probe    boottime.Instant // when a skipped node may be asked again
}

// ask reports whether the node may be asked now. A request that tries a skipped
// node postpones the next try, so that others do not wait for it meanwhile.
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

// answered records the outcome of a request.
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

// up reports whether the node is not skipped.
func (h *health) up() bool { return h.failures < tolerated }
