package twopc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/txn/branchhttp"
)

// listed is a branch as a participant lists it.
type listed struct {
	Transaction string `json:"transaction"`
	Branch      string `json:"branch"`
	Since       int64  `json:"since"`
}

// InDoubt asks for the participant's list; see driver.Participant. One that answers
// 404, 405 or 501 keeps none.
func (h HTTP) InDoubt(ctx context.Context) ([]driver.InDoubt, error) {
	body, err := h.list(ctx)
	if err != nil || body == nil {
		return nil, err
	}
	var all []listed
	if err := json.Unmarshal(body, &all); err != nil {
		return nil, h.unlisted(err)
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

// list is the body of the list, nil if there is none.
func (h HTTP) list(ctx context.Context) ([]byte, error) {
	at, err := url.Parse(h.URL)
	if err != nil {
		return nil, h.misaddressed(err)
	}
	if at.User != nil {
		return nil, h.misaddressed(errors.New("the address has a user or a password: remove them, and sign calls instead"))
	}
	query := at.Query()
	query.Set("in-doubt", "")
	at.RawQuery = query.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, h.misaddressed(err)
	}
	client := http.Client{}
	if h.Caller.Client != nil {
		client = *h.Caller.Client
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse } // as Caller has it
	answer, err := client.Do(request)
	if err != nil {
		return nil, h.unlisted(errors.Unwrap(err)) // without the address, which has a query
	}
	defer answer.Body.Close()
	switch answer.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return nil, nil
	default:
		return nil, h.unlisted(fmt.Errorf("it answered %d", answer.StatusCode))
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, branchhttp.MaxBody+1))
	if err == nil && len(body) > branchhttp.MaxBody {
		err = fmt.Errorf("its list has more than %d bytes", branchhttp.MaxBody)
	}
	if err != nil {
		return nil, h.unlisted(err)
	}
	return body, nil
}

// misaddressed is the error of an address that cannot be called.
func (h HTTP) misaddressed(err error) error {
	return bug("list branches in doubt", failure.RedactURL(h.URL), failure.RedactError(err))
}

// unlisted is that the list could not be had, which changes nothing.
func (h HTTP) unlisted(err error) error {
	return &interlock.Error{Op: "list branches in doubt", Driver: "http", Name: failure.RedactURL(h.URL), Kind: interlock.Retryable, Err: err}
}
