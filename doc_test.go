package interlock_test

import (
	"fmt"
	"github.com/interlock-dev/interlock/internal/testbed"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// Every package says what it is for, and every exported name what it means: a
// type, a function, a method of an exported type or interface, a constant or
// variable or the group it stands in. The comment of a struct documents its fields too, except
// in Options, because users ask what a zero value means. There the comment names the field, or
// the field or its run of lines has a comment of its own.
func TestEverythingIsDocumented(t *testing.T) {
	comments := map[string]bool{} // by directory: has a package comment
	names := 0
	eachGoFile(t, func(file string) {
		if strings.HasSuffix(file, "_test.go") {
			return
		}
		d := documentation{fset: token.NewFileSet()}
		tree, err := parser.ParseFile(d.fset, file, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Error(err)
			return
		}
		comments[path.Dir(file)] = comments[path.Dir(file)] || tree.Doc.Text() != ""
		d.file(tree)
		names += d.seen
		for _, m := range d.missing {
			t.Error(m)
		}
	})
	for dir, has := range comments {
		if !has {
			t.Errorf("%s: no package comment", dir)
		}
	}
	if len(comments) < 10 || names < 100 {
		t.Errorf("only %d packages and %d exported names found", len(comments), names)
	}
}

func TestDocumentationIsChecked(t *testing.T) {
	for source, want := range map[string]string{
		"func F() {}":                                      "F",
		"// F does.\nfunc F() {}":                          "",
		"func f() {}":                                      "",
		"type T int":                                       "T",
		"// T is.\ntype T int\nfunc (T) M() {}":            "T.M",
		"// T is.\ntype T int\nfunc (*T) M() {}":           "T.M",
		"type t int\nfunc (t) M() {}":                      "",
		"const C = 1":                                      "C",
		"// These are.\nconst (\nC = 1\nD = 2\n)":          "",
		"const (\nC = 1 // is\nD = 2\n)":                   "D",
		"var v = 1":                                        "",
		"// T is.\ntype T struct {\nA int\n}":              "",
		"// Options are.\ntype Options struct {\nA int\n}": "Options.A",
		"// O are.\ntype Options struct {\nA int // is\n}": "",
		"// O are.\ntype Options struct {\n// A, B are.\nA int\nB int\n}": "",
		"// O are.\ntype Options struct {\n// A is.\nA int\n\nB int\n}":   "Options.B",
		"// O are. A is.\ntype Options struct {\nA int\nB int\n}":         "Options.B",
		"// O are.\ntype Options struct {\na int\n}":                      "",
		"// T is.\ntype T interface {\nM()\n}":                            "T.M",
		"// T is.\ntype T interface {\n// M does.\nM()\n}":                "",
		"// T is.\ntype T interface {\nerror\n}":                          "",
	} {
		d := documentation{fset: token.NewFileSet()}
		tree, err := parser.ParseFile(d.fset, "x.go", "package p\n\n"+source, parser.ParseComments)
		testbed.OK(t, err)
		d.file(tree)
		got := strings.Join(d.missing, " ")
		if want == "" && got != "" || want != "" && !strings.Contains(got, ": "+want+" ") {
			t.Errorf("%q: %q, want something about %q", source, got, want)
		}
	}
}

// documentation collects what is not documented.
type documentation struct {
	fset    *token.FileSet
	seen    int
	missing []string
}

func (d *documentation) file(tree *ast.File) {
	if tree.Name.Name == "main" {
		return // a command has no names for others
	}
	for _, decl := range tree.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			d.function(decl)
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				d.spec(decl, spec)
			}
		}
	}
}

func (d *documentation) function(f *ast.FuncDecl) {
	name := f.Name.Name
	if f.Recv != nil {
		receiver := receiverOf(f.Recv.List[0].Type)
		if !ast.IsExported(receiver) {
			return
		}
		name = receiver + "." + name
	}
	d.need(f.Name, name, f.Doc)
}

// receiverOf is the type's name, whether a pointer or generic.
func receiverOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiverOf(e.X)
	case *ast.IndexExpr:
		return receiverOf(e.X)
	case *ast.IndexListExpr:
		return receiverOf(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

func (d *documentation) spec(group *ast.GenDecl, spec ast.Spec) {
	switch spec := spec.(type) {
	case *ast.TypeSpec:
		d.need(spec.Name, spec.Name.Name, spec.Doc, group.Doc, spec.Comment)
		if spec.Name.IsExported() {
			d.members(spec, spec.Doc.Text()+group.Doc.Text())
		}
	case *ast.ValueSpec:
		for _, name := range spec.Names {
			d.need(name, name.Name, spec.Doc, spec.Comment, group.Doc)
		}
	}
}

func (d *documentation) members(spec *ast.TypeSpec, about string) {
	var fields *ast.FieldList
	switch t := spec.Type.(type) {
	case *ast.StructType:
		if !strings.HasSuffix(spec.Name.Name, "Options") {
			return
		}
		fields = t.Fields
	case *ast.InterfaceType:
		fields = t.Methods
	default:
		return
	}
	// A comment also speaks for the lines that follow it without a gap.
	var run *ast.CommentGroup
	end := 0
	for _, f := range fields.List {
		if f.Doc != nil || d.line(f.Pos()) != end+1 {
			run = f.Doc
		}
		end = d.line(f.End())
		for _, name := range f.Names {
			if named(about, name.Name) {
				continue
			}
			d.need(name, spec.Name.Name+"."+name.Name, run, f.Comment)
		}
	}
}

// named reports whether a comment speaks of a name, as a word.
func named(comment, name string) bool {
	return slices.Contains(strings.FieldsFunc(comment, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }), name)
}

func (d *documentation) line(pos token.Pos) int { return d.fset.Position(pos).Line }

// need notes an exported name for which none of the comments says anything.
func (d *documentation) need(id *ast.Ident, name string, comments ...*ast.CommentGroup) {
	if !id.IsExported() {
		return
	}
	d.seen++
	for _, c := range comments {
		if c.Text() != "" {
			return
		}
	}
	at := d.fset.Position(id.Pos())
	d.missing = append(d.missing, fmt.Sprintf("%s:%d: %s is exported and not documented", at.Filename, at.Line, name))
}
