package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// expand is the mutant itself, or one for each statement of the file that it deletes.
func (m mutant) expand() ([]mutant, error) {
	if !m.deletes {
		return []mutant{m}, nil
	}
	text, err := os.ReadFile(m.file)
	if err != nil {
		return nil, err
	}
	all, unused := []mutant(nil), slices.Clone(m.spared)
	cuts, err := statements(m.file, text)
	if err != nil {
		return nil, err
	}
	for _, c := range cuts {
		head, _, _ := strings.Cut(string(text[c.from:c.to]), "\n")
		if slices.Contains(m.spared, head) {
			unused = slices.DeleteFunc(unused, func(s string) bool { return s == head })
			continue
		}
		all = append(all, mutant{
			name: fmt.Sprintf("without %s:%d  %s", filepath.ToSlash(m.file), c.line, head),
			file: m.file, test: m.test, deletes: true,
			changed: string(text[:c.from]) + blank(text[c.from:c.to]) + string(text[c.to:]),
		})
	}
	if len(unused) > 0 {
		return nil, fmt.Errorf("%s has no statement to spare that begins with %q", m.file, unused)
	}
	return all, nil
}

// blank keeps the lines that follow where they are.
func blank(cut []byte) string { return strings.Repeat("\n", strings.Count(string(cut), "\n")) }

// cut is one statement, or one case of a switch.
type cut struct{ from, to, line int }

// statements of all functions of a file, the outer before the inner.
func statements(file string, text []byte) (cuts []cut, err error) {
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, file, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	add := func(list []ast.Stmt) {
		for _, s := range list {
			cuts = append(cuts, cut{set.Position(s.Pos()).Offset, set.Position(s.End()).Offset, set.Position(s.Pos()).Line})
		}
	}
	ast.Inspect(tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BlockStmt:
			add(n.List) // of a switch: its cases
		case *ast.CaseClause:
			add(n.Body)
		case *ast.CommClause:
			add(n.Body)
		}
		return true
	})
	return cuts, nil
}
