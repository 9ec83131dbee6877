package outbox_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/flow/outbox"

	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// TestOutbox runs every test on every database, by each of its clients.
func TestOutbox(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		test func(t *testing.T, db *databases.DB)
	}{
		{"messages arrive as they were added", testArrive},
		{"poison blocks only its key", testPoisonBlocksItsKey},
		{"retries hold up only their key", testRetries},
		{"dead letters are replayed in order", testDeadLetters},
		{"nothing passes a dead letter if told so", testParkedBehindADeadLetter},
		{"an operator frees a key", testByHand},
		{"a message dies twice", testDiesTwice},
		{"a letter is replayed before a delayed message", testReplayBeforeDelayed},
		{"a message fails before a delayed one", testFailureBeforeDelayed},
		{"a message is buried too late", testBuryTooLate},
		{"records of what was done by hand are trimmed", testAuditIsTrimmed},
		{"a retry waits for nobody", testRetryWaitsForNobody},
		{"a clock is set back", testClockSetBack},
		{"what is read is bounded", testReadsAreBounded},
		{"headers fill a statement", testHeadersFill},
		{"the database is away at first", testAwayAtFirst},
		{"a relay is told to end while it waits to enter", testEndsEntering},
		{"a delayed message delays its key", testDelayed},
		{"late commits are neither lost nor out of order", testLateCommits},
		{"long transactions hold nobody up", testLongTransactions},
		{"ids are drawn after the locks", testIDsAfterLocks},
		{"adds that cross", testCrossedAdds},
		{"costs", testCosts},
		{"an overtaken owner deletes nothing", testOvertaken},
		{"a relay ends with its claim", testEnds},
		{"a sink that is stuck", testStuckSink},
		{"a sink that is away", testSinkAway},
		{"wakes", testWakes},
		{"other layouts are refused", testLayouts},
		{"bad messages are refused", testBadMessages},
		{"relays that overtake each other", testTogether},
		{"throughput", testThroughput},
	}
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		for _, tt := range tests {
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
	var chunks []string
	for _, id := range firsts(sink.Messages()) {
		if strings.HasPrefix(id, "chunks/") {
			chunks = append(chunks, id)
		}
	}
	if i := slices.IndexFunc(chunks, func(id string) bool { return id != fmt.Sprintf("chunks/%d", slices.Index(chunks, id)+1) }); i >= 0 {
		t.Errorf("%s came at place %d", chunks[i], i)
	}
	if len(sink.Messages()) != len(all) {
		t.Errorf("%d deliveries of %d messages", len(sink.Messages()), len(all))
	}
}
