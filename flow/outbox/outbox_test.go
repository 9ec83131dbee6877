package outbox_test

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/internal/generated"
	"github.com/interlock-dev/interlock/internal/picture"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/observe"
)

// TestOutbox runs every test on every database, by one of its clients. It runs tests
// that send each kind of statement by the other client too, and with
// INTERLOCK_CRASHES=full all tests.
func TestOutbox(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		test func(t *testing.T, db *databases.DB)
		all  bool // by each client
	}{
		{"messages arrive as they were added", testArrive, true},
		{"poison blocks only its key", testPoisonBlocksItsKey, true},
		{"retries hold up only their key", testRetries, false},
		{"dead letters are replayed in order", testDeadLetters, true},
		{"nothing passes a dead letter if the option is set", testParkedBehindADeadLetter, false},
		{"an operator frees a key", testByHand, true},
		{"a message dies twice", testDiesTwice, false},
		{"a letter is replayed before a delayed message", testReplayBeforeDelayed, false},
		{"a message is buried too late", testBuryTooLate, false},
		{"records of what was done by hand are trimmed", testAuditIsTrimmed, true},
		{"a retry waits for nobody", testRetryWaitsForNobody, false},
		{"a clock is set back", testClockSetBack, false},
		{"what is read is bounded", testReadsAreBounded, false},
		{"a long queue of a key", testLongQueue, false},
		{"a first read of large messages", testFirstRead, false},
		{"a letter is discarded meanwhile", testDiscardedMeanwhile, false},
		{"headers fill a statement", testHeadersFill, true},
		{"the database is away at first", testAwayAtFirst, false},
		{"a relay ends while it waits to enter", testEndsEntering, false},
		{"a delayed message delays its key", testDelayed, true},
		{"late commits are neither lost nor out of order", testLateCommits, false},
		{"long transactions hold nobody up", testLongTransactions, false},
		{"ids are drawn after the locks", testIDsAfterLocks, false},
		{"adds that cross", testCrossedAdds, false},
		{"costs", testCosts, false},
		{"cost of a message", testCostOfAMessage, false},
		{"an overtaken owner deletes nothing", testOvertaken, false},
		{"a relay ends with its claim", testEnds, false},
		{"a sink that is stuck", testStuckSink, false},
		{"a sink that is away", testSinkAway, false},
		{"a sink that requests a pause", testPauseRequested, false},
		{"hooks that block", testBlockingHooks, false},
		{"wakes", testWakes, false},
		{"a key is freed while the relay waits", testFreedWhileIdle, false},
		{"other layouts are refused", testLayouts, false},
		{"bad messages are refused", testBadMessages, true},
		{"relays that overtake each other", testTogether, false},
		{"the number of slices changes under load", testSetSlices, false},
		{"a change of slices waits for writers", testSlicesWaitForWriters, false},
		{"a change of slices that was interrupted", testSlicesInterrupted, false},
		{"a writer of before a change of slices", testSlicesOldSnapshot, false},
		{"what was sent before a change of slices", testSlicesOldRelay, true},
		{"a relay reads in the middle of a change of slices", testSlicesMidway, false},
		{"a message is buried meanwhile", testBuriedMeanwhile, false},
		{"impossible changes of slices", testSlicesRefused, false},
	}
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		other := strings.Contains(t.Name(), "database/sql") || strings.Contains(t.Name(), "interpolated")
		for _, tt := range tests {
			if other && !tt.all && !crash.Full() {
				continue
			}
			t.Run(tt.name, func(t *testing.T) {
				t.Parallel()
				tt.test(t, made(t, open(t)))
			})
		}
	})
}

