package outbox_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/internal/generated"
	"github.com/interlock-dev/interlock/internal/picture"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/observe"
)

// TestPicture draws docs/pictures/outbox.svg from what a relay sends, and what its receiver
// answers, when one key is blocked. `make pictures` writes it.
func TestPicture(t *testing.T) {
	const table, sender, receiver = 0, 1, 2
	var mu sync.Mutex
	var rows []picture.Row
	show := func(c picture.Cell) {
		mu.Lock()
		defer mu.Unlock()
		rows = append(rows, picture.Row{Cells: []picture.Cell{c}})
	}
	refused := false
	var sink memory.Sink
	sink.Refuse(func(m driver.Message) error {
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
	}}})
	ok(t, err)
	serve(t, r, grant(1))
	delivered(t, &sink, len(messages))
	empty(t, db)
	show(picture.Cell{Lane: table, To: table, Text: "is empty; the messages of each key arrived in their order"})

	svg := picture.Sequence{Title: "An outbox in which one key is blocked", Lanes: []string{"outbox", "relay", "receiver"}, Rows: rows}.SVG()
	generated.Check(t, "../../docs/pictures/outbox.svg", svg)
}
