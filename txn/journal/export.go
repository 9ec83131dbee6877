package journal

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/interlock-dev/interlock"
)

// An audit is JSONL: a header, one line for each record, and a trailer. Each line ends with the
// SHA-256 of the previous sum and its own text. So changing, removing, moving or adding a line
// changes all lines after it. Each record contains its stored sum, which chains it to its
// transaction.

// line is a line of an audit. A header sets Audit, a trailer End and Lines.
type line struct {
	Audit int `json:"interlock_audit,omitempty"` // the format's version

	Transaction string          `json:"transaction,omitempty"`
	Type        string          `json:"type,omitempty"`
	Position    int64           `json:"position,omitempty"`
	Kind        string          `json:"kind,omitempty"`
	Step        string          `json:"step,omitempty"`
	Epoch       interlock.Token `json:"epoch,omitempty,string"` // above 2^53: many readers would round a number
	Written     *time.Time      `json:"written,omitempty"`
	Data        []byte          `json:"data,omitempty"`   // as in the record
	Beside      []byte          `json:"beside,omitempty"` // the payload whose sum is in Data
	Sum         string          `json:"sum,omitempty"`

	End   bool   `json:"end,omitempty"`
	Lines int    `json:"lines,omitempty"` // of records
	Chain string `json:"chain,omitempty"` // last, and not part of its own input
}

const auditVersion = 1

// Export writes the records of transactions as an audit, one transaction after the other;
// [Journal.Heads] lists ids. It verifies each checksum and stops at the first wrong one.
// Concurrent appends may be missing.
func (j *Journal) Export(ctx context.Context, w io.Writer, transactions ...string) error {
	a := &audit{w: w}
	if err := a.put(line{Audit: auditVersion}); err != nil {
		return err
	}
	for _, id := range transactions {
		if err := j.export(ctx, a, id); err != nil {
			return err
		}
	}
	return a.put(line{End: true, Lines: a.lines})
}

func (j *Journal) export(ctx context.Context, a *audit, id string) error {
	head, records, entries, err := j.read(ctx, id)
	if err != nil {
		return err
	}
	for i, r := range records {
		l := line{Transaction: id, Type: head.Type, Position: r.Position, Kind: r.Kind, Step: r.Step, Epoch: r.Epoch,
			Written: &r.Written, Data: r.Data, Sum: hex.EncodeToString(r.Sum)}
		if r.Data[0] == beside {
			l.Beside = entries[i].Data
		}
		if err := a.add(l); err != nil {
			return err
		}
	}
	return nil
}

// audit writes or reads lines. It keeps the chain, and the sum of the current
// transaction.
type audit struct {
	w           io.Writer
	chain       [sha256.Size]byte
	lines       int
	transaction string
	position    int64
	sum         []byte
}

// add writes the line of a record if its sum is correct.
func (a *audit) add(l line) error {
	if err := a.verify(l); err != nil {
		return err
	}
	a.lines++
	return a.put(l)
}

// put writes a line.
func (a *audit) put(l line) error {
	text, err := a.seal(l)
	if err != nil {
		return err
	}
	_, err = a.w.Write(append(text, '\n'))
	return err
}

// seal returns the text of a line with its link, and advances the chain.
func (a *audit) seal(l line) ([]byte, error) {
	l.Chain = ""
	text, err := json.Marshal(l)
	if err != nil {
		return nil, err
	}
	a.chain = sha256.Sum256(append(a.chain[:], text...))
	l.Chain = hex.EncodeToString(a.chain[:])
	return json.Marshal(l)
}

// verify checks that a record follows the one before it.
func (a *audit) verify(l line) error {
	if l.Transaction != a.transaction || l.Position == 1 { // it can be in an audit twice
		a.transaction, a.position, a.sum = l.Transaction, 0, nil
	}
	sum := chain(a.sum, l.Transaction, l.Type, l.Position, l.Epoch, l.Kind, l.Step, l.Data)
	switch payload := sha256.Sum256(l.Beside); {
	case l.Position != a.position+1:
		return damaged(l.Transaction, l.Position, fmt.Sprintf("it follows record %d", a.position))
	case hex.EncodeToString(sum) != l.Sum:
		return damaged(l.Transaction, l.Position, "its sum differs")
	case len(l.Data) > 0 && l.Data[0] == beside && !bytes.Equal(payload[:], l.Data[1:]):
		return damaged(l.Transaction, l.Position, "its payload differs")
	}
	a.position, a.sum = l.Position, sum
	return nil
}

// Verify reads an audit and returns its number of records. The error names the line that differs
// from what [Journal.Export] wrote, or reports a missing end.
func Verify(r io.Reader) (records int, err error) {
	a, ended := &audit{}, false
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, 8<<20)
	for n := 1; scanner.Scan(); n++ {
		l, err := a.next(scanner.Bytes())
		switch {
		case err != nil:
		case ended:
			err = errors.New("it follows the end")
		case (n == 1) != (l.Audit == auditVersion):
			err = fmt.Errorf("an audit of version %d begins with its header", auditVersion)
		case l.End:
			if ended = true; l.Lines != a.lines {
				err = fmt.Errorf("%d records are announced, %d were found", l.Lines, a.lines)
			}
		case n > 1:
			a.lines++
			err = a.verify(l)
		}
		if err != nil {
			return a.lines, fmt.Errorf("verify audit: line %d: %w", n, err)
		}
	}
	if err := scanner.Err(); err != nil {
		return a.lines, fmt.Errorf("verify audit: %w", err)
	}
	if !ended {
		return a.lines, errors.New("verify audit: its end is missing")
	}
	return a.lines, nil
}

// next reads a line, which must equal the next one of the chain byte for byte: another parser may
// read an equivalent text differently.
func (a *audit) next(text []byte) (l line, err error) {
	if err := json.Unmarshal(text, &l); err != nil {
		return l, err
	}
	switch sealed, err := a.seal(l); {
	case err != nil:
		return l, err
	case !bytes.Equal(text, sealed):
		return l, errors.New("it was changed, or does not follow the line before")
	}
	return l, nil
}