func testArrive(t *testing.T, db *databases.DB) {
	all := []driver.Message{
		{ID: `it's "1"\, {NULL} ?`, Topic: `to"p\ic`, Key: `k'"\{},é`, Headers: map[string]string{"a": "1", "é": "\"x\"\\"}, Payload: []byte("a\x00\xff'\\")},
		{Topic: "t"},
		{Topic: "t", Key: "k", Payload: []byte{}},
		{ID: "NULL", Topic: "null", Key: "null", Payload: bytes.Repeat([]byte{0, 255}, 1<<18)},
	}
	all = append(all, keyed("chunks", 1, 1500)...)
	add(t, db, all...)
	var sink memory.Sink
	stop := serve(t, relay(t, db, &sink, outbox.Options{}), grant(1))
	delivered(t, &sink, len(all))
	empty(t, db)
	if err := stop(); err == nil || !strings.Contains(err.Error(), context.Canceled.Error()) {
		t.Errorf("ended by %v", err)
	}
	got := map[string]driver.Message{}
	for _, m := range sink.Messages() {
		got[m.Topic+"|"+m.Key+"|"+string(m.Payload)] = m
	}
	for _, m := range all {
		g := got[m.Topic+"|"+m.Key+"|"+string(m.Payload)]
		if m.ID != "" && g.ID != m.ID || g.ID == "" || !maps.Equal(g.Headers, m.Headers) || !bytes.Equal(g.Payload, m.Payload) {
			t.Errorf("%.80v came as %.80v", m, g)
		}
	}
	inOrder(t, "chunks", firsts(sink.Messages()), 1500)
	if len(sink.Messages()) != len(all) {
		t.Errorf("%d deliveries of %d messages", len(sink.Messages()), len(all))
	}
}

// TestPicture draws docs/pictures/outbox.svg from a relay's requests and its receiver's
// answers while one key is blocked. `make pictures` writes it.
func TestPicture(t *testing.T) {
	const table, sender, receiver = 0, 1, 2
	var mu sync.Mutex
	var rows []picture.Row
	show := func(c picture.Cell) {
		mu.Lock()
		defer mu.Unlock()
		rows = append(rows, picture.Row{Cells: []picture.Cell{c}})
	}
	refused, reported := false, make(chan struct{})
	var sink memory.Sink
	sink.Refuse(func(m driver.Message) error {
		if m.ID == "ann/1" && refused {
			<-reported
		}
		show(picture.Cell{Lane: sender, To: receiver, Text: "sends " + m.ID})
		if m.ID == "ann/1" && !refused {
			refused = true
			show(picture.Cell{Lane: receiver, To: sender, Text: "refuses " + m.ID + " for now", Tone: picture.Bad})
			return errors.New("not now")
		}
		show(picture.Cell{Lane: receiver, To: sender, Text: "accepts " + m.ID, Tone: picture.Good})
		return nil
	})
	db, one := databases.Open(t, testbed.Postgres(t), databases.Pgx), outbox.Table{Slices: 1}
	db.Do(t, one.Create)
	messages := []driver.Message{keyed("ann", 1, 1)[0], keyed("bob", 1, 1)[0], keyed("ann", 2, 2)[0], keyed("bob", 2, 2)[0]}
	var ids []string
	for _, m := range messages {
		ids = append(ids, m.ID)
		add(t, db, m)
	}
	show(picture.Cell{Lane: table, To: table, Text: strings.Join(ids, ", ") + ": each committed with its data"})
	r, err := outbox.NewRelay(db, one, &sink, &outbox.Options{Hooks: &observe.Outbox{Failed: func(e observe.OutboxFailed) {
		show(picture.Cell{Lane: sender, To: table, Text: "the key " + e.Key + " waits for a pause; other keys go on", Tone: picture.Dim})
		close(reported)
	}}})
	ok(t, err)
	serve(t, r, grant(1))
	delivered(t, &sink, len(messages))
	empty(t, db)
	show(picture.Cell{Lane: table, To: table, Text: "is empty; the messages of each key arrived in their order"})

	svg := picture.Sequence{Title: "An outbox in which one key is blocked", Lanes: []string{"outbox", "relay", "receiver"}, Rows: rows}.SVG()
	generated.Check(t, "../../docs/pictures/outbox.svg", svg)
}
