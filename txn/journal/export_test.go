package journal_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/txn/journal"
)

// exported returns an audit of two transactions, one with a payload.
func exported(t *testing.T, store driver.Journal) string {
	t.Helper()
	j := open(t, store, &journal.Options{Inline: 10})
	for i := range 2 {
		log, err := j.Begin(t.Context(), fmt.Sprint("order/", i), "order", due, says("begin", "sent")...)
		ok(t, err)
		ok(t, log.End(t.Context(), says("a result that is long")...))
	}
	return export(t, j)
}

func export(t *testing.T, j *journal.Journal) string {
	t.Helper()
	var b bytes.Buffer
	ok(t, j.Export(t.Context(), &b, "order/0", "order/1"))
	return b.String()
}

// TestAudit: Verify accepts an audit, and detects any change of it. Another text with the same meaning is
// a change, too: another parser may read it differently.
func TestAudit(t *testing.T) {
	store := memory.NewJournal()
	text := exported(t, store)
	if n, err := journal.Verify(strings.NewReader(text)); n != 6 || err != nil {
		t.Fatalf("%d records, %v:\n%s", n, err, text)
	}
	var twice bytes.Buffer
	ok(t, open(t, store, nil).Export(t.Context(), &twice, "order/0", "order/0"))
	if n, err := journal.Verify(&twice); n != 6 || err != nil {
		t.Errorf("a transaction twice: %d records, %v", n, err)
	}
	lines := strings.SplitAfter(strings.TrimSuffix(text, "\n"), "\n")
	for i := range lines {
		without := strings.Join(append(append([]string{}, lines[:i]...), lines[i+1:]...), "")
		if _, err := journal.Verify(strings.NewReader(without)); err == nil {
			t.Errorf("without line %d: accepted", i+1)
		}
		if i+1 < len(lines) {
			swapped := append([]string{}, lines...)
			swapped[i], swapped[i+1] = swapped[i+1], swapped[i]
			if _, err := journal.Verify(strings.NewReader(strings.Join(swapped, ""))); err == nil {
				t.Errorf("lines %d and %d swapped: accepted", i+1, i+2)
			}
		}
	}
	for what, change := range map[string][2]string{
		"another kind":        {`"kind":"sent"`, `"kind":"done"`},
		"another position":    {`"position":2`, `"position":5`},
		"another id":          {"order/1", "order/7"},
		"another number":      {`"lines":6`, `"lines":5`},
		"another field":       {`{"transaction"`, `{"approved":true,"transaction"`},
		"a field twice":       {`"kind":"sent"`, `"kind":"lost","kind":"sent"`},
		"a field in capitals": {`"kind":"sent"`, `"KIND":"sent"`},
		"a space":             {`"kind":"sent"`, `"kind": "sent"`},
		"an escape":           {`"kind":"sent"`, `"kind":"s\u0065nt"`},
	} {
		changed := strings.Replace(text, change[0], change[1], 1)
		if _, err := journal.Verify(strings.NewReader(changed)); err == nil || changed == text {
			t.Errorf("%s: accepted", what)
		}
	}
	if _, err := journal.Verify(strings.NewReader(text + lines[1])); err == nil {
		t.Error("a line after the end: accepted")
	}
	if _, err := journal.Verify(strings.NewReader("")); err == nil {
		t.Error("nothing: accepted")
	}
}

// TestAuditKeepsTokens: an epoch above the exact integers of JSON readers is kept to the
// last digit.
func TestAuditKeepsTokens(t *testing.T) {
	store := memory.NewJournal()
	j := open(t, store, nil)
	c := grant(1)
	shard, err := j.Own(t.Context(), c, j.ShardOf("order/0"))
	ok(t, err)
	log, err := j.Begin(t.Context(), "order/0", "order", due, says("begin")...)
	ok(t, err)
	log, _, err = shard.Open(t.Context(), log.Head().Transaction)
	ok(t, err)
	ok(t, log.End(t.Context(), says("done")...))
	var b bytes.Buffer
	ok(t, j.Export(t.Context(), &b, "order/0"))
	text := b.String()
	if number := fmt.Sprint(int64(c.Token())); !strings.Contains(text, `"epoch":"`+number+`"`) || int64(c.Token()) < 1<<53 {
		t.Errorf("no epoch %q:\n%s", number, text)
	}
	if n, err := journal.Verify(strings.NewReader(text)); n != 2 || err != nil {
		t.Errorf("%d records, %v", n, err)
	}
	if _, err := journal.Verify(strings.NewReader(strings.Replace(text, fmt.Sprint(int64(c.Token())), fmt.Sprint(int64(c.Token())+1), 1))); err == nil {
		t.Error("another epoch: accepted")
	}
}

// forged returns one record with changes.
type forged struct {
	driver.Journal
	change func(*driver.Record)
}

func (f forged) Read(ctx context.Context, id string, after int64) (driver.Head, []driver.Record, error) {
	head, records, err := f.Journal.Read(ctx, id, after)
	if len(records) > 1 && id == "order/1" {
		f.change(&records[1])
	}
	return head, records, err
}

// TestForgedRecord: a record that was changed in the store is not exported.
func TestForgedRecord(t *testing.T) {
	for name, change := range map[string]func(*driver.Record){
		"kind": func(r *driver.Record) { r.Kind = "done" }, "step": func(r *driver.Record) { r.Step = "x" },
		"data": func(r *driver.Record) { r.Data = append(r.Data, 'x') }, "epoch": func(r *driver.Record) { r.Epoch = 5 << 12 },
		"position": func(r *driver.Record) { r.Position = 3 }, "no data": func(r *driver.Record) { r.Data = nil },
	} {
		store := memory.NewJournal()
		exported(t, store)
		j := open(t, forged{store, change}, nil)
		if err := j.Export(t.Context(), &bytes.Buffer{}, "order/0", "order/1"); interlock.Kind(err) != interlock.Definite {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// forgetful is a store that forgets ended transactions before it reads a payload.
type forgetful struct{ *memory.Journal }

func (f forgetful) Payload(ctx context.Context, id string, sum []byte) ([]byte, error) {
	if _, err := f.Forget(ctx, time.Now().Add(time.Hour), 100); err != nil {
		return nil, err
	}
	return f.Journal.Payload(ctx, id, sum)
}

// TestForgottenMeanwhile: a transaction that is forgotten while it is read does not exist, and is not
// reported as damaged.
func TestForgottenMeanwhile(t *testing.T) {
	for name, read := range map[string]func(j *journal.Journal) error{
		"open": func(j *journal.Journal) error {
			log, entries, err := j.Open(t.Context(), "order/1")
			if log != nil || entries != nil {
				t.Errorf("%d entries of a forgotten transaction", len(entries))
			}
			return err
		},
		"export": func(j *journal.Journal) error {
			var b bytes.Buffer
			if err := j.Export(t.Context(), &b, "order/0", "order/1"); err != nil {
				return err
			}
			n, err := journal.Verify(&b)
			if n != 0 {
				t.Errorf("%d records of forgotten transactions", n)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			store := memory.NewJournal()
			exported(t, store)
			ok(t, read(open(t, forgetful{store}, nil)))
		})
	}
}
