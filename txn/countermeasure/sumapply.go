package countermeasure

import (
	"context"
	"strconv"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/txn/branch"
)

// Apply adds delta for a call, and for its Undo or Cancel subtracts what was added:
// each once, whatever is repeated and in whatever order they come. It logs the call
// in file, on a record that is named by the table, the column and the key; nothing else
// needs to stand between the coordinator and this. A Confirm is a Bug, as is any other
// operation than Do and Try, Undo and Cancel.
//
// If it returns an error the transaction must be rolled back, so that the call is not
// logged. A refusal is a [BoundError]; that of a step is one for branch.Fail, that of an
// undo is not: somebody has to make room.
func (s Sum) Apply(ctx context.Context, db driver.SQL, file VersionFile, c branch.Call, key string, delta int64) (Verdict, error) {
	if c.Transaction == "" || c.Branch == "" {
		return 0, failure.Bug("add", key, "a call of transaction %q and branch %q", c.Transaction, c.Branch)
	}
	record := short(s.Table + "/" + s.Column + "/" + key)
	switch c.Operation {
	case branch.Do, branch.Try:
		verdict, err := file.Log(ctx, db, Operation{Record: record, ID: OperationID(c), Data: strconv.AppendInt(nil, delta, 10)})
		if err != nil || verdict != Apply {
			return verdict, err
		}
		return verdict, s.Add(ctx, db, key, delta)
	case branch.Undo, branch.Cancel:
		verdict, data, err := file.Cancel(ctx, db, record, OperationID(c))
		if err != nil || verdict != Reverse {
			return verdict, err
		}
		logged, err := strconv.ParseInt(string(data), 10, 64)
		if err != nil {
			return 0, failure.Bug("subtract", key, "the version file has %q for a difference", data)
		}
		return verdict, s.Add(ctx, db, key, -logged)
	}
	return 0, failure.Bug("add", key, "the operation %q neither does nor undoes", string(c.Operation))
}
