package rehearsal

import (
	"errors"

	"github.com/interlock-dev/interlock/txn/branch"
)

// A Plot is one way in which things go wrong. K is a kit's kind of finding.
type Plot[K ~string] struct {
	Words   string
	Kind    K                   // of what is found then
	Name    string              // of the step or branch of which it is found
	Alone   bool                // it alone is called: the world is looked at around it
	Fate    func(d Deed) Mishap // of each call; nil is none
	Tardy   bool                // the time of what is held is over, and swept, before it is confirmed
	Crash   int                 // at which point the first coordinator does; 0 is at none
	Abandon bool                // nobody runs it again then, but what is past its time is swept
}

// A Deed is a call, by its number among those of its step or branch and operation.
type Deed struct {
	Name      string
	Operation branch.Operation
	N         int // from 1
}

// A Mishap is what goes wrong with a call; the zero value is nothing.
type Mishap struct {
	After  []string // it arrives only once these branches were tried
	Rival  bool     // before it, another process runs the same
	Absent bool     // it does not arrive
	Twice  bool     // it arrives once more
	Late   bool     // after it the first call of the step or branch arrives
	Quits  bool     // after it, the caller of the transaction gives up
	Answer error    // what the engine receives in place of the answer
}

// What befalls calls.
var (
	Refused = Mishap{Absent: true, Answer: branch.Fail(errors.New("the kit refuses it"))}
	Lost    = Mishap{Answer: branch.Unknown(errors.New("the kit loses the answer"))}
	Gone    = Mishap{Absent: true, Answer: branch.Unknown(errors.New("the kit loses the call"))}
)

// Only is a fate that befalls one call.
func Only(which Deed, m Mishap) func(Deed) Mishap {
	return func(d Deed) Mishap {
		if d == which {
			return m
		}
		return Mishap{}
	}
}
