package percolatortest

import (
	"context"
	"encoding/binary"
	"encoding/json"

	"github.com/interlock-dev/interlock/history"
	"github.com/interlock-dev/interlock/txn/percolator"
)

// Number reads a key that holds a number; a key without a value has 0.
func Number(ctx context.Context, tx *percolator.Tx, key string) (int, error) {
	value, found, err := tx.Get(ctx, key)
	if err != nil || !found {
		return 0, err
	}
	return int(int64(binary.BigEndian.Uint64(value))), nil
}

// Add adds n to the number of a key.
func Add(ctx context.Context, tx *percolator.Tx, key string, n int) error {
	was, err := Number(ctx, tx, key)
	if err != nil {
		return err
	}
	return set(tx, key, was+n)
}

func set(tx *percolator.Tx, key string, n int) error {
	return tx.Put(key, binary.BigEndian.AppendUint64(nil, uint64(n)))
}

// plan returns one to three operations on lists, each on another key. Appended values are
// unique, as far as random numbers below 2^30 are.
func (w Workload) plan(round int64) (plan []history.ListOp) {
	seen := map[string]bool{}
	for range 1 + w.Draw(3) {
		op := history.ListOp{Key: w.Keys[w.Draw(len(w.Keys))], Seen: true}
		if seen[op.Key] {
			continue
		}
		seen[op.Key] = true
		if w.Draw(2) == 0 {
			op.Append = int64(w.Draw(1<<30))<<20 + round
		}
		plan = append(plan, op)
	}
	return plan
}

// list runs the operations in a transaction, and returns them with their reads.
func list(ctx context.Context, tx *percolator.Tx, plan []history.ListOp) (saw []history.ListOp, err error) {
	for _, op := range plan {
		value, found, err := tx.Get(ctx, op.Key)
		if err != nil {
			return nil, err
		}
		if found {
			if err := json.Unmarshal(value, &op.Read); err != nil {
				return nil, err
			}
		}
		saw = append(saw, op)
		if op.Append > 0 {
			text, err := json.Marshal(append(op.Read[:len(op.Read):len(op.Read)], op.Append))
			if err != nil {
				return nil, err
			}
			if err := tx.Put(op.Key, text); err != nil {
				return nil, err
			}
		}
	}
	return saw, nil
}
