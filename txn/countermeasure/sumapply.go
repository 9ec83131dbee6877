package countermeasure

import (
	"context"
	"errors"
	"strconv"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/txn/branch"
)

// Apply adds delta for a call, and subtracts it for the call's Undo or Cancel: each once, for any
// repetition and order of calls. It logs the call in file, on a record named by the table, the
// column and the key, and needs no barrier. Operations other than Do, Try, Undo and Cancel are a
// Bug.
//
// A [BoundError] with the verdict [Refused] is one for branch.Fail. Commit it: a repeated call is
// then rejected again, even if there is room, and its undo does nothing. After any other error,
// including the BoundError of an undo, the transaction must be rolled back, so that the call is
// not logged.
func (s Sum) Apply(ctx context.Context, db driver.SQL, file VersionFile, c branch.Call, key string, delta int64) (Verdict, error) {
	if c.Transaction == "" || c.Branch == "" {
		return 0, failure.Bug("add", key, "a call of transaction %q and branch %q", c.Transaction, c.Branch)
	}
	record, id := short(s.Table+"/"+s.Column+"/"+key), OperationID(c)
	switch c.Operation {
	case branch.Do, branch.Try:
		verdict, err := file.Log(ctx, db, Operation{Record: record, ID: id, Data: strconv.AppendInt(nil, delta, 10)})
		switch {
		case err == nil && verdict == Apply:
			return s.apply(ctx, db, file, record, id, key, delta)
		case err == nil && verdict == Refused:
			err = &BoundError{Table: s.Table, Key: key, Delta: delta, Min: s.Min, Max: s.max(), Again: true}
		}
		return verdict, err
	case branch.Undo, branch.Cancel:
		verdict, data, err := file.Cancel(ctx, db, record, id)
		if err != nil || verdict != Reverse {
			return verdict, err
		}
		logged, err := driver.ParseInt(string(data))
		if err != nil {
			return 0, failure.Bug("subtract", key, "the version file has %q for a difference", data)
		}
		return verdict, s.Add(ctx, db, key, -logged)
	}
	return 0, failure.Bug("add", key, "the operation %q neither does nor undoes", string(c.Operation))
}

// apply adds what was logged, or logs that it was refused.
func (s Sum) apply(ctx context.Context, db driver.SQL, file VersionFile, record, id, key string, delta int64) (Verdict, error) {
	err := s.Add(ctx, db, key, delta)
	var passed *BoundError
	if !errors.As(err, &passed) {
		return Apply, err
	}
	if err := file.Refuse(ctx, db, record, id); err != nil {
		return 0, err
	}
	return Refused, err
}
