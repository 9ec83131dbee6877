package main

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestListFits: every right line stands in its file, and every name of a test selects one, so that no
// mutant is silently out of date.
func TestListFits(t *testing.T) {
	t.Chdir("../..")
	files, err := filepath.Glob("tools/mutants/*/*.txt")
	ok(t, err)
	mutants, err := read(files)
	ok(t, err)
	mutants = append(mutants, hasty)
	var names []string
	checked := map[string]bool{}
	for _, m := range mutants {
		if _, err := m.plant(); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
		names = append(names, m.name)
		if tests := strings.Join(m.test, " "); !checked[tests] {
			checked[tests] = true
			selectsTests(t, m.test)
		}
	}
	slices.Sort(names)
	if len(names) < 15 || len(slices.Compact(names)) != len(mutants) {
		t.Fatalf("%d mutants, or two of one name", len(mutants))
	}
}

var declared = regexp.MustCompile(`(?m)^func ((?:Test|Example|Fuzz)\w*)\(`)

// selectsTests requires that each name in the patterns of -run and -skip selects a test of the packages.
func selectsTests(t *testing.T, args []string) {
	var tests []string
	for _, dir := range args {
		if !strings.HasPrefix(dir, "./") {
			continue
		}
		files, err := filepath.Glob(dir + "/*_test.go")
		ok(t, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			ok(t, err)
			for _, found := range declared.FindAllStringSubmatch(string(text), -1) {
				tests = append(tests, found[1])
			}
		}
	}
	for i, arg := range args {
		if arg != "-run" && arg != "-skip" {
			continue
		}
		for _, name := range namesIn(args[i+1]) {
			if !slices.ContainsFunc(tests, regexp.MustCompile(name).MatchString) {
				t.Errorf("%s selects no test: %s", name, strings.Join(args, " "))
			}
		}
	}
}

// namesIn returns the alternatives of a pattern without subtests: ^A$, ^B$ and C of ^(A|B)$|C/d.
func namesIn(pattern string) (names []string) {
	for pattern != "" {
		before, within, after := pattern, "", ""
		if end := strings.IndexAny(pattern, "|("); end >= 0 && pattern[end] == '(' {
			before = pattern[:end]
			within, after, _ = strings.Cut(pattern[end+1:], ")")
			after, pattern, _ = strings.Cut(after, "|")
		} else {
			before, pattern, _ = strings.Cut(pattern, "|")
		}
		for one := range strings.SplitSeq(within, "|") {
			name, _, _ := strings.Cut(before+one+after, "/")
			names = append(names, name)
		}
	}
	return names
}

// TestListBuilds: every planted line is accepted by the compiler's type checker.
func TestListBuilds(t *testing.T) {
	if testing.Short() {
		t.Skip("it checks each of their packages once for each of them")
	}
	t.Chdir("../..")
	files, err := filepath.Glob("tools/mutants/planted/*.txt")
	ok(t, err)
	mutants, err := read(files)
	ok(t, err)
	mutants = slices.DeleteFunc(mutants, func(m mutant) bool { return filepath.Ext(m.file) != ".go" })
	sources, importer := load(t, mutants)
	for _, m := range mutants {
		changed, err := m.plant()
		ok(t, err)
		dir, set := filepath.Dir(m.file), token.NewFileSet()
		var parsed []*ast.File
		for _, name := range sources[dir] {
			var text any
			if name == filepath.Base(m.file) {
				text = changed
			}
			file, err := parser.ParseFile(set, filepath.Join(dir, name), text, parser.SkipObjectResolution)
			if err != nil {
				t.Errorf("%s: %v", m.name, err)
			}
			parsed = append(parsed, file)
		}
		if _, err := (&types.Config{Importer: importer}).Check(dir, set, parsed, nil); err != nil || len(parsed) == 0 {
			t.Errorf("%s: %v", m.name, err)
		}
	}
}

