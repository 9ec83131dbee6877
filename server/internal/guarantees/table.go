// Package guarantees makes docs/GUARANTEES.md: what each driver said of itself on
// a real server, beside the test that proves it or the scenario that breaks it.
// It promises nothing itself: whether a test proves what the page says is for its
// author to judge; that it exists, and that the drivers say so, is checked.
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

	"go.yaml.in/yaml/v3"
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
	// Said has the cells as the drivers gave them: backend, then promise.
	Said map[string]Cells `yaml:"-"`
	// Sections are the tables of what drivers do not say themselves.
	Sections []Section `yaml:"-"`
}

// Cells are the values of one backend, by the id of the promise.
type Cells map[string]string

// A Backend is a column.
type Backend struct {
	ID    string
	Title string
	// If is the setting on which the cells "if" depend.
	If string
	// Suites are the tests that run the conformance suites on it, by suite.
	Suites map[string]string
}

// A Promise is a row.
type Promise struct {
	ID    string
	Title string
	Short string // in the grid, below a row that begins alike; empty is Title
	// Proofs are those of a cell by what it says; "*" is for all others.
	Proofs map[string][]string
	// Cells are proofs for single backends instead.
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

// untested begins a proof that there is none, with the reason.
const untested = "untested:"

// notYet is the cell of a backend that no driver spoke for.
const notYet = "not yet"

// Cell is the value of a backend for a promise.
func (t *Table) Cell(b Backend, p Promise) string {
	if cell := t.Said[b.ID][p.ID]; cell != "" {
		return cell
	}
	return notYet
}

// Proof is the evidence for a cell; nil if there is no entry for it. A cell "if"
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

// Untested reports that no test proves a cell.
func (t *Table) Untested(b Backend, p Promise) bool {
	for _, proof := range t.Proof(b, p) {
		if !strings.HasPrefix(proof, untested) {
			return false
		}
	}
	return true
}
