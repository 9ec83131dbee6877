package pictures

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/picture"
)

// film records a run in virtual time as the rows of a sequence.
type film struct {
	mu     sync.Mutex
	began  time.Time
	rows   []picture.Row
	paused []picture.Cell    // of every row, while a process is paused
	epochs []interlock.Token // in the order of first use
}

func (f *film) add(cells ...picture.Cell) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := fmt.Sprintf("%.2f s", time.Since(f.began).Seconds())
	f.rows = append(f.rows, picture.Row{At: at, Cells: append(cells, f.paused...)})
}

// pause marks a lane as paused in all rows until the next call; without lanes, none is.
func (f *film) pause(lanes ...int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.paused = nil
	for _, lane := range lanes {
		f.paused = append(f.paused, picture.Cell{Lane: lane, To: lane, Paused: true})
	}
}

// epoch numbers tokens in the order of their first use: 1, 2, …
func (f *film) epoch(token interlock.Token) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Contains(f.epochs, token) {
		f.epochs = append(f.epochs, token)
	}
	return 1 + slices.Index(f.epochs, token)
}

// recorder is the journal of a process in a lane. The film records its appends.
type recorder struct {
	driver.Journal
	*film
	lane, store int
	epochs      bool // whether the film shows them
}

func kinds(records []driver.Record) string {
	var all []string
	for _, r := range records {
		all = append(all, strings.TrimSpace(r.Kind+" "+r.Step))
	}
	return strings.Join(all, ", ")
}

func (r recorder) Append(ctx context.Context, appends []driver.Append) []error {
	for _, a := range appends {
		text := "append: "
		if r.epochs && a.Epoch != 0 {
			text = fmt.Sprintf("append under epoch %d: ", r.epoch(a.Epoch))
		}
		r.add(picture.Cell{Lane: r.lane, To: r.store, Text: text + kinds(a.Records), Tone: picture.Dim})
	}
	errs := r.Journal.Append(ctx, appends)
	for _, err := range errs {
		var stale *interlock.StaleTokenError
		if errors.As(err, &stale) {
			text := fmt.Sprintf("rejected: epoch %d is lower than %d", r.epoch(stale.Got), r.epoch(stale.Seen))
			r.add(picture.Cell{Lane: r.store, To: r.lane, Text: text, Tone: picture.Good})
		}
	}
	return errs
}
