package guarantees

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

const head = `# What each backend promises

Generated from the ` + "`Guarantees`" + ` that the drivers report on real servers, and from
` + "`server/internal/guarantees/proofs.yaml`" + `, which names for every cell the test that proves it
or the scenario that breaks it: ` + "`go test ./server/internal/guarantees -update`" + `.

No backend promises that only one process acts: a holder that was paused goes on without knowing that its lease expired.
The promise is that **a guarded store never accepts a lower token after a higher one has
entered**. TTLs are the default of 30 s.

`

// Markdown returns the page.
func (t *Table) Markdown() string {
	var b strings.Builder
	b.WriteString(head)
	t.grid(&b)
	b.WriteString("\n**if** depends on the server's settings, which the driver reads when it opens:\n\n")
	for _, backend := range t.Backends {
		if backend.If != "" {
			fmt.Fprintf(&b, "- %s: %s\n", backend.Title, backend.If)
		}
	}
	b.WriteString("\n# What proves it\n\nTests are named by the directory and the function, those of the conformance suites " +
		"([driver/drivertest](../driver/drivertest)) by their case. Each backend runs them against the real server:\n\n")
	t.suites(&b)
	for _, p := range t.Promises {
		t.evidence(&b, p)
	}
	for _, s := range t.Sections {
		s.markdown(&b)
	}
	return b.String()
}

// inShort are the rows that the README shows.
var inShort = []string{"token", "guard", "exclusion holder-pause", "exclusion server-crash", "exclusion partition",
	"exclusion async-failover", "order", "wait"}

// Summary returns the part of the table that the README shows.
func (t *Table) Summary() string {
	var b strings.Builder
	short := *t
	short.Promises = nil
	for _, p := range t.Promises {
		if slices.Contains(inShort, p.ID) {
			short.Promises = append(short.Promises, p)
		}
	}
	short.grid(&b)
	return b.String()
}

// grid writes the table itself.
func (t *Table) grid(b *strings.Builder) {
	var columns []string
	for _, backend := range t.Backends {
		columns = append(columns, backend.Title)
	}
	gridOf(b, columns, len(t.Promises), func(i int) (string, []string) {
		p := t.Promises[i]
		var cells []string
		for _, backend := range t.Backends {
			cells = append(cells, t.Cell(backend, p))
		}
		return cmp.Or(p.Short, p.Title), cells
	})
}

// gridOf writes a table, with all cells that are not a plain promise in bold.
func gridOf(b *strings.Builder, columns []string, rows int, row func(i int) (title string, cells []string)) {
	fmt.Fprintf(b, "| | %s |\n|---|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
	for i := range rows {
		title, cells := row(i)
		b.WriteString("| " + title + " |")
		for _, cell := range cells {
			if cell == no || cell == sometimes {
				cell = "**" + cell + "**"
			}
			b.WriteString(" " + cell + " |")
		}
		b.WriteString("\n")
	}
}

// evidence lists the proofs of a row, and groups backends with the same ones. The group of most
// backends is the last one, without their names.
func (t *Table) evidence(b *strings.Builder, p Promise) {
	fmt.Fprintf(b, "\n## %s%s\n\n", strings.ToUpper(p.Title[:1]), p.Title[1:])
	type group struct{ cell, proof string }
	var order []group
	by := map[group][]string{}
	for _, backend := range t.Backends {
		g := group{t.Cell(backend, p), shown(t.Proof(backend, p))}
		if by[g] == nil {
			order = append(order, g)
		}
		by[g] = append(by[g], backend.Title)
	}
	most := len(t.Backends)/2 + 1
	slices.SortStableFunc(order, func(x, y group) int { return cmp.Compare(len(by[x])/most, len(by[y])/most) })
	for _, g := range order {
		names := strings.Join(by[g], ", ")
		if len(by[g]) >= most {
			names = "all others"
		}
		if len(order) == 1 {
			names = "all"
		}
		fmt.Fprintf(b, "- **%s** (%s): %s\n", g.cell, names, g.proof)
	}
}

// shown returns a list of proofs as Markdown.
func shown(proofs []string) string {
	var all []string
	for _, proof := range proofs {
		first, rest, _ := strings.Cut(proof, " ")
		if first == untested {
			all = append(all, "not tested: "+rest)
			continue
		}
		all = append(all, fmt.Sprintf("%s `%s`", first, rest))
	}
	return strings.Join(slices.Compact(all), ", ")
}

// suites lists the tests that run the conformance suites.
func (t *Table) suites(b *strings.Builder) {
	for _, backend := range t.Backends {
		var all []string
		for _, suite := range slices.Sorted(maps.Keys(backend.Suites)) {
			all = append(all, suite+" by "+shown([]string{backend.Suites[suite]}))
		}
		fmt.Fprintf(b, "- %s: %s\n", backend.Title, strings.Join(all, ", "))
	}
}
