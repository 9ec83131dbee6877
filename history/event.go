package history

import (
	"time"

	"github.com/interlock-dev/interlock"
)

// Version is the version of the schema that this package writes and reads.
const Version = 1

// A Header opens a history and says where it comes from.
type Header struct {
	Version  int               `json:"interlock_history"`  // set by the writer
	Run      string            `json:"run,omitempty"`      // what was run, for people
	Seed     int64             `json:"seed,omitempty"`     // of its randomness; 0 if it had none
	Mode     string            `json:"mode,omitempty"`     // a variant, such as "broken"
	Backends map[string]string `json:"backends,omitempty"` // versions of the systems used, by name
	Revision string            `json:"revision,omitempty"` // of the code that ran
	Boot     string            `json:"boot,omitempty"`     // names the host's boot on whose clock Mono was read; set by the writer, empty if not known
}

// Kind says what an event tells about.
type Kind string

// The kinds. Invoke opens a call; OK, Fail, Info and Reject end the call whose
// Seq they carry as Cause; Grant and HandOver end an acquire or stand alone.
const (
	Invoke     Kind = "invoke"      // a call is about to be made
	OK         Kind = "ok"          // it was done
	Fail       Kind = "fail"        // it was certainly not done
	Info       Kind = "info"        // its outcome is not known
	Reject     Kind = "reject"      // a guard refused it; Seen is what the guard had seen
	Grant      Kind = "grant"       // Owner got Key with Token
	HandOver   Kind = "handover"    // the same, inside one process
	Renew      Kind = "renew"       // a lease was renewed
	Lose       Kind = "lose"        // the backend dropped a claim
	Expire     Kind = "expire"      // a claim ran out of time
	Release    Kind = "release"     // a holder gave a claim up
	FaultBegin Kind = "fault_begin" // Op names the fault, Key what it hits
	FaultEnd   Kind = "fault_end"
	State      Kind = "state" // Key has Value, or what Op says
)

// The operations that [CheckTokens] knows. Others may be used freely.
const (
	OpAcquire = "acquire" // ends with Grant, HandOver or OK, which carry Token and Owner
	OpEnter   = "enter"   // a guard's mark is raised to Token
	OpRead    = "read"    // Key is read under Token
	OpWrite   = "write"   // Key is written under Token
	OpRebase  = "rebase"  // an operator sets the mark of Key to Token, maybe lower
	OpMark    = "mark"    // of a State: what the mark of Key is before the run
)

// The operations that the other checkers know, and those of State events, which
// come before the run and, but for OpCapacity, may come again.
const (
	OpPublish = "publish" // a message, ID, is sent in the order of Key
	OpDeliver = "deliver" // it reaches a receiver, where it takes effect
	OpDrain   = "drain"   // all that was published before it began is to be delivered by its end
	OpAsk     = "ask"     // the effect ID is asked for
	OpEffect  = "effect"  // it takes place; as a State, it is there
	OpAdd     = "add"     // Amount is added to Key
	OpTake    = "take"    // Amount of Key is taken
	OpGive    = "give"    // Amount of Key is given back
	OpApply   = "apply"   // Key gets the state of version Stamp

	OpTotal    = "total"    // of a State: Key is Amount
	OpCapacity = "capacity" // of a State: there are Amount of Key
	OpVersion  = "version"  // of a State: Key has the state of version Stamp
	OpValue    = "value"    // of a State: Key has Value
)

// An Event is one line. What does not apply is left zero.
type Event struct {
	// Seq numbers the events of one writer from 1; set by the writer.
	Seq int64 `json:"seq"`
	// Mono is in nanoseconds, on a clock that all processes of the host share
	// and that never goes back; set by the writer.
	Mono int64 `json:"t_mono_ns"`
	// Wall is for people; nothing is ordered by it. Set by the writer.
	Wall time.Time `json:"t_wall"`
	// Lane is who did it: a worker, a server, an operator.
	Lane string `json:"lane"`
	Kind Kind   `json:"kind"`
	Op   string `json:"op,omitempty"`
	// Key is the lock's name, or the guarded resource.
	Key string `json:"key,omitempty"`
	// Owner is who holds the claim, where there is one.
	Owner string `json:"owner,omitempty"`
	// Token is the token of the claim under which it was done, also where no
	// guard looked at it; 0 if there was no claim.
	Token interlock.Token `json:"token,omitempty"`
	// Seen is, for a Reject, the token that the guard had seen.
	Seen interlock.Token `json:"seen,omitempty"`
	// Strict says of an Invoke that an equal token is to be refused too.
	Strict bool   `json:"strict,omitempty"`
	Value  string `json:"value,omitempty"` // read, written, or why
	// ID names a message or an effect: the same at each attempt.
	ID string `json:"id,omitempty"`
	// Amount is how much is added, taken or given back; of a read, the total.
	Amount int64 `json:"amount,omitempty"`
	// Stamp is the version of the state that is applied, or read.
	Stamp int64 `json:"stamp,omitempty"`
	// Cause is the Seq of the event of the same writer that led to this one.
	Cause int64 `json:"cause,omitempty"`
	// Src is where in the code, as dir/file.go:line.
	Src string `json:"src,omitempty"`

	// Writer tells merged histories apart: the index of the reader that the
	// event came from. It is not stored.
	Writer int `json:"-"`
}
