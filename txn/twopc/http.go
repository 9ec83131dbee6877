package twopc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/httpclient"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/branchhttp"
)

// HTTP is a participant behind a URL, in any language. Its calls are POSTs with the headers of
// txn/branch, which have the operation, the transaction and the branch. The participant must answer:
//
//   - prepare: the body is that of [Remote.Send]. Do the work durably, so that it can be committed
//     or rolled back after any crash, and answer 2xx, or 409 to vote no. The answer
//     {"vote":"read only"} means that nothing was changed; no decision follows. After a rollback,
//     answer 409.
//   - commit and roll back: idempotent. The rollback of an unknown branch succeeds. 409 means that
//     the branch was finished against the decision: see driver.ErrHeuristic.
//   - GET with the query in-doubt: the prepared branches, as
//     [{"transaction":…,"branch":…,"since":milliseconds since 1970}]. A participant that cannot list
//     them is not scanned, and must call [Engine.Decide] itself.
type HTTP struct {
	URL    string
	Caller branchhttp.Caller
}

var _ driver.Preparer[*Remote] = HTTP{}

// Remote is a branch at an [HTTP] participant. Nothing is sent before it is prepared.
type Remote struct {
	at  HTTP
	xid driver.XID

	mu     sync.Mutex
	input  []byte
	output []byte
}

// Send sets the body of prepare, JSON of at most branchhttp.MaxBody bytes.
func (r *Remote) Send(input []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.input = input
}

// Output returns the participant's answer to prepare; nil before.
func (r *Remote) Output() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.output
}

// Begin opens a branch; see driver.Preparer.
func (h HTTP) Begin(_ context.Context, x driver.XID) (*Remote, driver.Preparing, error) {
	if err := x.Check(); err != nil {
		return nil, nil, bug("begin branch", x.Transaction, err)
	}
	r := &Remote{at: h, xid: x}
	return r, r, nil
}

// Prepare returns the participant's vote; see driver.Preparing. It repeats the call while the
// participant answers that it is in progress.
func (r *Remote) Prepare(ctx context.Context) (driver.Vote, error) {
	output, err := r.askUntilAnswered(ctx)
	switch class, _ := branch.ClassOf(err); {
	case err == nil:
		return r.storeAnswer(output), nil
	case class == branch.ClassFail:
		return driver.VoteNo, definite("prepare branch", r.xid.Transaction, err)
	}
	return driver.VoteNo, uncertain("prepare branch", r.xid.Transaction, err)
}

// askUntilAnswered repeats prepare until the answer is not that it is in progress.
func (r *Remote) askUntilAnswered(ctx context.Context) ([]byte, error) {
	c := branch.From(ctx)
	for c.Attempt = max(c.Attempt, 1); ; c.Attempt++ {
		output, err := r.at.call(branch.With(ctx, c), r.xid, branch.Prepare, r.body())
		if class, after := branch.ClassOf(err); class != branch.ClassInProgress || !backoff.Sleep(ctx, after) {
			return output, err
		}
	}
}

func (r *Remote) body() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.input
}

// storeAnswer stores the answer to prepare, and returns the vote in it.
func (r *Remote) storeAnswer(output []byte) driver.Vote {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.output = output
	var answer struct {
		Vote string `json:"vote"`
	}
	if json.Unmarshal(output, &answer) == nil && answer.Vote == driver.VoteReadOnly.String() {
		return driver.VoteReadOnly
	}
	return driver.VoteYes
}

// CommitOne prepares and commits; see driver.Preparing. A crash between the two leaves
// a branch in doubt, which is aborted.
func (r *Remote) CommitOne(ctx context.Context) error {
	vote, err := r.Prepare(ctx)
	switch {
	case err != nil: // the participant received no commit
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		return definite("commit branch", r.xid.Transaction, errors.Join(err, r.at.Rollback(clean, r.xid)))
	case vote == driver.VoteReadOnly:
		return nil
	}
	err = r.at.Commit(ctx, r.xid)
	if err == nil || errors.Is(err, driver.ErrHeuristic) {
		return err
	}
	return uncertain("commit branch", r.xid.Transaction, err) // also if it is in progress
}

