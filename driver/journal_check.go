package driver

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/interlock-dev/interlock"
)

// CheckText returns an error unless text has least to most bytes of UTF-8 without NUL. All
// stores apply it to ids, names and types. The error wraps [interlock.ErrName] and describes
// the text as what; the caller adds the operation and the kind Bug.
func CheckText(what, text string, least, most int) error {
	if len(text) < least || len(text) > most || !utf8.ValidString(text) || strings.IndexByte(text, 0) >= 0 {
		return fmt.Errorf("%w: %s has %d to %d bytes of UTF-8 without NUL", interlock.ErrName, what, least, most)
	}
	return nil
}

// CheckName applies [CheckText] to a name of 1 to most bytes. Its error is a Bug of op and
// includes the first 64 bytes of the name.
func CheckName(op, what, name string, most int) error {
	if err := CheckText(what, name, 1, most); err != nil {
		return &interlock.Error{Op: op, Name: strings.ToValidUTF8(name[:min(len(name), 64)], "\uFFFD"), Kind: interlock.Bug, Err: err}
	}
	return nil
}

// CheckTransaction returns a Bug of op unless id is a valid transaction id.
func CheckTransaction(op, id string) error {
	return CheckName(op, "a transaction's id", id, MaxTransaction)
}

// CheckAfter returns a Bug unless behind is empty or a valid transaction id. List calls use it
// for the id after which they start.
func CheckAfter(behind string) error {
	if behind == "" {
		return nil
	}
	return CheckTransaction("list transactions", behind)
}

// CheckAppend validates the i-th of appends before anything is sent. The error is a Bug if an
// append is invalid, and Definite if a record is too large. Every [Journal] uses it.
func CheckAppend(appends []Append, i int) error {
	a := appends[i]
	refuse := func(kind interlock.ErrorKind, format string, args ...any) error {
		return &interlock.Error{Op: "append", Name: a.Transaction, Kind: kind, Err: fmt.Errorf(format, args...)}
	}
	for _, other := range appends[:i] {
		if other.Transaction == a.Transaction {
			return refuse(interlock.Bug, "the transaction comes twice")
		}
	}
	if err := CheckTransaction("append", a.Transaction); err != nil {
		return err
	}
	if err := CheckText("a type", a.Type, 0, 255); err != nil {
		return refuse(interlock.Bug, "%w", err)
	}
	switch {
	case a.Shard < 0, a.After < 0, a.Epoch < 0:
		return refuse(interlock.Bug, "shard %d, position %d, epoch %d", a.Shard, a.After, a.Epoch)
	case len(a.Records) == 0 || len(a.Records) > MaxRecords:
		return refuse(interlock.Bug, "%d records, 1 to %d are allowed", len(a.Records), MaxRecords)
	}
	for _, r := range a.Records {
		err := CheckText("the kind of a record", r.Kind, 1, 32)
		if err == nil {
			err = CheckText("a step", r.Step, 0, 255)
		}
		switch {
		case err != nil:
			return refuse(interlock.Bug, "%w", err)
		case len(r.Sum) > 32:
			return refuse(interlock.Bug, "record %q of step %q has a sum of %d bytes, at most 32 are allowed", r.Kind, r.Step, len(r.Sum))
		case len(r.Data) > MaxRecord:
			return refuse(interlock.Definite, "a record has %d bytes, at most %d are allowed", len(r.Data), MaxRecord)
		}
	}
	return nil
}

// CheckPayload validates the arguments of PutPayload; its errors are as those of CheckAppend.
func CheckPayload(transaction string, sum, payload []byte) error {
	refuse := func(kind interlock.ErrorKind, format string, args ...any) error {
		return &interlock.Error{Op: "keep payload", Name: transaction, Kind: kind, Err: fmt.Errorf(format, args...)}
	}
	if err := CheckTransaction("keep payload", transaction); err != nil {
		return err
	}
	switch {
	case len(sum) == 0 || len(sum) > 32:
		return refuse(interlock.Bug, "a sum of %d bytes", len(sum))
	case len(payload) > MaxPayload:
		return refuse(interlock.Definite, "it has %d bytes, at most %d are allowed", len(payload), MaxPayload)
	}
	return nil
}
