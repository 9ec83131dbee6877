package interop

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/txn/percolator"
	"github.com/interlock-dev/interlock/txn/percolator/percolatortest"
)

// access is a transaction of one key: it returns the value that it read, and replaces it by
// write unless that is 0.
type access struct {
	key   string
	write int
}

// register is the model of a key; unknown is the answer of a call without one.
var register = porcupine.Model{
	Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
		keys := map[string][]porcupine.Operation{}
		for _, op := range all {
			key := op.Input.(access).key
			keys[key] = append(keys[key], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range keys {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return 0 },
	Step: func(state, input, output any) (bool, any) {
		if a := input.(access); a.write != 0 {
			return output == unknown || output == state, a.write
		}
		return output == state, state
	},
}

const unknown = -1

// registers reads and writes single keys in all processes. A call with an unknown outcome may
// take effect at any time after it was sent, or never. A call that failed otherwise
// must not.
func (b *percolatorBed) registers(ctx context.Context, w percolatortest.Workload) (int, error) {
	var mu sync.Mutex
	var log []porcupine.Operation
	var done, values atomic.Int64
	var running sync.WaitGroup
	begin := time.Now()
	for p := range w.Processes {
		running.Go(func() {
			var db *percolator.DB
			for round := 0; ctx.Err() == nil && w.More(round, int(done.Load())); round++ {
				var err error
				if db == nil {
					if db, err = w.Open(ctx, p); err != nil {
						db = nil
						continue
					}
				}
				a := access{key: w.Keys[w.Draw(len(w.Keys))]}
				if w.Draw(2) == 0 {
					a.write = int(values.Add(1))
				}
				op := porcupine.Operation{ClientId: p, Input: a, Call: int64(time.Since(begin))}
				op.Output, err = a.run(ctx, db)
				op.Return = int64(time.Since(begin))
				if interlock.Kind(err) == interlock.Uncertain && a.write != 0 {
					op.Output, op.Return = unknown, math.MaxInt64
				} else if err == nil {
					done.Add(1)
				}
				if op.Output != unknown || op.Return == math.MaxInt64 {
					mu.Lock()
					log = append(log, op)
					mu.Unlock()
				}
				if err != nil { // the client may be dead
					_ = db.Close(ctx)
					db = nil
				}
			}
			if db != nil {
				_ = db.Close(ctx)
			}
		})
	}
	running.Wait()
	if result := porcupine.CheckOperationsTimeout(register, log, time.Minute); result != porcupine.Ok {
		return int(done.Load()), fmt.Errorf("of %d transactions of single keys the order is %s: %v", len(log), result, log)
	}
	return int(done.Load()), context.Cause(ctx)
}

// run returns the value that it read, or unknown.
func (a access) run(ctx context.Context, db *percolator.DB) (read int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	body := func(tx *percolator.Tx) error {
		value, found, err := tx.Get(ctx, a.key)
		if read = 0; found {
			read = int(binary.BigEndian.Uint64(value))
		}
		if err == nil && a.write != 0 {
			err = tx.Put(a.key, binary.BigEndian.AppendUint64(nil, uint64(a.write)))
		}
		return err
	}
	if a.write == 0 {
		err = db.View(ctx, body)
	} else {
		err = db.Update(ctx, body)
	}
	if err != nil {
		return unknown, err
	}
	return read, nil
}

// TestRegisterModel checks that the checker rejects a read of an old value.
func TestRegisterModel(t *testing.T) {
	log := []porcupine.Operation{
		{ClientId: 0, Input: access{"a", 1}, Output: 0, Call: 0, Return: 1},
		{ClientId: 1, Input: access{"a", 2}, Output: unknown, Call: 2, Return: math.MaxInt64},
		{ClientId: 0, Input: access{"a", 0}, Output: 2, Call: 3, Return: 4},
	}
	if !porcupine.CheckOperations(register, log) {
		t.Error("a write without an answer that took place is refused")
	}
	if porcupine.CheckOperations(register, append(log, porcupine.Operation{Input: access{"a", 0}, Output: 1, Call: 5, Return: 6})) {
		t.Error("a read of an old value is accepted")
	}
}
