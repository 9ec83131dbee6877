// Package drivertest is the conformance suite of drivers. It tests what a lock driver
// claims in its interlock.Guarantees and the contract of a fence. It does not test
// user code that holds a claim. A driver's own test starts the real system, fills in
// a harness and calls [RunFenced] or [RunAdvisory]. Then it calls [RunWatcher], [RunBreaker]
// and, if the driver implements it, [RunBatch]. For its store it calls [RunFence], [RunValues]
// and the like.
package drivertest

import (
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// Harness gives the suite access to one driver and its backend. Every test starts a
// backend of its own, so tests share nothing.
type Harness struct {
	// Bubble runs one test, normally test itself. The memory driver passes
	// synctest.Test.
	Bubble func(t *testing.T, test func(t *testing.T))
	// Start prepares a backend for one test and registers its clean-up with
	// t.Cleanup. If exclusive is set, the test kills, wipes or pauses the server.
	// Other tests break only the paths of their drivers and may share a server, if
	// each Start has its own namespace.
	Start func(t *testing.T, exclusive bool) Backend
	// TTL is the lease duration of the drivers that Backend.Open opens.
	TTL time.Duration
	// Heartbeat is the interval at which a waiter of this driver checks for a
	// missed push.
	Heartbeat time.Duration
	// DeadWaiter bounds the time for which a crashed waiter at the head of the
	// queue delays the next grant after a release.
	DeadWaiter time.Duration
	// HandOvers is the number of hand-overs over which tokens are checked; 0 means
	// 1000. Only a driver that needs tens of milliseconds for each sets fewer.
	HandOvers int
	// Names is the number of locks that one process holds at once; 0 means 200. Only
	// a driver that renews each lock by its own request sets fewer.
	Names int
	// Without lists the abilities that are absent. The tests that need them are
	// skipped. Every other ability must be present.
	Without Ability
}

// Ability is a set of features that some tests need.
type Ability int

const (
	// Servers: there is a server that Backend.Faults can break.
	Servers Ability = 1 << iota
	// LostReplies: the backend's faults are a ReplyDropper.
	LostReplies
	// Delays: the backend's faults are a Delayer.
	Delays
	// LostPushes: the backend pushes grants, and is a PushDropper.
	LostPushes
	// FIFO: the driver claims FIFO order.
	FIFO
	// Tokens: the driver is fenced.
	Tokens
	// Inspection: the driver is a driver.Inspector.
	Inspection
	// Queue: the backend knows the waiters. The Inspector shows them in order and a
	// Watcher reports each new one. Without it a waiter polls, and reports
	// Events.Waiting with Ahead -1 when it is first refused.
	Queue
	// Expiry: the Inspector reports when a holder expires. Without it
	// Contender.Expires is 0, as for claims that live with a connection.
	Expiry
	// Refuser: an Acquire with NoWait that is refused reports the holder. Without
	// it HeldError.Owner may be empty.
	Refuser
	// LoneBreaks: a Break ends one lock. Without it a Break ends all locks of the
	// holder's session.
	LoneBreaks
	// Durable: stored values survive a kill and restart of the server.
	Durable
	// Alone: no other test runs at the same time, so goroutines can be counted. A
	// package that counts them in its TestMain does not need it.
	Alone

	// onPaths marks a test whose faults do not reach the server itself.
	onPaths
)

// Backend is one running backend.
type Backend interface {
	// Open opens the driver as a further process would, with its own connections,
	// over its own path that Faults and Crash can break. t.Cleanup closes it. An
	// error is the driver's, and fails the test unless the server is unreachable.
	Open(t *testing.T) (driver.Fenced, error)
	// Crash cuts d off permanently, without closing its connections, as if its
	// process had died. Its state stays until the backend removes it.
	Crash(t *testing.T, d driver.Fenced)
	// Residue lists the holders and waiters that the backend stores for name, in
	// any layout. It does not list counters that are meant to stay.
	Residue(t *testing.T, name string) []string
	// Delete removes name's lock as an operator would, past every driver.
	Delete(t *testing.T, name string)
	// Faults is nil if there is no server to break (Without Servers).
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
	// Pause stops the server with SIGSTOP; Resume continues it.
	Pause()
	Resume()
	// Cut drops all bytes in both directions without closing connections, and
	// refuses new connections. Heal ends it and closes the cut connections.
	Cut()
	Heal()
}

// ReplyDropper is an optional interface of Faults.
type ReplyDropper interface {
	// DropReplies forwards requests and drops all bytes of the replies, until Heal.
	DropReplies()
}

// Delayer is an optional interface of Faults.
type Delayer interface {
	// Delay delays every byte by oneWay, in both directions, until Heal.
	Delay(oneWay time.Duration)
}

// PushDropper is an optional interface of a Backend whose server pushes grants.
type PushDropper interface {
	// DropPushes makes d miss every later push of a grant, while its requests are
	// answered.
	DropPushes(t *testing.T, d driver.Fenced)
}
