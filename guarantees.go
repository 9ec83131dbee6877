package interlock

import (
	"fmt"
	"strings"
	"time"
)

// Guarantees is what a driver promises about itself, computed when it opens.
// Every field is positive: the zero value promises nothing. What is claimed
// here is tested by driver/drivertest against the real system.
type Guarantees struct {
	Driver    string // the driver's name
	Class     Class
	TokenFrom string // where the counter comes from, for people
	Liveness  Liveness
	Clock     Clock
	Order     Order
	Wait      Wait

	// CrossProcess: claims exclude each other between processes.
	CrossProcess bool
	// TokensSurvive lists the faults after which tokens still never fall.
	TokensSurvive Faults
	// ExclusionSurvives lists the faults during which two holders still never
	// believe to hold one name at once. HolderPause is in no driver's list.
	ExclusionSurvives Faults
	// TTL is how long a claim lives without renewal, as the server granted it;
	// 0 if it does not live by time.
	TTL time.Duration
	// MinTTL and MaxTTL bound the TTL that one claim may have of its own; both are 0
	// if all claims of a driver share one, as those of a session do.
	MinTTL, MaxTTL time.Duration
	// Blind is the longest time a running holder may not know that the backend
	// dropped its claim before the TTL was over; 0 promises nothing.
	Blind time.Duration
	// Assumes is what the promises rest on that was declared and could not be
	// checked, for people; empty if there is nothing.
	Assumes string
}

// Class tells a lock that saves work from one that can be guarded.
type Class int

const (
	// ClassUnstated promises nothing.
	ClassUnstated Class = iota
	// Advisory locks save duplicate work. They have no token.
	Advisory
	// Fenced locks carry a token that a guard can order.
	Fenced
)

// String is the class in lower case.
func (c Class) String() string { return nameOf(c, "unstated", "advisory", "fenced") }

// Liveness says what keeps a claim alive.
type Liveness int

const (
	// LivenessUnstated promises nothing.
	LivenessUnstated Liveness = iota
	// ServerTTL: a key expires on the server unless renewed.
	ServerTTL
	// Session: many claims live and die with one session.
	Session
	// Connection: the claim lives as long as a connection.
	Connection
	// ObservedLease: others judge by their own clocks how long nothing changed.
	ObservedLease
)

// String is the liveness in lower case.
func (l Liveness) String() string {
	return nameOf(l, "unstated", "server ttl", "session", "connection", "observed lease")
}

// Clock says whose clock ends a claim.
type Clock int

const (
	// ClockUnstated promises nothing.
	ClockUnstated Clock = iota
	// ServerClock: the backend's.
	ServerClock
	// ClientClock: that of the process that wants the claim.
	ClientClock
	// NoClock: no clock takes part.
	NoClock
)

// String is the clock in lower case.
func (c Clock) String() string { return nameOf(c, "unstated", "server", "client", "none") }

// Order says who comes next.
type Order int

const (
	// OrderUnstated promises nothing.
	OrderUnstated Order = iota
	// Barging: any waiter may come next.
	Barging
	// FIFO: processes are served in the order in which the backend heard them.
	FIFO
)

// String is the order in lower case.
func (o Order) String() string { return nameOf(o, "unstated", "barging", "fifo") }

// Wait says how a waiter learns that it is its turn.
type Wait int

const (
	// WaitUnstated promises nothing.
	WaitUnstated Wait = iota
	// Poll: it asks again.
	Poll
	// Push: the backend tells it.
	Push
)

// String is the wait in lower case.
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
	// HolderPause: the holder stops for longer than its claim lives.
	HolderPause Faults = 1 << iota
	// ServerCrash: the backend is killed and restarted on its data.
	ServerCrash
	// Partition: the holder cannot reach the backend.
	Partition
	// AsyncFailover: a replica without the last writes takes over.
	AsyncFailover
	// DataLoss: the backend's data is wiped or restored from a backup.
	DataLoss
	// ServerClockJump: the backend's wall clock is stepped.
	ServerClockJump
	// OperatorDelete: somebody deletes the lock's key.
	OperatorDelete
)

var faultNames = []string{"holder pause", "server crash", "partition", "async failover", "data loss",
	"server clock jump", "operator delete"}

// Has reports whether all of other is in f.
func (f Faults) Has(other Faults) bool { return f&other == other }

// String lists the faults, or says "none".
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

// Requirements is what a caller must have. The zero value requires nothing.
// It is checked when a lock is constructed, never later.
type Requirements struct {
	CrossProcess      bool
	Order             Order         // FIFO requires FIFO; Barging and zero require nothing
	Wait              Wait          // Push requires push; Poll and zero require nothing
	TokensSurvive     Faults        // every fault listed must be promised
	ExclusionSurvives Faults        // every fault listed must be promised
	MaxBlind          time.Duration // Blind must be promised and not longer; 0 requires nothing
}

// Check returns nil, or an [*UnmetError] that lists everything in r that g does
// not promise.
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
