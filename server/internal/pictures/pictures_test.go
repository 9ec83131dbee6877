package pictures

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/picture"
	"github.com/interlock-dev/interlock/server/internal/advise"
	"github.com/interlock-dev/interlock/txn"
	"github.com/interlock-dev/interlock/txn/saga"
)

var update = flag.Bool("update", false, "draw docs/pictures")

const docs = "../../../docs/"

// compare writes a picture, or compares it with the one that the docs have.
func compare(t *testing.T, name, svg string) {
	t.Helper()
	file := filepath.Join(docs, "pictures", name+".svg")
	if *update {
		if err := os.WriteFile(file, []byte(svg), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(file); err != nil || string(have) != svg {
		t.Errorf("%s is out of date (%v): go test ./server/internal/pictures -update", file, err)
	}
}

// TestLatency draws the times of docs/reference/performance.md.
func TestLatency(t *testing.T) {
	text, err := os.ReadFile(docs + "reference/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	chart := picture.Chart{Title: "Acquire and release a free lock: median on one machine, logarithmic"}
	for _, row := range regexp.MustCompile(`(?m)^\| ([^|]+) \| [^|]+ \| [0-9.]+ \| ([0-9.]+[µm]s) \|`).FindAllStringSubmatch(string(text), -1) {
		took, err := time.ParseDuration(row[2])
		if err != nil {
			t.Fatal(err)
		}
		chart.Bars = append(chart.Bars, picture.Bar{Name: row[1], Value: took.Seconds(), Text: row[2]})
	}
	if len(chart.Bars) < 9 {
		t.Fatalf("the page has %d times", len(chart.Bars))
	}
	slices.SortStableFunc(chart.Bars, func(a, b picture.Bar) int { return int(1e9 * (a.Value - b.Value)) })
	compare(t, "latency", chart.SVG())
}

// TestAdvice draws the first table of `interlock advise`.
func TestAdvice(t *testing.T) {
	guides, err := advise.Load()
	if err != nil {
		t.Fatal(err)
	}
	guide := guides.Guides[0]
	d := picture.Decisions{Title: guide.Title + ": take the first row that fits"}
	for _, row := range guide.Rows {
		var conditions []string
		for _, id := range guide.Asks {
			var says []string
			for _, answer := range row.When[id] {
				says = append(says, strings.TrimSuffix(answerOf(guides, id, answer), "."))
			}
			if len(says) > 0 {
				conditions = append(conditions, strings.Join(says, ", or "))
			}
		}
		d.Rules = append(d.Rules, picture.Rule{When: strings.Join(conditions, "; and "), Then: row.Choose})
	}
	compare(t, "advise", d.SVG())
}

func answerOf(g *advise.Guides, question, answer string) string {
	for _, q := range g.Questions {
		for _, a := range q.Answers {
			if q.ID == question && a.ID == answer {
				return a.Says
			}
		}
	}
	return answer
}

// The lanes of the saga.
const (
	coordinator = iota
	store
	stock
	bank
	post
)

// film records a run as a sequence.
type film struct {
	driver.Journal
	began time.Time

	mu   sync.Mutex
	rows []picture.Row
}

func (f *film) add(cells ...picture.Cell) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := fmt.Sprintf("%.2f s", time.Since(f.began).Seconds())
	f.rows = append(f.rows, picture.Row{At: at, Cells: cells})
}

// Append shows the records that become durable.
func (f *film) Append(ctx context.Context, appends []driver.Append) []error {
	for _, a := range appends {
		var kinds []string
		for _, r := range a.Records {
			kinds = append(kinds, strings.TrimSpace(r.Kind+" "+r.Step))
		}
		f.add(picture.Cell{Lane: coordinator, To: store, Text: "append: " + strings.Join(kinds, ", "), Tone: picture.Dim})
	}
	return f.Journal.Append(ctx, appends)
}

// call is a step or an undo, which takes a tenth of a second.
func (f *film) call(lane int, name string, failure error) (string, error) {
	f.add(picture.Cell{Lane: coordinator, Text: "call " + name, To: lane})
	time.Sleep(100 * time.Millisecond)
	if failure != nil {
		f.add(picture.Cell{Lane: lane, To: coordinator, Text: name + " refused: " + failure.Error(), Tone: picture.Bad})
		return "", saga.Fail(failure)
	}
	f.add(picture.Cell{Lane: lane, To: coordinator, Text: name + " done", Tone: picture.Good})
	return "", nil
}

// TestSaga draws a saga whose pivot is refused: its steps are undone in reverse.
func TestSaga(t *testing.T) {
	f := &film{Journal: memory.NewJournal()}
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(30 * 365 * 24 * time.Hour) // tokens count from 2020
		step := func(lane int, name string, failure error) func(context.Context, string) (string, error) {
			return func(context.Context, string) (string, error) { return f.call(lane, name, failure) }
		}
		undo := func(lane int, name string) func(context.Context, string, *string) error {
			return func(context.Context, string, *string) error { _, err := f.call(lane, name, nil); return err }
		}
		order := saga.Define("order",
			saga.Step("reserve", step(stock, "reserve", nil)).Undo("release", undo(stock, "release")),
			saga.Step("charge", step(bank, "charge", nil)).Undo("refund", undo(bank, "refund")),
			saga.Step("ship", step(post, "ship", errors.New("too heavy"))).Pivot())
		rt, err := txn.New(t.Context(), f, memory.NewSpace().Open(nil), nil, &txn.Options{Shards: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer rt.Close(t.Context())
		engine, err := saga.New(rt.Coordinator(), nil, order)
		if err == nil {
			err = rt.Start(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		f.began = time.Now()
		outcome, err := order.Do(t.Context(), engine, "order/2", "piano")
		if outcome.State != saga.Compensated {
			t.Errorf("it ended as %v, %v", outcome.State, err)
		}
		f.add(picture.Cell{Lane: coordinator, To: coordinator, Text: "answer: " + string(outcome.State)})
	})
	compare(t, "saga", picture.Sequence{Title: "A saga whose pivot is refused",
		Lanes: []string{"coordinator", "journal", "stock", "bank", "post (pivot)"}, Rows: f.rows}.SVG())
}
