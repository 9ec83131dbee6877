// Package guarantees generates docs/GUARANTEES.md: what each driver reports on a real
// server, with the test that proves it or the scenario that breaks it. It makes no
// promises itself. It checks that the tests exist and that the drivers report this; the
// author decides whether a test proves it.
//
//	table, err := guarantees.Load()
//	page := table.Markdown()
package guarantees

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/interlock-dev/interlock"
)

//go:embed proofs.yaml
var proofs []byte

// said is written by `go test ./server/internal/guarantees -update`.
//
//go:embed said.json
var said []byte

// Table is every promise of every backend.
type Table struct {
	Backends []Backend
	Promises []Promise
	// Said has the cells as the drivers report them: backend, then promise.
	Said map[string]Cells `yaml:"-"`
	// Sections are the tables of guarantees that drivers do not report.
	Sections []Section `yaml:"-"`
}

// Cells are the values of one backend, by the id of the promise.
type Cells map[string]string

// Backend is a column.
type Backend struct {
	ID    string
	Title string
	// If is the setting on which the cells "if" depend.
	If string
	// Suites are the tests that run the conformance suites on it, by suite.
	Suites map[string]string
}

// Promise is a row.
type Promise struct {
	ID    string
	Title string
	Short string // in the grid, below a row with the same beginning; empty means Title
	// Proofs are the proofs of a cell by its value; "*" is for all others.
	Proofs map[string][]string
	// Cells are proofs for single backends, which replace Proofs.
	Cells map[string][]string
}

// Load reads the table.
func Load() (*Table, error) {
	t := &Table{}
	d := yaml.NewDecoder(bytes.NewReader(proofs))
	d.KnownFields(true)
	if err := d.Decode(t); err != nil {
		return nil, fmt.Errorf("proofs.yaml: %w", err)
	}
	if err := json.Unmarshal(said, &t.Said); err != nil {
		return nil, fmt.Errorf("said.json: %w", err)
	}
	var err error
	t.Sections, err = sections()
	return t, err
}

// untested is the prefix of an entry without a proof, before the reason.
const untested = "untested:"

// notYet is the cell of a backend without a reporting driver.
const notYet = "not yet"

// Cell returns the value of a backend for a promise.
func (t *Table) Cell(b Backend, p Promise) string {
	if cell := t.Said[b.ID][p.ID]; cell != "" {
		return cell
	}
	return notYet
}

// Proof returns the evidence for a cell; nil if there is no entry for it. A cell "if"
// has that of both outcomes.
func (t *Table) Proof(b Backend, p Promise) []string {
	cell := t.Cell(b, p)
	if own := p.Cells[b.ID]; own != nil {
		return own
	}
	switch {
	case cell == notYet:
		return []string{untested + " no driver"}
	case p.Proofs[cell] != nil:
		return p.Proofs[cell]
	case cell == sometimes && p.Proofs[yes] != nil && p.Proofs[no] != nil:
		return append(append([]string{}, p.Proofs[yes]...), p.Proofs[no]...)
	}
	return p.Proofs["*"]
}

// Untested reports whether no test proves a cell.
func (t *Table) Untested(b Backend, p Promise) bool {
	for _, proof := range t.Proof(b, p) {
		if !strings.HasPrefix(proof, untested) {
			return false
		}
	}
	return true
}

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

//go:embed flow.yaml
var flow []byte

// Section is a table that is written by hand: drivers of queues, sinks and limits report no
// guarantees.
type Section struct {
	Title, Text string
	Columns     []string
	Rows        []Row
}

// Row is one promise.
type Row struct {
	Promise string
	Cells   []string // yes, no or if, by column
	Proof   []string // for the cells other than no
	Note    string
}

// sections reads flow.yaml.
func sections() (all []Section, err error) {
	d := yaml.NewDecoder(bytes.NewReader(flow))
	d.KnownFields(true)
	if err := d.Decode(&all); err != nil {
		return nil, fmt.Errorf("flow.yaml: %w", err)
	}
	return all, nil
}

// markdown writes the section of the page.
func (s Section) markdown(b *strings.Builder) {
	fmt.Fprintf(b, "\n# %s\n\n%s\n\n", s.Title, s.Text)
	gridOf(b, append(s.Columns, "proof"), len(s.Rows), func(i int) (string, []string) {
		proof := shown(s.Rows[i].Proof)
		return s.Rows[i].Promise, append(append([]string{}, s.Rows[i].Cells...), proof)
	})
	b.WriteString("\n")
	for _, r := range s.Rows {
		if r.Note != "" {
			fmt.Fprintf(b, "- %s: %s\n", strings.TrimPrefix(r.Promise, "… "), r.Note)
		}
	}
}
