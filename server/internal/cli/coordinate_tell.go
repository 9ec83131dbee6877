package cli

import (
	"strings"
	"time"

	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/httpapi"
	"github.com/interlock-dev/interlock/txn/saga"
	"github.com/interlock-dev/interlock/txn/tcc"
	"github.com/interlock-dev/interlock/txn/twopc"
)

// tell has a coordinator say what waits for a person, with the command that shows it;
// and every call that fails, if that is wanted.
func (a *app) tell(o *httpapi.Options, calls bool) {
	sagaProtocol := &observe.Saga{
		Dead: func(e observe.SagaDead) {
			a.say("saga %s waits for you: the undo of %s was given up; see %s", e.Saga, strings.Join(e.Steps, ", "), command("interlock", "saga", "show", e.Saga))
		},
		Stuck: func(e observe.SagaStuck) {
			a.say("saga %s is past its pivot, and step %s has failed %d times: %v", e.Saga, e.Step, e.Attempts, e.Err)
		},
	}
	tccProtocol := &observe.TCC{Dead: func(e observe.TCCDead) {
		a.say("transaction %s waits for you: it is decided to %s it, and that is refused by %s; see %s",
			e.Transaction, e.Decision, strings.Join(e.Branches, ", "), command("interlock", "tcc", "show", e.Transaction))
	}}
	xaProtocol := &observe.TwoPC{
		Heuristic: func(e observe.TwoPCHeuristic) {
			a.say("transaction %s waits for you: it was finished against the decision by %s: %v; see %s",
				e.Transaction, strings.Join(e.Participants, ", "), e.Err, command("interlock", "xa", "show", e.Transaction))
		},
		Orphan: func(e observe.TwoPCOrphan) {
			a.say("transaction %s has been in doubt at %s for %v: %s", e.Transaction, e.Participant, e.Age.Round(time.Second), because(e.Verdict, e.Err))
		},
	}
	if calls {
		sagaProtocol.Tried = func(e observe.SagaTried) { a.tried("saga", e.Saga, e.Step, undo(e.Undo), e.Err, e.Again) }
		tccProtocol.Tried = func(e observe.TCCTried) {
			a.tried("transaction", e.Transaction, e.Branch, e.Operation, e.Err, e.Again)
		}
		xaProtocol.Tried = func(e observe.TwoPCTried) {
			a.tried("transaction", e.Transaction, e.Participant, map[bool]string{true: "commit", false: "rollback"}[e.Commit], e.Err, e.Again)
		}
	}
	o.Sagas, o.TCC, o.TwoPC = &saga.Options{Hooks: sagaProtocol}, &tcc.Options{Hooks: tccProtocol}, &twopc.Options{Hooks: xaProtocol}
}

// tried says that a call has failed.
func (a *app) tried(what, id, branch, operation string, err error, again time.Duration) {
	next := "not again"
	if again > 0 {
		next = "again in " + again.Round(time.Millisecond).String()
	}
	a.say("%s %s: %s %s: %v (%s)", what, id, operation, branch, err, next)
}

// undo is the operation of a saga's call.
func undo(is bool) string {
	if is {
		return "undo"
	}
	return "do"
}

// because is a verdict, and why it was not carried out.
func because(verdict string, err error) string {
	if err == nil {
		return verdict
	}
	return verdict + ": " + err.Error()
}
