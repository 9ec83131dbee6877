// Package drivertest is the conformance suite of drivers. It proves what a lock
// driver claims in its interlock.Guarantees, and what a fence owes, and only
// that; it says nothing about what user code does with a claim. A driver's own
// test opens the real system, fills in a harness and calls [RunFenced] or
// [RunAdvisory], then [RunWatcher], [RunBreaker] and, if it can, [RunBatch], and
// [RunFence] and [RunValues] for what its store can do.
package drivertest

import (
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// Harness tells the suite how to reach one driver and its backend. Every test
// of the suite calls it again, so that tests share nothing.
type Harness struct {
	// Bubble runs one test, normally test itself. The memory driver passes
	// synctest.Test.
	Bubble func(t *testing.T, test func(t *testing.T))
	// Start prepares a backend for one test; it cleans up by t.Cleanup. A test
	// that kills, wipes or pauses the server asks for one of its own by
	// exclusive. All others may share a running server, if each Start has a
	// namespace of its own there: they break only the paths of their drivers.
	Start func(t *testing.T, exclusive bool) Backend
	// TTL is the lease length with which Backend.Open opens drivers.
	TTL time.Duration
	// Heartbeat is how often a waiter of this driver makes sure that it has
	// not missed a push.
	Heartbeat time.Duration
	// DeadWaiter is the longest that a waiter whose process died at the head
	// of the queue holds up the next one after a release.
	DeadWaiter time.Duration
	// HandOvers is over how many hand-overs tokens are watched; 0 means 1000.
	// Only a driver that needs tens of milliseconds for each asks for fewer.
	HandOvers int
	// Names is how many locks one process holds at once; 0 means 200. Only a driver
	// that renews each lock by a request of its own asks for fewer.
	Names int
	// Without names what is not there. The tests that need it are left out;
	// whatever it does not name must be there.
	Without Ability
}

// Ability is a set of things that some tests need.
type Ability int

const (
	// Servers: there is a server to break, by Backend.Faults.
	Servers Ability = 1 << iota
	// LostReplies: the backend's faults are a ReplyDropper.
	LostReplies
	// Delays: the backend's faults are a Delayer.
	Delays
	// LostPushes: the backend pushes grants, and is a PushDropper.
	LostPushes
	// FIFO: the driver claims that order.
	FIFO
	// Tokens: the driver is fenced.
	Tokens
	// Inspection: the driver is a driver.Inspector.
	Inspection
	// Queue: the backend knows who waits. The Inspector shows them in order and
	// a Watcher tells when one comes. Without it a waiter asks again and again,
	// and tells Events.Waiting with Ahead -1 when it was first refused.
	Queue
	// Expiry: the Inspector tells when a holder expires. Without it
	// Contender.Expires is 0, as for claims that live with a connection.
	Expiry
	// Refuser: an Acquire with NoWait that is refused tells who holds. Without
	// it HeldError.Owner may be empty.
	Refuser
	// LoneBreaks: a Break takes one lock. Without it everything goes that the
	// holder's session has.
	LoneBreaks
	// Durable: values that were stored are there after the server was killed
	// and started again.
	Durable
	// Alone: no other test runs meanwhile, so that goroutines can be counted. A package
	// that counts them in its TestMain can do without.
	Alone

	// onPaths marks a test whose faults do not reach the server itself.
	onPaths
)

// Backend is one running backend.
type Backend interface {
	// Open opens the driver as a further process would, with its own
	// connections, by way of a path of its own that Faults and Crash can break.
	// It is closed by t.Cleanup. An error is the driver's, and fails the test
	// unless the server is out of reach.
	Open(t *testing.T) (driver.Fenced, error)
	// Crash cuts d off for good and without a goodbye, as if its process had
	// died. What the backend has of it stays until the backend drops it.
	Crash(t *testing.T, d driver.Fenced)
	// Residue lists what the backend keeps for name: holders and waiters,
	// whatever the layout. Counters that are meant to stay do not count.
	Residue(t *testing.T, name string) []string
	// Delete removes name's lock as an operator would, past every driver.
	Delete(t *testing.T, name string)
	// Faults is nil where there is no server to break (Without Servers).
	Faults() Faults
}

// Faults breaks the backend of one test, or the path to it. The server keeps
// its address throughout.
type Faults interface {
	// Kill ends the server with SIGKILL; Restart starts it again on its data.
	Kill()
	Restart()
	// Wipe kills the server and starts it on an empty data directory.
	Wipe()
	// Pause stops the server with SIGSTOP; Resume lets it go on.
	Pause()
	Resume()
	// Cut drops every byte in both directions without closing connections, and
	// refuses new ones; Heal ends it and closes what was cut.
	Cut()
	Heal()
}

// ReplyDropper is an extra ability of Faults.
type ReplyDropper interface {
	// DropReplies lets requests through and drops every byte of the answers,
	// until Heal.
	DropReplies()
}

// Delayer is an extra ability of Faults.
type Delayer interface {
	// Delay holds every byte back for so long, in both directions, until Heal.
	Delay(oneWay time.Duration)
}

// PushDropper is an extra ability of a Backend whose server pushes grants.
type PushDropper interface {
	// DropPushes makes d miss every push of a grant from now on, while its
	// requests are answered.
	DropPushes(t *testing.T, d driver.Fenced)
}
