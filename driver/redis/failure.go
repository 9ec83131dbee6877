package redis

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	errs "github.com/interlock-dev/interlock/internal/failure"
)

// refusals are the codes of answers after which nothing was done, and the same
// request may succeed later.
var refusals = []string{"LOADING", "BUSY", "MASTERDOWN", "READONLY", "OOM", "NOREPLICAS", "MISCONF", "TRYAGAIN", "CLUSTERDOWN", "MOVED", "ASK"}

// unsentErrors are those of a client that had no server to send to.
var unsentErrors = []error{rueidis.ErrNoAddr, rueidis.ErrNoSlot}

// closedErrors are those of a connection that the server has closed.
var closedErrors = []error{io.EOF, syscall.ECONNRESET, syscall.EPIPE}

// failure classifies an error of the client. A server's answer is classified by
// kindOf; an error of dialling means that nothing was sent; after any other error
// the request may have been executed.
func failure(r request, err error) error {
	if err == nil {
		return nil
	}
	var answer *rueidis.RedisError
	kind := interlock.Uncertain
	switch {
	case errors.As(err, new(*interlock.Error)):
		return err // classified already
	case errors.Is(err, errUnconfirmed): // also if an answer gives the reason
	case errors.As(err, &answer):
		kind = kindOf(answer.Error())
		if err == error(answer) {
			err = inScript{answer}
		}
	case driver.NeverSent(err) || slices.ContainsFunc(unsentErrors, func(e error) bool { return errors.Is(err, e) }):
		kind = interlock.Retryable
	case slices.ContainsFunc(closedErrors, func(e error) bool { return errors.Is(err, e) }):
		err = fmt.Errorf("the server closed the connection before it answered; it has stopped, or has maxclients connections: %w", err)
	}
	return problem(r, kind, err)
}

// inScript is a server's answer. Its text lacks the hash and the line of the script that Redis adds.
type inScript struct{ *rueidis.RedisError }

// Error returns the answer without the script.
func (a inScript) Error() string {
	text, _, _ := strings.Cut(a.RedisError.Error(), " script: ")
	return text
}

// Unwrap returns the whole answer.
func (a inScript) Unwrap() error { return a.RedisError }

// stopped is in the answer to a script that a moving slot stopped half way.
const stopped = "attempted to access a non local key"

// kindOf classifies a server's answer, which begins with a code.
func kindOf(answer string) interlock.ErrorKind {
	if strings.Contains(answer, stopped) {
		return interlock.Uncertain
	}
	if _, inner, ok := strings.Cut(answer, "@user_script"); ok { // Redis 6 puts the place in the script before the code
		if _, code, ok := strings.Cut(inner, ": -"); ok {
			answer = code
		}
	}
	if code, _, _ := strings.Cut(answer, " "); slices.Contains(refusals, code) {
		return interlock.Retryable
	}
	return interlock.Definite
}

// Answer is the server's error for one name of several.
type Answer string

// Error returns the server's text, which begins with a code.
func (a Answer) Error() string { return string(a) }

const fail = errs.Driver("redis")

func problem(r request, kind interlock.ErrorKind, err error) error {
	if r.harmless && kind == interlock.Uncertain {
		kind = interlock.Retryable
	}
	return fail.New(r.op, r.name, kind, err)
}

// harmless makes an unknown outcome Retryable, for requests whose outcome does not
// matter.
func harmless(r request, err error) error {
	if err == nil || interlock.Kind(err) != interlock.Uncertain {
		return err
	}
	return problem(r, interlock.Retryable, errors.Unwrap(err))
}

func unsent(r request, cause error) error    { return problem(r, interlock.Definite, cause) }
func uncertain(r request, cause error) error { return problem(r, interlock.Uncertain, cause) }
func closed(r request) error                 { return problem(r, interlock.Bug, interlock.ErrClosed) }
