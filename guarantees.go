package interlock

import (
	"fmt"
	"strings"
	"time"
)

// Guarantees are the promises of a driver, computed when it opens. The zero value of each field
// promises nothing. Package driver/drivertest tests every promise against the real system.
type Guarantees struct {
	Driver    string // the driver's name
	Class     Class
	TokenFrom string // where the counter comes from, for people
	Liveness  Liveness
	Clock     Clock
	Order     Order
	Wait      Wait

	// CrossProcess means that claims exclude each other between processes.
	CrossProcess bool
	// TokensSurvive lists the faults after which tokens still never decrease.
	TokensSurvive Faults
	// ExclusionSurvives lists the faults during which two processes still never believe that
	// they hold the same name. No driver lists HolderPause.
	ExclusionSurvives Faults
	// TTL is the lease duration of a claim without renewal, as the server granted it; 0 if
	// claims do not expire by time.
	TTL time.Duration
	// MinTTL and MaxTTL bound the TTL of a single claim. Both are 0 if all claims of a driver
	// share one TTL, as those of a session do.
	MinTTL, MaxTTL time.Duration
	// Blind is the maximum time for which a running holder may not notice that the backend
	// ended its claim before the TTL was over; 0 promises nothing.
	Blind time.Duration
	// Assumes names what was configured and could not be checked, and on which the promises
	// depend. It is for people; empty means nothing.
	Assumes string
}

// Class distinguishes advisory from fenced locks.
type Class int

const (
	// ClassUnstated promises nothing.
	ClassUnstated Class = iota
	// Advisory locks avoid duplicate work. They have no token.
	Advisory
	// Fenced locks carry a token that a guard can compare.
	Fenced
)

// String returns the class in lower case.
func (c Class) String() string { return nameOf(c, "unstated", "advisory", "fenced") }

// Liveness is what keeps a claim alive.
type Liveness int

const (
	// LivenessUnstated promises nothing.
	LivenessUnstated Liveness = iota
	// ServerTTL means that a key expires on the server unless it is renewed.
	ServerTTL
	// Session means that many claims share one session and end with it.
	Session
	// Connection means that the claim ends with its connection.
	Connection
	// ObservedLease means that other processes measure, on their own clocks, how long the lease
	// has not changed.
	ObservedLease
)

// String returns the liveness in lower case.
func (l Liveness) String() string {
	return nameOf(l, "unstated", "server ttl", "session", "connection", "observed lease")
}

// Clock is the clock that ends a claim.
type Clock int

const (
	// ClockUnstated promises nothing.
	ClockUnstated Clock = iota
	// ServerClock is the clock of the backend.
	ServerClock
	// ClientClock is the clock of the process that wants the claim.
	ClientClock
	// NoClock means that no clock takes part.
	NoClock
)

// String returns the clock in lower case.
func (c Clock) String() string { return nameOf(c, "unstated", "server", "client", "none") }

// Order is the order in which waiters are served.
type Order int

const (
	// OrderUnstated promises nothing.
	OrderUnstated Order = iota
	// Barging means that any waiter may be next.
	Barging
	// FIFO means that processes are served in the order in which the backend received their
	// requests. One that has lost its connection may be passed over until it has another.
	FIFO
)

// String returns the order in lower case.
func (o Order) String() string { return nameOf(o, "unstated", "barging", "fifo") }

// Wait is how a waiter learns that it is next.
type Wait int

const (
	// WaitUnstated promises nothing.
	WaitUnstated Wait = iota
	// Poll means that the waiter asks the backend again.
	Poll
	// Push means that the backend notifies the waiter.
	Push
)

// String returns the wait in lower case.
func (w Wait) String() string { return nameOf(w, "unstated", "poll", "push") }

func nameOf[T ~int](v T, names ...string) string {
	if int(v) < 0 || int(v) >= len(names) {
		return fmt.Sprintf("unknown(%d)", int(v))
	}
	return names[v]
}

// Faults is a set of faults.
type Faults uint16

const (
	// HolderPause means that the holder is paused for longer than its claim lasts.
	HolderPause Faults = 1 << iota
	// ServerCrash means that the backend is killed and restarted on its data.
	ServerCrash
	// Partition means that the holder cannot reach the backend.
	Partition
	// AsyncFailover means that a replica without the last writes takes over.
	AsyncFailover
	// DataLoss means that the backend's data is wiped or restored from a backup.
	DataLoss
	// ServerClockJump means that the backend's wall clock is stepped.
	ServerClockJump
	// OperatorDelete means that an operator deletes the lock's key.
	OperatorDelete
)

var faultNames = []string{"holder pause", "server crash", "partition", "async failover", "data loss",
	"server clock jump", "operator delete"}

// Has reports whether f contains all faults of other.
func (f Faults) Has(other Faults) bool { return f&other == other }

// String lists the faults, or returns "none".
func (f Faults) String() string {
	var names []string
	for i, n := range faultNames {
		if f.Has(1 << i) {
			names = append(names, n)
		}
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// Requirements are what a caller needs from a backend. The zero value requires nothing. They
// are checked when a lock is constructed, never later.
type Requirements struct {
	CrossProcess      bool
	Order             Order         // FIFO requires FIFO; Barging and zero require nothing
	Wait              Wait          // Push requires push; Poll and zero require nothing
	TokensSurvive     Faults        // every fault listed must be promised
	ExclusionSurvives Faults        // every fault listed must be promised
	MaxBlind          time.Duration // Blind must be promised and not longer; 0 requires nothing
}

// Check returns nil, or an [*UnmetError] that lists everything in r that g does not promise.
func (g Guarantees) Check(r Requirements) error {
	var unmet []string
	need := func(ok bool, format string, args ...any) {
		if !ok {
			unmet = append(unmet, fmt.Sprintf(format, args...))
		}
	}
	need(!r.CrossProcess || g.CrossProcess, "exclusion between processes is required")
	need(r.Order <= Barging || g.Order == r.Order, "%s order is required, %s is promised", r.Order, g.Order)
	need(r.Wait <= Poll || g.Wait == r.Wait, "waiting by %s is required, %s is promised", r.Wait, g.Wait)
	need(g.TokensSurvive.Has(r.TokensSurvive), "tokens may fall after: %s", r.TokensSurvive&^g.TokensSurvive)
	need(g.ExclusionSurvives.Has(r.ExclusionSurvives), "two holders may coexist after: %s",
		r.ExclusionSurvives&^g.ExclusionSurvives)
	need(r.MaxBlind == 0 || g.Blind > 0 && g.Blind <= r.MaxBlind,
		"a loss must be reported within %v, %v is promised (0 promises nothing)", r.MaxBlind, g.Blind)
	if len(unmet) == 0 {
		return nil
	}
	return &UnmetError{Driver: g.Driver, Unmet: unmet}
}
