// Package generated compares files of this repository with what tests generate; with the flag
// -update it writes them. It is for tests only.
//
//	generated.Check(t, "../docs/page.md", want)
package generated

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the generated files")

// Updating reports whether the test writes files instead of comparing them.
func Updating() bool { return *update }

// Check reports an error unless a file has the wanted text. With -update it writes the file.
func Check(tb testing.TB, file, want string) {
	tb.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			tb.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != want {
		tb.Errorf("%s is out of date (%v): run %s of this package with -update", file, err, tb.Name())
	}
}

// block matches a code block of a page, below the name of a function.
var block = regexp.MustCompile("(?ms)^<!-- (\\w+) -->\n```go\n(.*?)^```\n")

// CheckCode checks that each code block of a page is the body of the function that the comment
// above it names, in a Go file. The page must have each function. It returns the page.
func CheckCode(tb testing.TB, page, source string) string {
	tb.Helper()
	bodies := bodiesOf(tb, source)
	text, err := os.ReadFile(page)
	if err != nil {
		tb.Fatal(err)
	}
	shown := map[string]bool{}
	want := block.ReplaceAllStringFunc(string(text), func(found string) string {
		name := block.FindStringSubmatch(found)[1]
		shown[name] = true
		return "<!-- " + name + " -->\n```go\n" + bodies[name] + "```\n"
	})
	for name := range bodies {
		if !shown[name] {
			tb.Errorf("%s is not on the page", name)
		}
	}
	if strings.Count(want, "```go\n") != len(shown) || len(shown) == 0 {
		tb.Errorf("%d code blocks for %d functions", strings.Count(want, "```go\n"), len(shown))
	}
	Check(tb, page, want)
	return want
}

// bodiesOf returns the bodies of the functions of a file, by name, without indentation.
func bodiesOf(tb testing.TB, file string) map[string]string {
	tb.Helper()
	source, err := os.ReadFile(file)
	if err != nil {
		tb.Fatal(err)
	}
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, file, source, 0)
	if err != nil {
		tb.Fatal(err)
	}
	bodies := map[string]string{}
	for _, d := range tree.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			body := string(source[set.Position(f.Body.Lbrace).Offset+2 : set.Position(f.Body.Rbrace).Offset])
			bodies[f.Name.Name] = strings.ReplaceAll("\n"+body, "\n\t", "\n")[1:]
		}
	}
	return bodies
}
