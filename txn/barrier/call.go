package barrier

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"strings"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/txn/branch"
)

// claim is a call with what its row needs.
type claim struct {
	branch.Call
	event   event
	outside bool
	hash    []byte // of the input; empty if there is none to compare
	result  []byte // of a row that this call inserts
}

func (c claim) begun() int64 { return c.Begun.UnixMilli() }

// maxPart is the longest name of a branch or step, in bytes.
const maxPart = 255

var operations = map[branch.Operation]event{
	branch.Do: forward, branch.Try: forward, branch.Prepare: forward,
	branch.Confirm: finish, branch.Commit: finish,
	branch.Undo: back, branch.Cancel: back, branch.Rollback: back,
}

// callOf returns the call of ctx, if its operation fits e.
func callOf(ctx context.Context, e event) (claim, error) {
	c := claim{Call: branch.From(ctx), event: e}
	of, ok := operations[c.Operation]
	bug := func(format string, args ...any) (claim, error) {
		return claim{}, failure.Bug("pass barrier", c.Key(), format, args...)
	}
	switch {
	case c.Call == (branch.Call{}):
		return bug("the context has no call: see branch.With")
	case !ok:
		return bug("unknown operation %q", string(c.Operation))
	case of != e:
		return bug("this function does not answer operation %q", string(c.Operation))
	case c.Begun.UnixMilli() <= 0:
		return bug("the call has no begin of its transaction")
	}
	if err := errors.Join(driver.CheckText("a transaction's id", c.Transaction, 1, driver.MaxTransaction),
		driver.CheckText("a branch's name", c.Branch, 1, maxPart), driver.CheckText("a step's name", c.Step, 0, maxPart)); err != nil {
		return bug("%w", err)
	}
	return c, nil
}

// hash returns the hash of an input: of its bytes, or of its JSON.
func hash(c claim, input any) ([]byte, error) {
	text, ok := input.([]byte)
	if !ok {
		var err error
		if text, err = json.Marshal(input); err != nil {
			return nil, failure.Bug("pass barrier", c.Key(), "encode input: %w", err)
		}
	}
	sum := sha256.Sum256(text)
	return sum[:], nil
}

// encode returns the stored form of an output. It is empty for the zero value, so that a branch
// without output costs no statement.
func encode[O any](c claim, output O) ([]byte, error) {
	var zero O
	text, err := json.Marshal(output)
	if err != nil {
		return nil, failure.Bug("pass barrier", c.Key(), "encode output: %w", err)
	}
	if len(text) > driver.MaxPayload {
		return nil, failure.Bug("pass barrier", c.Key(), "its output has %d bytes of JSON; at most %d are stored", len(text), driver.MaxPayload)
	}
	if none, err := json.Marshal(zero); err == nil && bytes.Equal(none, text) {
		return nil, nil
	}
	return text, nil
}

// decode is the inverse of encode.
func decode[O any](c claim, result []byte) (output O, err error) {
	if len(result) == 0 {
		return output, nil
	}
	if err := json.Unmarshal(result, &output); err != nil {
		return output, failure.Bug("pass barrier", c.Key(), "decode the stored output as %T: %w", output, err)
	}
	return output, nil
}

// maxReason bounds the stored text of a refusal, in bytes.
const maxReason = 4 << 10

// reason returns the stored text of a refusal.
func reason(err error) string {
	text := strings.ToValidUTF8(err.Error(), "�")
	if len(text) <= maxReason {
		return text
	}
	return strings.ToValidUTF8(text[:maxReason], "")
}
