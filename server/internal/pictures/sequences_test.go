package pictures

import (
	"testing"

	"github.com/interlock-dev/interlock/internal/picture"
)

// TestSequences draws what runs of several processes do; the crash tests of txn/saga and the
// relay tests of flow/outbox run them.
func TestSequences(t *testing.T) {
	for name, s := range map[string]picture.Sequence{"failover": failover(), "outbox": blockedKey()} {
		compare(t, name, s.SVG())
	}
}

// row is a row without a time.
func row(cells ...picture.Cell) picture.Row { return picture.Row{Cells: cells} }

// here is a cell without an arrow.
func here(lane int, text string, tone picture.Tone) picture.Cell {
	return picture.Cell{Lane: lane, To: lane, Text: text, Tone: tone}
}

func failover() picture.Sequence {
	const a, journal, b, bank = 0, 1, 2, 3
	paused := picture.Cell{Lane: a, To: a, Paused: true}
	return picture.Sequence{Title: "A coordinator is paused, and another one takes over its shard",
		Lanes: []string{"coordinator A", "journal", "coordinator B", "bank"},
		Rows: []picture.Row{
			row(picture.Cell{Lane: a, Text: "owns shard 7 with epoch 41"}, here(b, "owns other shards", picture.Dim)),
			row(picture.Cell{Lane: a, To: journal, Text: "append under 41: begin, sent charge"}),
			row(picture.Cell{Lane: a, To: bank, Text: "call charge, key order/3/charge/do"}),
			row(here(bank, "charges, and stores the answer under the key", picture.Good), here(a, "is paused", picture.Bad)),
			row(paused, here(b, "A's lease ends: acquires shard 7 with epoch 42", picture.Normal)),
			row(paused, picture.Cell{Lane: b, To: journal, Text: "enter 42: lower epochs append nothing from now on"}),
			row(paused, picture.Cell{Lane: b, To: journal, Text: "reads order/3: charge was sent, its outcome is unknown"}),
			row(paused, picture.Cell{Lane: b, To: bank, Text: "call charge, the same key"}),
			row(paused, picture.Cell{Lane: bank, To: b, Text: "the stored answer; no second charge", Tone: picture.Good}),
			row(paused, picture.Cell{Lane: b, To: journal, Text: "append under 42: done charge, end"}),
			row(picture.Cell{Lane: a, To: journal, Text: "resumes: append under 41: done charge"}),
			row(here(journal, "rejected: 41 < 42", picture.Good)),
		}}
}

func blockedKey() picture.Sequence {
	const table, relay, sink = 0, 1, 2
	return picture.Sequence{Title: "An outbox in which one key is blocked",
		Lanes: []string{"outbox", "relay", "receiver"},
		Rows: []picture.Row{
			row(here(table, "ann 1, bob 1, ann 2, bob 2, each committed with its data", picture.Normal)),
			row(picture.Cell{Lane: relay, To: sink, Text: "sends ann 1 and bob 1"}),
			row(picture.Cell{Lane: sink, To: relay, Text: "accepts bob 1", Tone: picture.Good}),
			row(picture.Cell{Lane: sink, To: relay, Text: "refuses ann 1", Tone: picture.Bad}),
			row(picture.Cell{Lane: relay, To: table, Text: "blocks the key ann until a pause is over"}, here(table, "ann 1, ann 2 wait", picture.Dim)),
			row(picture.Cell{Lane: relay, To: sink, Text: "sends bob 2: other keys go on"}),
			row(picture.Cell{Lane: sink, To: relay, Text: "accepts bob 2", Tone: picture.Good}),
			row(picture.Cell{Lane: relay, To: sink, Text: "after the pause: sends ann 1 again"}),
			row(picture.Cell{Lane: sink, To: relay, Text: "accepts ann 1", Tone: picture.Good}),
			row(picture.Cell{Lane: relay, To: sink, Text: "sends ann 2: the order within a key is kept"}),
		}}
}
