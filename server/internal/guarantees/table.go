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
