package guarantees

import (
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
)

// The values of a cell whose promise can be kept or broken.
const (
	yes       = "yes"
	no        = "no"
	sometimes = "if"
)

// Abilities are the types that can be built on a driver, by the id of the promise.
type Abilities map[string]bool

// CellsOf compares a driver's guarantees on a server with default settings and on one
// with durable settings.
func CellsOf(found, set interlock.Guarantees, can Abilities) Cells {
	cells := Cells{
		"token":         either(found.Class == interlock.Fenced, set.Class == interlock.Fenced),
		"guard":         either(found.Class == interlock.Fenced, set.Class == interlock.Fenced),
		"cross-process": either(found.CrossProcess, set.CrossProcess),
		"order":         found.Order.String(),
		"wait":          found.Wait.String(),
		"liveness":      found.Liveness.String() + ", " + found.Clock.String(),
		"blind":         round(found.Blind),
		"ttl":           either(found.MaxTTL > 0, set.MaxTTL > 0),
	}
	for f := interlock.HolderPause; f <= interlock.OperatorDelete; f <<= 1 {
		id := strings.ReplaceAll(f.String(), " ", "-")
		cells["exclusion "+id] = either(found.ExclusionSurvives.Has(f), set.ExclusionSurvives.Has(f))
		cells["tokens "+id] = either(found.TokensSurvive.Has(f), set.TokensSurvive.Has(f))
		if set.Class != interlock.Fenced {
			cells["tokens "+id] = "none"
		}
	}
	for id, ok := range can {
		cells[id] = either(ok, ok)
	}
	return cells
}

func either(found, set bool) string {
	switch {
	case found && set:
		return yes
	case set:
		return sometimes
	}
	return no
}

// round rounds to a tenth of a second.
func round(d time.Duration) string { return d.Round(100 * time.Millisecond).String() }