// load returns the sources of each directory with a mutant, and an importer of what they import.
func load(t *testing.T, mutants []mutant) (sources map[string][]string, _ types.Importer) {
	args := []string{"list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles"}
	for _, m := range mutants {
		if dir := "./" + filepath.Dir(m.file); !slices.Contains(args, dir) {
			args = append(args, dir)
		}
	}
	out, err := exec.CommandContext(t.Context(), "go", args...).Output()
	ok(t, err)
	root, err := os.Getwd()
	ok(t, err)
	sources, exports := map[string][]string{}, map[string]string{}
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p struct {
			ImportPath, Dir, Export string
			GoFiles                 []string
		}
		ok(t, d.Decode(&p))
		exports[p.ImportPath] = p.Export
		if dir, err := filepath.Rel(root, p.Dir); err == nil {
			sources[dir] = p.GoFiles
		}
	}
	return sources, importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
}

func TestPlantReplacesOneLineAndKeepsItsIndent(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.go")
	ok(t, os.WriteFile(file, []byte("a\n\tif b {\n\t}\nc\n"), 0o600))
	m := mutant{name: "m", file: file, old: "if b {", new: "if false {", test: []string{"."}}
	if got, err := m.plant(); err != nil || got != "a\n\tif false {\n\t}\nc\n" {
		t.Fatalf("%q, %v", got, err)
	}
	m.old = "if x {"
	if _, err := m.plant(); err == nil || !strings.Contains(err.Error(), "0 times") {
		t.Fatalf("a line that is not there: %v", err)
	}
}

func TestParse(t *testing.T) {
	got, err := parse("# text\n\nmutant one: two\nfile f.go\n- a  b\n+\ntest ./x -run Y\n\nmutant three\n- c\n+ d\n")
	if err != nil || len(got) != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	if m := got[1]; m.file != "f.go" || m.old != "c" || m.new != "d" || !slices.Equal(m.test, got[0].test) {
		t.Fatalf("%+v", m)
	}
	if m := got[0]; m.name != "one: two" || m.file != "f.go" || m.old != "a  b" || m.new != "" || !slices.Equal(m.test, []string{"./x", "-run", "Y"}) {
		t.Fatalf("%+v", m)
	}
	for _, bad := range []string{"file f.go\n", "mutant m\nnonsense x\n", "mutant m\n- a\n- b\n", "mutant m\n+ a\n+ b\n"} {
		if _, err := parse(bad); err == nil {
			t.Errorf("%q was understood", bad)
		}
	}
}

// TestChoice: a baseline is shared by the choices that differ in the pattern alone.
func TestChoice(t *testing.T) {
	for test, want := range map[string][2]string{
		"-race ./x -run ^A$|B/c -timeout 20s": {"-race ./x -timeout 20s", "^A$|B/c"},
		"./x":                                 {"./x", ""},
	} {
		m := mutant{test: strings.Fields(test)}
		if others, pattern := m.choice(); strings.Join(others, " ") != want[0] || pattern != want[1] || strings.Join(m.test, " ") != test {
			t.Errorf("%q is %q and %q", m.test, others, pattern)
		}
	}
}

// TestDeletes: each statement goes once, and the lines behind it stay where they are.
func TestDeletes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.go")
	text := "package x\n\nfunc f(a int) {\n\tif a > 1 {\n\t\tg()\n\t}\n\tswitch a {\n\tcase 2:\n\t\ta++\n\tdefault:\n\t}\n}\n"
	ok(t, os.WriteFile(file, []byte(text), 0o600))
	each, err := mutant{file: file, deletes: true, spared: []string{"default:"}, test: []string{"."}}.expand()
	ok(t, err)
	var gone []string
	for _, m := range each {
		got, err := m.plant()
		if err != nil || strings.Count(got, "\n") != strings.Count(text, "\n") {
			t.Errorf("%s: %v\n%s", m.name, err, got)
		}
		_, what, _ := strings.Cut(m.name, "  ")
		gone = append(gone, what)
	}
	if want := []string{"if a > 1 {", "switch a {", "g()", "case 2:", "a++"}; !slices.Equal(gone, want) {
		t.Errorf("%q, want %q", gone, want)
	}
	if _, err := (mutant{file: file, deletes: true, spared: []string{"h()"}}).expand(); err == nil {
		t.Error("a statement is spared that is not there")
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
