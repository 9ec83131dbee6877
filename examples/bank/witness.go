package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"sync"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/history"
	"github.com/interlock-dev/interlock/observe"
)

// stage is one line on stdout: the progress of a withdrawal. Tokens are strings there,
// because many JSON readers round numbers of their size.
type stage struct {
	Stage   string          `json:"stage"` // waiting, acquired, read, lost; at the end committed, refused or failed
	Token   interlock.Token `json:"token,string,omitempty"`
	Balance *int64          `json:"balance,omitempty"`     // of read and committed
	Holder  string          `json:"holder,omitempty"`      // of waiting
	Cause   string          `json:"cause,omitempty"`       // of lost
	Seen    interlock.Token `json:"seen,string,omitempty"` // of refused
	Kind    string          `json:"kind,omitempty"`        // of refused and failed
	Error   string          `json:"error,omitempty"`       // of refused and failed
}

// witness reports the events, on stdout and in a history, and can pause the program
// after it has read. The correctness of a withdrawal does not depend on it.
type witness struct {
	lane    string
	history *history.Writer
	in      *bufio.Reader
	pause   string // the stage at which reached waits; "" for none

	mu  sync.Mutex
	out io.Writer
}

// tell prints a stage.
func (w *witness) tell(s stage) {
	line, _ := json.Marshal(s) // strings and numbers only: cannot fail
	w.mu.Lock()
	defer w.mu.Unlock()
	_, _ = w.out.Write(append(line, '\n'))
}

// reached prints a stage and, if the command line requests it, waits for a line on
// stdin, even if the claim ends meanwhile.
func (w *witness) reached(s stage) {
	w.tell(s)
	if s.Stage == w.pause {
		_, _ = w.in.ReadString('\n') // the end of the input continues as well
	}
}

// call is one transaction: recorded before it begins, and with its outcome.
type call struct {
	history.Call
	w       *witness
	claim   interlock.Claim
	writes  bool
	balance int64 // read or written
}

func (w *witness) invoke(op string, c interlock.Claim) *call {
	e := history.Event{Lane: w.lane, Op: op, Key: c.Name(), Owner: c.Owner(), Token: c.Token()}
	return &call{Call: w.history.Invoke(e), w: w, claim: c, writes: op == history.OpWrite}
}

// end records the outcome, prints it if it is the withdrawal's, and returns err.
func (c *call) end(err error) error {
	switch {
	case err != nil:
		c.End(err)
		c.w.tell(failure(c.claim.Token(), err))
	default:
		c.OK(strconv.FormatInt(c.balance, 10))
		if c.writes {
			c.w.tell(stage{Stage: "committed", Token: c.claim.Token(), Balance: &c.balance})
		}
	}
	return err
}

// failure returns the stage of a withdrawal that did not happen, or may not have.
func failure(token interlock.Token, err error) stage {
	s := stage{Stage: "failed", Token: token, Kind: interlock.Kind(err).String(), Error: err.Error()}
	var stale *interlock.StaleTokenError
	if errors.As(err, &stale) {
		s.Stage, s.Seen = "refused", stale.Seen
	}
	return s
}

// acquiring is printed before the lock is requested; its hooks report the later events
// of the claim.
func (w *witness) acquiring(name string) *observe.Lock {
	acquire := w.history.Invoke(history.Event{Lane: w.lane, Op: history.OpAcquire, Key: name})
	return &observe.Lock{
		Waiting: func(e observe.LockWaiting) { w.tell(stage{Stage: "waiting", Holder: e.Holder}) },
		Acquired: func(e observe.LockAcquired) {
			if e.Err != nil {
				acquire.End(e.Err)
				w.tell(failure(0, e.Err))
				return
			}
			acquire.Granted(e.Token, e.Owner)
			w.tell(stage{Stage: "acquired", Token: e.Token})
		},
		Ended: w.claimEnded,
	}
}

// claimEnded reports why a claim ended; a release has no line.
func (w *witness) claimEnded(e observe.LockEnded) {
	kind := history.Lose
	switch {
	case errors.Is(e.Cause, interlock.ErrReleased):
		kind = history.Release
	case errors.Is(e.Cause, interlock.ErrExpired):
		kind = history.Expire
	}
	w.history.Record(history.Event{
		Lane: w.lane, Kind: kind, Key: e.Name, Owner: e.Owner, Token: e.Token, Value: cause(e.Cause),
	})
	if kind != history.Release {
		w.tell(stage{Stage: "lost", Token: e.Token, Cause: cause(e.Cause)})
	}
}

// cause returns the short name of the reason why a claim ended.
func cause(err error) string {
	for name, c := range map[string]error{
		"released":      interlock.ErrReleased,
		"expired":       interlock.ErrExpired,
		"lost":          interlock.ErrLost,
		"session ended": interlock.ErrSessionEnded,
	} {
		if errors.Is(err, c) {
			return name
		}
	}
	return err.Error()
}

// newWitness writes the history to path, or nowhere if path is empty.
func newWitness(lane, path, pause string, in io.Reader, out io.Writer) (*witness, error) {
	w := &witness{lane: lane, pause: pause, in: bufio.NewReader(in), out: out}
	var err error
	if path == "" {
		w.history, err = history.NewWriter(io.Discard, history.Header{}, nil)
	} else {
		w.history, err = history.Create(path, history.Header{Run: "bank"}, nil)
	}
	return w, err
}
