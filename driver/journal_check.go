package driver

import (
	"fmt"

	"github.com/interlock-dev/interlock"
)

// CheckAppend says what is wrong with the i-th of appends before anything is
// sent: a Bug for what no journal can mean, Definite for what is too large. Every
// [Journal] refuses it with that.
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
	switch {
	case a.Transaction == "" || len(a.Transaction) > MaxTransaction:
		return refuse(interlock.Bug, "%w: a transaction's id has 1 to %d bytes", interlock.ErrName, MaxTransaction)
	case a.Shard < 0, a.After < 0, a.Epoch < 0, len(a.Type) > 255:
		return refuse(interlock.Bug, "shard %d, position %d, epoch %d, type %.300q", a.Shard, a.After, a.Epoch, a.Type)
	case len(a.Records) == 0 || len(a.Records) > MaxRecords:
		return refuse(interlock.Bug, "%d records, 1 to %d are allowed", len(a.Records), MaxRecords)
	}
	for _, r := range a.Records {
		switch {
		case r.Kind == "" || len(r.Kind) > 32 || len(r.Step) > 255 || len(r.Sum) > 32:
			return refuse(interlock.Bug, "record %.40q of step %.300q with a sum of %d bytes", r.Kind, r.Step, len(r.Sum))
		case len(r.Data) > MaxRecord:
			return refuse(interlock.Definite, "a record has %d bytes, at most %d are allowed", len(r.Data), MaxRecord)
		}
	}
	return nil
}

// CheckPayload says what is wrong with a payload, as CheckAppend does.
func CheckPayload(transaction string, sum, payload []byte) error {
	refuse := func(kind interlock.ErrorKind, format string, args ...any) error {
		return &interlock.Error{Op: "keep payload", Name: transaction, Kind: kind, Err: fmt.Errorf(format, args...)}
	}
	switch {
	case transaction == "" || len(transaction) > MaxTransaction:
		return refuse(interlock.Bug, "%w: a transaction's id has 1 to %d bytes", interlock.ErrName, MaxTransaction)
	case len(sum) == 0 || len(sum) > 32:
		return refuse(interlock.Bug, "a sum of %d bytes", len(sum))
	case len(payload) > MaxPayload:
		return refuse(interlock.Definite, "it has %d bytes, at most %d are allowed", len(payload), MaxPayload)
	}
	return nil
}
