package guarantees

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/internal/testbed"
)

const top = "../../../" // of the repository

const page = top + "docs/GUARANTEES.md"

// TestPage checks that the page is generated from the table.
func TestPage(t *testing.T) {
	t.Parallel()
	if *update {
		t.Skip("it is written when the servers have been asked")
	}
	if got, err := os.ReadFile(page); err != nil || string(got) != load(t).Markdown() {
		t.Errorf("docs/GUARANTEES.md is out of date (%v): go test ./server/internal/guarantees -update", err)
	}
}

// TestReadme checks that the part of the table in the README, between two comments, is
// up to date.
func TestReadme(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(top + "README.md")
	testbed.OK(t, err)
	_, rest, ok := strings.Cut(string(text), "<!-- guarantees -->\n")
	if !ok {
		t.Skip("the README has no such part")
	}
	if part, _, _ := strings.Cut(rest, "<!-- /guarantees -->"); part != load(t).Summary() {
		t.Errorf("between its comments README.md should have:\n%s", load(t).Summary())
	}
}

// TestEveryCellHasAProof checks that the proof exists: a case of a suite that the backend
// runs, a test, or a reason for its absence.
func TestEveryCellHasAProof(t *testing.T) {
	t.Parallel()
	table, tree := load(t), &tree{t: t, cases: casesOf(t), tests: map[string]map[string]string{}}
	for _, b := range table.Backends {
		for suite, by := range b.Suites {
			dir, test, _ := strings.Cut(by, " ")
			if body := tree.body(dir, test); body == "" {
				t.Errorf("%s: the suite %s is run by %s, which does not exist", b.ID, suite, by)
			} else if !runs(body, suite) {
				t.Errorf("%s: %s does not run the suite %s", b.ID, by, suite)
			}
		}
		for _, p := range table.Promises {
			proofs := table.Proof(b, p)
			if len(proofs) == 0 {
				t.Errorf("%s, %s: there is no proof of %q", b.ID, p.ID, table.Cell(b, p))
			}
			for _, proof := range proofs {
				if why := tree.refuses(b, proof); why != "" {
					t.Errorf("%s, %s: %s: %s", b.ID, p.ID, proof, why)
				}
			}
		}
	}
}

// TestEveryYesCanFail checks that every kept promise has a test.
func TestEveryYesCanFail(t *testing.T) {
	t.Parallel()
	table := load(t)
	for _, b := range table.Backends {
		for _, p := range table.Promises {
			if cell := table.Cell(b, p); (cell == yes || cell == sometimes) && table.Untested(b, p) {
				t.Errorf("%s, %s: the cell is %s, and no test can fail", b.ID, p.ID, cell)
			}
		}
	}
	one := Backend{ID: "x"}
	told := Promise{ID: "y", Proofs: map[string][]string{yes: {"untested: why"}}}
	if t2 := (&Table{Said: map[string]Cells{"x": {"y": yes}}}); !t2.Untested(one, told) {
		t.Error("a cell without a test counts as tested")
	}
}

// TestSections checks that each cell of the hand-written tables is yes, no or if. Cells other than
// no need an existing proof, and cells other than yes a note.
func TestSections(t *testing.T) {
	t.Parallel()
	tree := &tree{t: t, tests: map[string]map[string]string{}}
	for _, s := range load(t).Sections {
		for _, r := range s.Rows {
			if len(r.Cells) != len(s.Columns) {
				t.Errorf("%s: %s: %d cells for %d columns", s.Title, r.Promise, len(r.Cells), len(s.Columns))
			}
			promised := slices.Contains(r.Cells, yes) || slices.Contains(r.Cells, sometimes)
			if promised != (len(r.Proof) > 0) {
				t.Errorf("%s: %s: cells %v with proofs %v", s.Title, r.Promise, r.Cells, r.Proof)
			}
			for _, cell := range r.Cells {
				if cell != yes && cell != no && cell != sometimes || cell != yes && r.Note == "" {
					t.Errorf("%s: %s: cell %q, note %q", s.Title, r.Promise, cell, r.Note)
				}
			}
			for _, proof := range r.Proof {
				if why := tree.refuses(Backend{}, proof); why != "" {
					t.Errorf("%s: %s: %s: %s", s.Title, r.Promise, proof, why)
				}
			}
		}
	}
}