// Abandon has nothing to free; see driver.Preparing.
func (r *Remote) Abandon(context.Context) error { return nil }

// Commit asks the participant to commit; see driver.Participant.
func (h HTTP) Commit(ctx context.Context, x driver.XID) error { return h.finish(ctx, x, branch.Commit) }

// Rollback asks the participant to roll back; see driver.Participant.
func (h HTTP) Rollback(ctx context.Context, x driver.XID) error {
	return h.finish(ctx, x, branch.Rollback)
}

func (h HTTP) finish(ctx context.Context, x driver.XID, op branch.Operation) error {
	_, err := h.call(ctx, x, op, nil)
	var answer *branchhttp.AnswerError
	if errors.As(err, &answer) && answer.Status == http.StatusConflict {
		return definite(string(op)+" branch", x.Transaction, fmt.Errorf("%w: %w", driver.ErrHeuristic, err))
	}
	return err
}

// call adds the transaction and the branch to the call of ctx, and posts it. A ctx of another transaction is
// that of the caller of Run, such as a step of a saga.
func (h HTTP) call(ctx context.Context, x driver.XID, op branch.Operation, input []byte) ([]byte, error) {
	c := branch.From(ctx)
	if c.Transaction != x.Transaction {
		c = branch.Call{}
	}
	c.Transaction, c.Branch, c.Operation, c.Attempt = x.Transaction, x.Branch, op, max(c.Attempt, 1)
	if r, err := parse(x.Transaction); err == nil {
		c.Begun = r.began
	}
	return h.Caller.Post(ctx, h.URL, c, input)
}

// listedBranch is a branch in a participant's list.
type listedBranch struct {
	Transaction string `json:"transaction"`
	Branch      string `json:"branch"`
	Since       int64  `json:"since"`
}

// InDoubt requests the participant's list; see driver.Participant. The answers 404, 405 and 501
// mean that it keeps none.
func (h HTTP) InDoubt(ctx context.Context) ([]driver.InDoubt, error) {
	body, err := h.list(ctx)
	if err != nil || body == nil {
		return nil, err
	}
	var all []listedBranch
	if err := json.Unmarshal(body, &all); err != nil {
		return nil, h.listError(err)
	}
	doubts := make([]driver.InDoubt, len(all))
	for i, l := range all {
		doubts[i].XID = driver.XID{Transaction: l.Transaction, Branch: l.Branch}
		if l.Since > 0 {
			doubts[i].Since = time.UnixMilli(l.Since)
		}
	}
	return doubts, nil
}

// list returns the body of the list; nil if there is none.
func (h HTTP) list(ctx context.Context) ([]byte, error) {
	at, err := url.Parse(h.URL)
	if err != nil {
		return nil, h.addressError(err)
	}
	if at.User != nil {
		return nil, h.addressError(errors.New("the address has a user or a password: remove them, and sign calls instead"))
	}
	query := at.Query()
	query.Set("in-doubt", "")
	at.RawQuery = query.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, h.addressError(err)
	}
	answer, err := httpclient.WithoutRedirects(h.Caller.Client).Do(request) // as Caller does
	if err != nil {
		return nil, h.listError(errors.Unwrap(err)) // without the address, which has a query
	}
	defer answer.Body.Close()
	switch answer.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return nil, nil
	default:
		return nil, h.listError(fmt.Errorf("it answered %d", answer.StatusCode))
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, branchhttp.MaxBody+1))
	if err == nil && len(body) > branchhttp.MaxBody {
		err = fmt.Errorf("its list has more than %d bytes", branchhttp.MaxBody)
	}
	if err != nil {
		return nil, h.listError(err)
	}
	return body, nil
}

// addressError returns the error of an address that cannot be called.
func (h HTTP) addressError(err error) error {
	return bug("list branches in doubt", failure.RedactURL(h.URL), failure.RedactError(err))
}

// listError returns the error of a list that could not be read.
func (h HTTP) listError(err error) error {
	return &interlock.Error{Op: "list branches in doubt", Driver: "http", Name: failure.RedactURL(h.URL), Kind: interlock.Retryable, Err: err}
}
