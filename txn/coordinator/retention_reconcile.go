package coordinator

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/journal"
)

// A Reconciliation is what was found when participants were asked about transactions
// that have ended.
type Reconciliation struct {
	Wrong    int       `json:"wrong"`    // effects that are not what the journal says
	Repaired int       `json:"repaired"` // that were not, and are now
	Unknown  int       `json:"unknown"`  // that could not be found out
	Findings []Finding `json:"findings"` // the first hundred of all these
}

// A Finding is one effect of a [Reconciliation].
type Finding struct {
	ID       string `json:"id"`
	Type     string `json:"type"`
	Step     string `json:"step,omitempty"` // or branch; empty if it concerns the transaction
	Want     string `json:"want,omitempty"`
	Got      string `json:"got,omitempty"`
	Repaired bool   `json:"repaired,omitempty"`
	Error    string `json:"error,omitempty"`
}

const maxFindings = 100

// Add counts a finding, and keeps it if there is room.
func (r *Reconciliation) Add(f Finding) {
	switch {
	case f.Repaired:
		r.Repaired++
	case f.Error != "" || f.Got == f.Want || f.Got == "unsure":
		r.Unknown++
	default:
		r.Wrong++
	}
	if len(r.Findings) < maxFindings {
		f.Error = strings.ToValidUTF8(fmt.Sprintf("%.500s", f.Error), "\uFFFD")
		r.Findings = append(r.Findings, f)
	}
}

// Reconcile finds out whether transactions that ended since a time are as the journal
// says.
type Reconcile func(ctx context.Context, since time.Time) (Reconciliation, error)

// reconcileTimeout bounds one run.
const reconcileTimeout = 6 * time.Hour

// overlap is how much of the time before is looked at again: clocks differ, and what
// ended in the last moment may not be there yet.
const overlap = 10 * time.Minute

// Reconciles has run called in the background, every so often unless that is below
// zero, for what ended since the time before, and whenever a command asks for it; see
// [AskReconciliation]. It is for packages of protocols.
func (c *Coordinator) Reconciles(protocol string, every time.Duration, run Reconcile) error {
	if err := c.Handle(protocol+reconcileSuffix, asked{run}); err != nil || every < 0 {
		return err
	}
	since := c.options.Now().Add(-2 * every)
	return c.Background(Job{Name: "reconcile " + protocol, Every: every, Run: func(ctx context.Context) error {
		began := c.options.Now()
		_, err := run(ctx, since.Add(-overlap))
		if err == nil {
			since = began
		}
		return err
	}})
}

// reconcileSuffix makes the type of a transaction that asks for a reconciliation.
const reconcileSuffix = "-reconcile"

type request struct {
	Since time.Time `json:"since"`
}

// AskReconciliation asks the services of a journal to reconcile the transactions of a
// protocol that ended since a time. It returns the id of the request, which
// [ReconciliationOf] reads. One of them does it, however many there are.
func AskReconciliation(ctx context.Context, j *journal.Journal, protocol string, since, now time.Time) (id string, err error) {
	data, err := json.Marshal(request{since.UTC()})
	if err != nil {
		return "", failure.About("ask for reconciliation", protocol, err)
	}
	id = "interlock.reconcile/" + rand.Text()
	_, err = j.Begin(ctx, id, protocol+reconcileSuffix+":request", now, journal.Entry{Kind: "begin", Data: data})
	return id, err
}

// ReconciliationOf is the result of a request; nil while it goes on.
func ReconciliationOf(ctx context.Context, j *journal.Journal, id string) (*Reconciliation, error) {
	log, entries, err := j.Open(ctx, id)
	switch {
	case err != nil:
		return nil, err
	case log == nil:
		return nil, &interlock.Error{Op: "read reconciliation", Name: id, Kind: interlock.Definite, Err: fmt.Errorf("there is no such request")}
	case log.Head().Ended.IsZero():
		return nil, nil
	}
	var r Reconciliation
	if err := json.Unmarshal(entries[len(entries)-1].Data, &r); err != nil {
		return nil, failure.About("read reconciliation", id, err)
	}
	return &r, nil
}

// asked drives requests.
type asked struct{ run Reconcile }

// Drive runs it outside of the slots, and ends the request with what was found. A run
// that failed is made again after Options.Recheck.
func (a asked) Drive(t *Turn) error {
	var req request
	if err := json.Unmarshal(t.Entries()[0].Data, &req); err != nil {
		return failure.Bug("reconcile", t.ID(), "its request is no JSON: %w", err)
	}
	var found Reconciliation
	err := t.Round(Task{Target: "interlock.reconcile", Timeout: reconcileTimeout,
		Call: branch.Call{Transaction: t.ID(), Branch: "reconcile", Operation: branch.Do, Attempt: 1},
		Do: func(ctx context.Context) (err error) {
			found, err = a.run(ctx, req.Since)
			return err
		}})[0]
	if err != nil {
		return err
	}
	data, err := json.Marshal(found)
	if err != nil {
		return failure.Bug("reconcile", t.ID(), "%w", err)
	}
	if len(data) > driver.MaxPayload {
		found.Findings = nil
		data, _ = json.Marshal(found)
	}
	return t.End(journal.Entry{Kind: "end", Data: data})
}
