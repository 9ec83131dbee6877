package interlock_test

import (
	"encoding/json"
	"fmt"
	"github.com/interlock-dev/interlock/internal/testbed"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	goBlock = regexp.MustCompile("(?ms)^ *```go\n(.*?)^ *```")
	quoted  = regexp.MustCompile("(?s)```.*?```|`([^`\n]+)`")
	goName  = regexp.MustCompile(`(?:^|[^\w./-])([a-z][a-z0-9]*)\.([A-Z]\w*(?:\.[A-Z]\w*)?)\b`)
	goTest  = regexp.MustCompile(`^Test[A-Z]\w*`)
	aPath   = regexp.MustCompile(`^(?:bench|claim|deploy|docs|driver|examples|flow|guard|history|internal|interop|observe|scripts|server|tools|txn)/[\w./-]+$`)
)

// The Go of the pages is compiled. A whole file is compiled here; a piece is quoted from a Go
// file, or from the rows of `interlock advise`, which its own test compiles.
func TestDocsCode(t *testing.T) {
	var sources strings.Builder
	sources.WriteString(flat(read(t, "server/internal/advise/guide.yaml")))
	eachGoFile(t, func(file string) { sources.WriteString(flat(read(t, file))) })
	programs := map[string]string{}
	pieces := 0
	eachPage(t, func(page, text string) {
		for _, block := range goBlock.FindAllStringSubmatch(text, -1) {
			code := block[1]
			if strings.HasPrefix(code, "package ") {
				programs[fmt.Sprintf("block%d", len(programs)+1)] = code
			} else if pieces++; !strings.Contains(sources.String(), flat(code)) {
				t.Errorf("%s: no Go file has this code; quote it from one that is compiled:\n%s", page, code)
			}
		}
	})
	if len(programs) == 0 || pieces < 25 {
		t.Errorf("only %d programs and %d pieces found", len(programs), pieces)
	}
	if !testing.Short() {
		build(t, programs)
	}
}

// build compiles programs as packages of the examples, by their names, without leaving them there.
func build(t *testing.T, programs map[string]string) {
	t.Helper()
	here, err := filepath.Abs("examples")
	testbed.OK(t, err)
	dir, replace := t.TempDir(), map[string]string{}
	args := []string{"list", "-export", "-f", "{{.Name}}", "-overlay", filepath.Join(dir, "overlay.json")} // build links, too
	for name, code := range programs {
		file := filepath.Join(dir, name+".go")
		writeFile(t, file, code)
		replace[filepath.Join(here, name, "main.go")] = file
		args = append(args, "./examples/"+name)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	testbed.OK(t, err)
	writeFile(t, filepath.Join(dir, "overlay.json"), string(overlay))
	command(t, ".", "go", args...)
}

// Names of ours that the pages quote, such as `lock.Open` and `lock.Options.Require`, exist; so do
// tests and paths.
func TestDocsNames(t *testing.T) {
	names := map[string]bool{}
	eachGoFile(t, func(file string) {
		if tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution); err == nil {
			declared(tree, names)
		}
	})
	found := 0
	eachPage(t, func(page, text string) {
		for _, q := range quoted.FindAllStringSubmatch(text, -1) {
			for _, name := range goName.FindAllStringSubmatch(q[1], -1) {
				if pkg := name[1]; names[pkg] {
					found++
					if !names[pkg+"."+name[2]] {
						t.Errorf("%s: there is no %s.%s", page, pkg, name[2])
					}
				}
			}
			if test := goTest.FindString(q[1]); test != "" && !names[test] {
				t.Errorf("%s: there is no %s", page, test)
			}
			if aPath.MatchString(q[1]) {
				if _, err := os.Stat(q[1]); err != nil {
					t.Errorf("%s: %v", page, err)
				}
			}
		}
	})
	if found < 100 {
		t.Errorf("only %d names found", found)
	}
}

// declared adds what a file declares: its package, its tests, and by the package names, methods and fields.
func declared(tree *ast.File, names map[string]bool) {
	pkg := tree.Name.Name
	names[pkg] = true
	for _, decl := range tree.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			name := decl.Name.Name
			if decl.Recv != nil {
				name = receiverOf(decl.Recv.List[0].Type) + "." + name
			} else if goTest.MatchString(name) {
				names[name] = true
			}
			names[pkg+"."+name] = true
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.ValueSpec:
					for _, name := range spec.Names {
						names[pkg+"."+name.Name] = true
					}
				case *ast.TypeSpec:
					names[pkg+"."+spec.Name.Name] = true
					for _, member := range membersOf(spec.Type) {
						names[pkg+"."+spec.Name.Name+"."+member] = true
					}
				}
			}
		}
	}
}

// membersOf lists the fields of a struct, or the methods of an interface.
func membersOf(e ast.Expr) (members []string) {
	var list *ast.FieldList
	switch e := e.(type) {
	case *ast.StructType:
		list = e.Fields
	case *ast.InterfaceType:
		list = e.Methods
	default:
		return nil
	}
	for _, field := range list.List {
		for _, name := range field.Names {
			members = append(members, name.Name)
		}
	}
	return members
}

// eachPage visits every page of Markdown but the changelog, which names what no longer exists.
func eachPage(t *testing.T, visit func(page, text string)) {
	t.Helper()
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && file != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "bin"):
			return filepath.SkipDir
		case strings.HasSuffix(file, ".md") && file != "CHANGELOG.md":
			visit(filepath.ToSlash(file), read(t, file))
		}
		return nil
	})
	testbed.OK(t, err)
}

// flat is code without its indentation.
func flat(code string) string {
	var b strings.Builder
	for line := range strings.Lines(code) {
		b.WriteString(strings.TrimLeft(line, " \t"))
	}
	return b.String()
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	testbed.OK(t, err)
	return string(text)
}

func writeFile(t *testing.T, file, text string) {
	t.Helper()
	testbed.OK(t, os.WriteFile(file, []byte(text), 0o600))
}
