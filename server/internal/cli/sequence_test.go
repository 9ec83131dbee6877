package cli_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/flow/sequence"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// orderedStream creates the stream "orders": events 3 and 4 of order/42 are missing, and
// the handler refuses event 1 of order/7.
func orderedStream(t *testing.T, db *databases.DB) {
	t.Helper()
	var positions sequence.Table
	db.Do(t, positions.Create)
	identity := func(tx driver.SQL) driver.SQL { return tx }
	handler := sequence.WithDeadLetters(positions, "orders", identity, func(_ context.Context, _ driver.SQL, d sequence.Delivery) error {
		if d.Key == "order/7" {
			return &interlock.Error{Op: "handle", Kind: interlock.Definite, Err: errors.New("no such customer")}
		}
		return nil
	}, &sequence.Poison{Attempts: 1})
	settled := make(chan sequence.Outcome, 1)
	s, err := sequence.New("orders", sequence.InTx[driver.SQL](db, positions), handler, &sequence.Options{Wait: time.Millisecond,
		Settled: func(_ sequence.Event, o sequence.Outcome) { settled <- o }})
	testbed.OK(t, err)
	defer s.Close(context.Background())
	offer := func(key string, seq int64) (sequence.Outcome, error) {
		return s.Offer(t.Context(), sequence.Event{Key: key, Position: sequence.Position{Seq: seq}, Payload: []byte("{}")})
	}
	for seq := range int64(2) {
		if _, err := offer("order/42", seq+1); err != nil {
			t.Fatal(err)
		}
	}
	if o, err := offer("order/42", 5); err != nil || o != sequence.Held {
		t.Fatal(o, err)
	}
	select {
	case o := <-settled:
		if o != sequence.Delivered {
			t.Fatal(o)
		}
	case <-time.After(patience):
		t.Fatal("event 5 is not delivered")
	}
	if _, err := offer("order/7", 1); err == nil {
		t.Fatal("the handler accepts order/7")
	}
	if o, err := offer("order/7", 1); err != nil || o != sequence.Delivered {
		t.Fatal(o, err)
	}
}

// TestSequence lists and closes holes and dead letters of a stream.
func TestSequence(t *testing.T) {
	t.Parallel()
	program(t)
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		url := shopURL(db)
		run(t, 78, "sequence", "holes", "orders", "--backend", url)
		orderedStream(t, db)
		sequenceOf := func(code int, args ...string) (string, string) {
			t.Helper()
			return run(t, code, append(append([]string{"sequence"}, args...), "--backend", url)...)
		}
		var holes []struct {
			Key      string
			From, To int64
		}
		text, _ := sequenceOf(0, "holes", "orders", "-o", "json")
		if err := json.Unmarshal([]byte(text), &holes); err != nil || len(holes) != 2 || holes[0].Key != "order/42" || holes[0].From != 3 || holes[0].To != 4 {
			t.Errorf("%v: %s", err, text)
		}
		var letters []struct {
			Key      string
			Attempts int
			Payload  []byte
		}
		text, _ = sequenceOf(0, "letters", "orders", "-o", "json")
		if err := json.Unmarshal([]byte(text), &letters); err != nil || len(letters) != 1 || letters[0].Attempts != 1 || string(letters[0].Payload) != "{}" {
			t.Errorf("%v: %s", err, text)
		}
		for _, args := range [][]string{{"holes"}, {"write-off", "orders", "order/42"}, {"write-off", "orders", "order/42", "3-4"}, {"discard", "orders", "order/7", "0:1-2"},
			{"holes", "orders", "--limit", "0"}, {"letters", "orders", "--limit", "0"}} {
			sequenceOf(64, args...)
		}
		sequenceOf(1, "write-off", "orders", "order/42", "0:3-5")
		sequenceOf(1, "discard", "orders", "order/42", "0:3")
		sequenceOf(0, "write-off", "orders", "order/42", "0:3-4")
		if text, _ := sequenceOf(0, "discard", "orders", "order/7", "0:1", "-o", "json"); text != `{"done":"discarded","key":"order/7","at":"0:1"}`+"\n" {
			t.Errorf("discarded: %s", text)
		}
		for list, none := range map[string]string{"holes": "open holes", "letters": "dead letters"} {
			if text, said := sequenceOf(0, list, "orders"); text != "" || said != "interlock: there are no "+none+" in orders\n" {
				t.Errorf("%s: %q, and %q", list, text, said)
			}
			if text, _ := sequenceOf(0, list, "orders", "-o", "json"); text != "[]\n" {
				t.Errorf("%s: %s", list, text)
			}
		}
	}, databases.Pgx, databases.Maria)
}