// TestNothingIsLeftOver checks that all guarantees have a row, and all rows a value.
func TestNothingIsLeftOver(t *testing.T) {
	t.Parallel()
	table := load(t)
	rows, columns := map[string]bool{}, map[string]bool{}
	for _, p := range table.Promises {
		rows[p.ID] = true
	}
	for _, b := range table.Backends {
		columns[b.ID] = true
	}
	for id, cells := range table.Said {
		if !columns[id] {
			t.Errorf("%s reported guarantees and has no column", id)
		}
		for promise := range cells {
			if !rows[promise] {
				t.Errorf("%s reports %q, which has no row", id, promise)
			}
		}
		if len(cells) != len(rows) {
			t.Errorf("%s reports %d promises of %d", id, len(cells), len(rows))
		}
	}
	for _, p := range table.Promises {
		for id := range p.Cells {
			if !columns[id] {
				t.Errorf("%s has a proof for %q, which is no backend", p.ID, id)
			}
		}
	}
}

// TestProofsThatAreNone checks that invalid proofs are rejected.
func TestProofsThatAreNone(t *testing.T) {
	t.Parallel()
	tree := &tree{t: t, cases: casesOf(t), tests: map[string]map[string]string{}}
	b := Backend{ID: "redis", Suites: map[string]string{"lock": "driver/redis TestFenced"}}
	for proof, fine := range map[string]bool{
		"case FIFO": true, "case Fifo": false, "case WatchBeginsWithAHint": false, "driver/redis TestFence": true,
		"driver/redis TestNothing": false, "driver/nothing TestFence": false, "untested: why": true, "untested:": false,
		"driver/kube TestSuite/Breaker": true, "driver/kube TestSuite/Nothing": false, "driver/redis": false,
	} {
		if why := tree.refuses(b, proof); (why == "") != fine {
			t.Errorf("%q: %q", proof, why)
		}
	}
}

// tree is the source in which proofs must exist.
type tree struct {
	t     *testing.T
	cases map[string]string            // the suite of each case
	tests map[string]map[string]string // directory, function, source
}

// refuses returns the reason why a proof is invalid, or "".
func (tr *tree) refuses(b Backend, proof string) string {
	first, rest, _ := strings.Cut(proof, " ")
	switch {
	case rest == "":
		return "it names nothing"
	case first == untested:
		return ""
	case first == "case":
		suite := tr.cases[rest]
		if suite == "" {
			return "driver/drivertest has no such case"
		}
		if b.Suites[suite] == "" {
			return "the backend does not run the suite " + suite
		}
		return ""
	case tr.body(first, rest) == "":
		return "there is no such test"
	}
	return ""
}

// body returns the source of a test function, if it also has the subtest that is named
// after it, if any.
func (tr *tree) body(dir, test string) string {
	if tr.tests[dir] == nil {
		tr.tests[dir] = functions(tr.t, dir)
	}
	name, sub, _ := strings.Cut(test, "/")
	body := tr.tests[dir][name]
	if sub != "" && !strings.Contains(body, strconv.Quote(sub)) {
		return ""
	}
	return body
}

// functions returns the functions of a directory's tests.
func functions(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	files, err := filepath.Glob(top + dir + "/*_test.go")
	testbed.OK(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		testbed.OK(t, err)
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, file, text, 0)
		testbed.OK(t, err)
		for _, d := range parsed.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
				found[f.Name.Name] = string(text[set.Position(f.Pos()).Offset:set.Position(f.End()).Offset])
			}
		}
	}
	return found
}

// suites are the functions of driver/drivertest with their names in the table.
var suites = map[string]string{"RunFenced": "lock", "RunWatcher": "watch", "RunBreaker": "break", "RunValues": "values", "RunFence": "fence"}

func runs(body, suite string) bool {
	for function, s := range suites {
		if s == suite && strings.Contains(body, "drivertest."+function+"(") {
			return true
		}
	}
	return suite == "lock" && strings.Contains(body, "drivertest.RunAdvisory(")
}

// casesOf reads the case names from the suites' tables: the first string of each row.
func casesOf(t *testing.T) map[string]string {
	t.Helper()
	cases := map[string]string{}
	files, err := filepath.Glob(top + "driver/drivertest/*.go")
	testbed.OK(t, err)
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		testbed.OK(t, err)
		for _, d := range parsed.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && suites[f.Name.Name] != "" {
				ast.Inspect(f, func(n ast.Node) bool { return addCase(cases, suites[f.Name.Name], n) })
			}
		}
	}
	if len(cases) < 50 {
		t.Fatalf("only %d cases found", len(cases))
	}
	return cases
}

func addCase(cases map[string]string, suite string, n ast.Node) bool {
	row, ok := n.(*ast.CompositeLit)
	if !ok || row.Type != nil || len(row.Elts) < 2 {
		return true
	}
	if name, ok := row.Elts[0].(*ast.BasicLit); ok && name.Kind == token.STRING {
		if text, err := strconv.Unquote(name.Value); err == nil {
			cases[text] = suite
		}
	}
	return true
}
