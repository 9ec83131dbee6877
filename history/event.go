package history

import (
	"time"

	"github.com/interlock-dev/interlock"
)

// Version is the version of the schema that this package writes and reads.
const Version = 1

// A Header opens a history and describes its origin.
type Header struct {
	Version  int               `json:"interlock_history"`  // set by the writer
	Run      string            `json:"run,omitempty"`      // the run, for people
	Seed     int64             `json:"seed,omitempty"`     // of its randomness; 0 if it had none
	Mode     string            `json:"mode,omitempty"`     // a variant, such as "broken"
	Backends map[string]string `json:"backends,omitempty"` // versions of the systems used, by name
	Revision string            `json:"revision,omitempty"` // of the code that ran
	Boot     string            `json:"boot,omitempty"`     // id of the host's boot, whose clock gives Mono; set by the writer, empty if not known
}

// Kind is the kind of an event.
type Kind string

// The kinds. Invoke opens a call; OK, Fail, Info and Reject end the call whose
// Seq is their Cause; Grant and HandOver end an acquire or stand alone.
const (
	Invoke     Kind = "invoke"      // a call is about to be made
	OK         Kind = "ok"          // it was done
	Fail       Kind = "fail"        // it was definitely not done
	Info       Kind = "info"        // its outcome is unknown
	Reject     Kind = "reject"      // a guard rejected it; Seen is the guard's mark
	Grant      Kind = "grant"       // Owner acquired Key with Token
	HandOver   Kind = "handover"    // the same, inside one process
	Renew      Kind = "renew"       // a lease was renewed
	Lose       Kind = "lose"        // the backend dropped a claim
	Expire     Kind = "expire"      // a claim expired
	Release    Kind = "release"     // a holder released a claim
	FaultBegin Kind = "fault_begin" // Op names the fault, Key its target
	FaultEnd   Kind = "fault_end"
	State      Kind = "state" // Key has Value, or the state by Op
)

var kinds = []Kind{Invoke, OK, Fail, Info, Reject, Grant, HandOver, Renew, Lose, Expire, Release, FaultBegin, FaultEnd, State}

// The operations that [CheckTokens] knows. Others may be used freely.
const (
	OpAcquire = "acquire" // ends with Grant, HandOver or OK, which carry Token and Owner
	OpEnter   = "enter"   // a guard's mark is raised to Token
	OpRead    = "read"    // Key is read under Token
	OpWrite   = "write"   // Key is written under Token
	OpRebase  = "rebase"  // an operator sets the mark of Key to Token, maybe lower
	OpMark    = "mark"    // of a State: the mark of Key before the run
)

// The operations that the other checkers know, and those of State events. A State
// comes before the run; all but OpCapacity may come again.
const (
	OpPublish = "publish" // a message, ID, is sent in the order of Key
	OpDeliver = "deliver" // it reaches a receiver, where it takes effect
	OpDrain   = "drain"   // all messages published before it began are to be delivered by its end
	OpAsk     = "ask"     // the effect ID is requested
	OpEffect  = "effect"  // it happens; as a State, it is there
	OpAdd     = "add"     // Amount is added to Key
	OpTake    = "take"    // Amount of Key is taken
	OpGive    = "give"    // Amount of Key is given back
	OpApply   = "apply"   // Key gets the state of version Stamp

	OpTotal    = "total"    // of a State: Key is Amount
	OpCapacity = "capacity" // of a State: the capacity of Key is Amount
	OpVersion  = "version"  // of a State: Key has the state of version Stamp
	OpValue    = "value"    // of a State: Key has Value
)

// An Event is one line. Fields that do not apply are zero.
type Event struct {
	// Seq numbers the events of one writer from 1; set by the writer.
	Seq int64 `json:"seq"`
	// Mono is in nanoseconds, on a clock that all processes of the host share
	// and that never goes back; set by the writer.
	Mono int64 `json:"t_mono_ns"`
	// Wall is for people; no order depends on it. Set by the writer.
	Wall time.Time `json:"t_wall"`
	// Lane is the actor: a worker, a server, an operator.
	Lane string `json:"lane"`
	Kind Kind   `json:"kind"`
	Op   string `json:"op,omitempty"`
	// Key is the lock's name, or the guarded resource.
	Key string `json:"key,omitempty"`
	// Owner is the holder of the claim; empty if there is none.
	Owner string `json:"owner,omitempty"`
	// Token is the token of the claim under which it was done, even if no guard
	// checked it; 0 if there was no claim.
	Token interlock.Token `json:"token,omitempty"`
	// Seen is, for a Reject, the token that the guard had seen.
	Seen interlock.Token `json:"seen,omitempty"`
	// Strict means that the guard also rejects an equal token; for an Invoke.
	Strict bool   `json:"strict,omitempty"`
	Value  string `json:"value,omitempty"` // read or written, or the reason
	// ID names a message or an effect: the same at each attempt.
	ID string `json:"id,omitempty"`
	// Amount is the amount added, taken or given back; for a read, the total.
	Amount int64 `json:"amount,omitempty"`
	// Stamp is the version of the state that is applied, or read.
	Stamp int64 `json:"stamp,omitempty"`
	// Cause is the Seq of the event of the same writer that led to this one.
	Cause int64 `json:"cause,omitempty"`
	// Src is the place in the code, as dir/file.go:line.
	Src string `json:"src,omitempty"`

	// Writer distinguishes merged histories: the index of the event's reader.
	// It is not stored.
	Writer int `json:"-"`
}
