package journal

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// chain returns the sum of a record: SHA-256 over the previous record's sum and its own
// fields. Each has its length before it, so that no two records have the same input.
func chain(before []byte, transaction, kind string, position int64, epoch interlock.Token, what, step string, data []byte) []byte {
	const version = "interlock journal 1"
	b := make([]byte, 0, len(version)+len(before)+len(transaction)+len(kind)+len(what)+len(step)+len(data)+(9+2)*8)
	b = appendField(b, version)
	b = appendField(b, before)
	b = appendField(b, transaction)
	b = appendField(b, kind)
	b = binary.BigEndian.AppendUint64(appendLength(b, 8), uint64(position))
	b = binary.BigEndian.AppendUint64(appendLength(b, 8), uint64(epoch))
	b = appendField(b, what)
	b = appendField(b, step)
	b = appendField(b, data)
	sum := sha256.Sum256(b)
	return sum[:]
}

// appendField appends a value after its length.
func appendField[T string | []byte](b []byte, value T) []byte {
	return append(appendLength(b, len(value)), value...)
}

func appendLength(b []byte, n int) []byte { return binary.BigEndian.AppendUint64(b, uint64(n)) }

// The first byte of a record's data shows where the entry's data is.
const (
	inline = 0 // here
	beside = 1 // in a payload, whose sum follows
)

// storePayload returns the data of a record. It passes data above Options.Inline to keep.
func (j *Journal) storePayload(data []byte, keep func(sum, payload []byte) error) ([]byte, error) {
	if len(data) <= j.options.Inline {
		return append(append(make([]byte, 0, 1+len(data)), inline), data...), nil
	}
	sum := sha256.Sum256(data)
	return append([]byte{beside}, sum[:]...), keep(sum[:], data)
}

// entry decodes a record, with its payload from the journal's store.
func (j *Journal) entry(ctx context.Context, transaction string, r driver.Record) (Entry, error) {
	return unstow(transaction, r, func(sum []byte) ([]byte, error) { return j.store.Payload(ctx, transaction, sum) })
}

// unstow decodes a record.
func unstow(transaction string, r driver.Record, payload func(sum []byte) ([]byte, error)) (Entry, error) {
	e := Entry{Kind: r.Kind, Step: r.Step, Position: r.Position, Epoch: r.Epoch, Written: r.Written}
	switch {
	case len(r.Data) > 0 && r.Data[0] == inline:
		e.Data = r.Data[1:]
		return e, nil
	case len(r.Data) == 1+sha256.Size && r.Data[0] == beside:
		data, err := payload(r.Data[1:])
		if err == nil && sha256.Sum256(data) != [sha256.Size]byte(r.Data[1:]) {
			err = damaged(transaction, r.Position, "its payload differs from the stored one, or is missing")
		}
		e.Data = data
		return e, err
	}
	return e, damaged(transaction, r.Position, "its data does not have the format of this package")
}

// damaged reports a record that was not written by this package.
func damaged(transaction string, position int64, why string) error {
	return &interlock.Error{Op: "read journal", Name: transaction, Kind: interlock.Definite,
		Err: fmt.Errorf("record %d is damaged: %s", position, why)}
}
